"""What "attained service" means: the number p(c) that places a new call; smaller is better.

Section 4.2.1 of the paper. A policy decides where a call starts; quanta, promotion and preemption
are the scheduler's and the same for all policies with levels.
"""

from __future__ import annotations

from typing import Protocol

from autellix.errors import SettingsError


class History(Protocol):
    """What a policy may know of a program: its finished calls, seconds."""

    @property
    def service_s(self) -> float:
        """Sum of the service of the finished calls."""
        ...

    @property
    def critical_path_s(self) -> float:
        """Service along the longest chain of finished calls seen."""
        ...


class Policy(Protocol):
    """Places a program's new call.

    Attributes:
        name: as given on the command line.
        multilevel: whether calls move between levels; without, arrival order is all there is.
        program_aware: whether promotion counts the program's wait and service or the call's alone.
        program_ties: whether the call whose program came first goes first inside a level, unless
            the settings say otherwise.
        admission: whether only programs whose KV fits the cache together run calls, unless the
            settings say otherwise.
        learns: whether what programs of a name have done places the calls of others, in place of
            attained service.
        remembers: whether it starts with what earlier runs have learned.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def multilevel(self) -> bool: ...  # noqa: D102

    @property
    def program_aware(self) -> bool: ...  # noqa: D102

    @property
    def program_ties(self) -> bool: ...  # noqa: D102

    @property
    def admission(self) -> bool: ...  # noqa: D102

    @property
    def learns(self) -> bool: ...  # noqa: D102

    @property
    def remembers(self) -> bool: ...  # noqa: D102

    def attained(self, history: History, chain_s: float | None) -> float:
        """p(c) of a new call, seconds.

        Args:
            history: the program's finished calls.
            chain_s: max over the call's parents k of p(k) + t(k), exactly from the program's DAG;
                None where the DAG is not known.
        """
        ...


class Fcfs:
    """First come, first served: one level, no preemption; vLLM's own order."""

    name = "fcfs"
    multilevel = False
    program_aware = False
    program_ties = False
    admission = False
    learns = False
    remembers = False

    def attained(self, history: History, chain_s: float | None) -> float:
        """All calls are equal."""
        return 0.0


class ProgramFcfs:
    """First come, first served by program: one level, the program that came first goes first."""

    name = "program-fcfs"
    multilevel = False
    program_aware = True
    program_ties = True
    admission = False
    learns = False
    remembers = False

    def attained(self, history: History, chain_s: float | None) -> float:
        """Only the order of arrival counts."""
        return 0.0


class Mlfq:
    """Every call starts in the best level, however long its program has run."""

    name = "mlfq"
    multilevel = True
    program_aware = False
    program_ties = False
    admission = False
    learns = False
    remembers = False

    def attained(self, history: History, chain_s: float | None) -> float:
        """A new call has attained nothing."""
        return 0.0


class Plas:
    """Program-level attained service: what the program's finished calls took, all together."""

    name = "plas"
    multilevel = True
    program_aware = True
    program_ties = False
    admission = False
    learns = False
    remembers = False

    def attained(self, history: History, chain_s: float | None) -> float:
        """Sum of t over the finished calls."""
        return history.service_s


class Atlas:
    """Thread-level attained service: what the longest chain of calls up to this one took."""

    name = "atlas"
    multilevel = True
    program_aware = True
    program_ties = False
    admission = False
    learns = False
    remembers = False

    def attained(self, history: History, chain_s: float | None) -> float:
        """The recursion over the parents; without a DAG the longest chain seen stands in."""
        return history.critical_path_s if chain_s is None else chain_s


class Adaptive:
    """By what is still to be expected of the program, learned from this run's programs so far.

    The Gittins index over a life table of each kind of program (:mod:`.gittins`,
    :mod:`.service_history`): attained-service order where sizes are spread wide, program by program
    where they are alike.
    """

    name = "adaptive"
    multilevel = True
    program_aware = True
    program_ties = True
    admission = True
    learns = True
    remembers = False

    def attained(self, history: History, chain_s: float | None) -> float:
        """Sum of t over the finished calls; the ticket's course decides."""
        return history.service_s


class Gittins(Adaptive):
    """As ``adaptive``, and begins with what earlier runs have learned of programs by name."""

    name = "gittins"
    remembers = True


class Default(Gittins):
    """What ``autellix run`` uses: ``gittins``, which with nothing to remember is ``adaptive``."""

    name = "default"


POLICIES: tuple[Policy, ...] = (
    Default(),
    Fcfs(),
    ProgramFcfs(),
    Mlfq(),
    Plas(),
    Atlas(),
    Adaptive(),
    Gittins(),
)


def policy_named(name: str) -> Policy:
    """The policy of that name.

    Raises:
        SettingsError: there is none; the message lists those there are.
    """
    for policy in POLICIES:
        if policy.name == name:
            return policy
    names = ", ".join(policy.name for policy in POLICIES)
    raise SettingsError(f"policy must be one of {names}, got {name!r}")
