"""Which replica serves a call: the paper's balancer (Algorithm 2), its two baselines, and ours.

Pure: a balancer is told how loaded the replicas are and what became of its calls; it remembers
only that. A replica that cannot take calls has an infinite load and is never chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from autellix.errors import EngineStoppedError, SettingsError

from .expected_cost import ExpectedCost
from .tickets import Receipt, Ticket

SHORT_PROMPT_TOKENS = 2048


class Balancer(Protocol):
    """Places calls on replicas, which are counted from 0."""

    def place(self, ticket: Ticket, loads: Sequence[float]) -> int:
        """The replica for a new call, or for one whose replica was lost.

        Args:
            ticket: names the call, its program and the length of its whole prompt.
            loads: calls under way on every replica; infinite if it takes none.

        Raises:
            EngineStoppedError: no replica can take the call.
        """
        ...

    def call_ended(self, call: str, receipt: Receipt | None) -> None:
        """A call that was placed is over on its replica; without a receipt if it was lost there."""
        ...

    def replica_serves(self, replica: int, *, seats: int, kv_tokens: int) -> None:
        """A replica serves from now on, with an empty cache.

        Args:
            seats: how many calls can run at once; 0 when unknown.
            kv_tokens: size of its KV cache; 0 when unknown.
        """
        ...

    def program_ended(self, program: str) -> None:
        """Nothing need be remembered of the program."""
        ...


def least_used(loads: Sequence[float]) -> int:
    """The replica with the smallest load, the first of equals.

    Raises:
        EngineStoppedError: there is none that can take calls.
    """
    best = min(range(len(loads)), key=loads.__getitem__, default=-1)
    if best < 0 or loads[best] == math.inf:
        raise EngineStoppedError("no replica can take calls; start one or wait for its restart")
    return best


class _Forgetful:
    """What a balancer does that needs to know nothing."""

    def call_ended(self, call: str, receipt: Receipt | None) -> None:
        """Nothing is remembered."""

    def replica_serves(self, replica: int, *, seats: int, kv_tokens: int) -> None:
        """Nothing is remembered."""

    def program_ended(self, program: str) -> None:
        """Nothing is remembered."""


class LeastUsed(_Forgetful):
    """Every call to the replica that has least to do."""

    def place(self, ticket: Ticket, loads: Sequence[float]) -> int:
        """Whatever the program and its prompt."""
        return least_used(loads)


class RoundRobin(_Forgetful):
    """The replicas in turns."""

    def __init__(self) -> None:
        self._next = 0

    def place(self, ticket: Ticket, loads: Sequence[float]) -> int:
        """The next replica after the last one chosen that can take calls."""
        for step in range(len(loads)):
            replica = (self._next + step) % len(loads)
            if loads[replica] != math.inf:
                self._next = replica + 1
                return replica
        return least_used(loads)


class ProgramLocality(_Forgetful):
    """Algorithm 2: a program's long prompts go where its KV is, short ones where least is to do.

    1. A prompt of at most ``short_tokens`` goes to the least used replica: there is little to save.
    2. A longer one goes to the program's replica if it has one.
    3. Otherwise to the least used one, which becomes the program's.

    Args:
        short_tokens: the longest prompt that counts as short, tokens.
    """

    def __init__(self, short_tokens: int = SHORT_PROMPT_TOKENS) -> None:
        self._short_tokens = short_tokens
        self._home: dict[str, int] = {}

    def place(self, ticket: Ticket, loads: Sequence[float]) -> int:
        """The replica, by the three rules; a program whose replica is gone gets another."""
        if ticket.prompt_tokens <= self._short_tokens:
            return least_used(loads)
        home = self._home.get(ticket.program)
        if home is None or home >= len(loads) or loads[home] == math.inf:
            home = self._home[ticket.program] = least_used(loads)
        return home

    def program_ended(self, program: str) -> None:
        """Its replica is free of it."""
        self._home.pop(program, None)


_BALANCERS: dict[str, Callable[[], Balancer]] = {
    "expected-cost": ExpectedCost,
    "program": ProgramLocality,
    "least-used": LeastUsed,
    "round-robin": RoundRobin,
}

BALANCER_NAMES = tuple(_BALANCERS)
DEFAULT_BALANCER = "expected-cost"


def balancer_named(name: str) -> Balancer:
    """A new balancer: ``expected-cost`` (ours), ``program`` (Algorithm 2) or a baseline.

    Raises:
        SettingsError: there is none of that name.
    """
    try:
        return _BALANCERS[name]()
    except KeyError:
        names = ", ".join(BALANCER_NAMES)
        raise SettingsError(f"balancer must be one of {names}, got {name!r}") from None
