"""Every setting of the scheduler, in one frozen value that can travel as a plain dictionary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from autellix.errors import SettingsError

from .policies import policy_named


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How one replica schedules.

    Attributes:
        policy: what attained service means; a name that :func:`policy_named` knows.
        program_ties: inside a level, whether the call whose program came first goes first, or the
            call that entered the level first, as in the paper. None leaves it to the policy.
        critical_calls_first: with ties by program, whether of a program's calls the one with the
            longest chain to come goes first, or the one that entered the level first.
        levels: K, how many levels there are.
        first_quantum_s: upper bound of the best level, seconds of service. None derives it as
            ``quantum_steps`` typical engine steps and follows the engine when its steps change.
        quantum_steps: engine steps that the best level's quantum lasts.
        quantum_ratio: upper bound of a level / upper bound of the better one beside it.
        expected_step_s: the typical step until enough steps are measured, seconds.
        beta: a call waiting below the best level is promoted when its program's wait / service
            reaches this. ``math.inf`` switches promotion off. Must lie above the ratio of ordinary
            overload (1,000 calls on 256 seats wait 3 times as long as they run), or every call is
            promoted again and again and the levels turn into a round robin.
        policy_interval: N, the policy runs every N engine steps.
        preempt: whether running calls give way to better-placed waiting ones.
        preempt_gap: levels by which a waiting call must be better placed than its victim.
        min_run_steps: typical steps that a call keeps its seat before it can be a victim.
        patience_steps: typical steps that a call waits in its place before running ones give way to
            it; a busy engine has a seat for it sooner, and nobody need start over.
        admission: whether only programs whose KV fits the cache together run calls. None leaves it
            to the policy.
        admission_gap: levels by which a held program must be better placed than one it displaces.
        admission_idle_s: seconds that a program between two calls keeps its room.
        kept_decisions: the most decisions kept of one call; beyond, the middle ones are dropped.
        replica: index of the replica, copied into receipts.

    Raises:
        SettingsError: a value is impossible, or :meth:`from_dict` was given an unknown name.
    """

    policy: str = "default"
    program_ties: bool | None = None
    critical_calls_first: bool = True
    levels: int = 20
    first_quantum_s: float | None = None
    quantum_steps: int = 32
    quantum_ratio: float = 2.0
    expected_step_s: float = 0.015
    beta: float = 8.0
    policy_interval: int = 8
    preempt: bool = True
    preempt_gap: int = 2
    min_run_steps: int = 8
    patience_steps: int = 8
    admission: bool | None = None
    admission_gap: int = 1
    admission_idle_s: float = 30.0
    kept_decisions: int = 64
    replica: int = 0

    def __post_init__(self) -> None:
        policy_named(self.policy)
        self._at_least("levels", 1, "for plain first come, first served give policy 'fcfs'")
        if self.first_quantum_s is not None:
            self._above("first_quantum_s", 0, "give seconds, or None to derive it from the steps")
        self._at_least("quantum_steps", 1, "32 is a good start")
        self._above("quantum_ratio", 1, "2 is a good start; bounds must grow from level to level")
        self._above("expected_step_s", 0, "0.015 fits most engines until steps are measured")
        self._above("beta", 0, "8 is a good start; give infinity to switch promotion off")
        self._at_least("policy_interval", 1, "1 runs the policy at every step, 8 is a good start")
        self._at_least("preempt_gap", 1, "to switch preemption off give preempt=False")
        self._at_least("min_run_steps", 0, "0 lets a call lose its seat at once")
        self._at_least("patience_steps", 0, "0 makes running calls give way at once")
        self._at_least("admission_gap", 1, "to switch admission control off give admission=False")
        self._above("admission_idle_s", 0, "30 is a good start; infinity keeps the room for ever")
        self._at_least("kept_decisions", 2, "the first and the last decision are always kept")
        self._at_least("replica", 0, "replicas count from 0")

    def _at_least(self, name: str, low: int, remedy: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise SettingsError(f"{name} must be a whole number >= {low}, got {value!r}; {remedy}")

    def _above(self, name: str, low: float, remedy: str) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or math.isnan(value) or value <= low:
            raise SettingsError(f"{name} must be > {low}, got {value!r}; {remedy}")

    @property
    def admits(self) -> bool:
        """Whether there is admission control under these settings."""
        return policy_named(self.policy).admission if self.admission is None else self.admission

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for vLLM's ``additional_config``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_dict`; names left out take their defaults."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise SettingsError(
                    f"the scheduler has no setting {name!r}; it has {', '.join(known)}"
                )
        return cls(**values)
