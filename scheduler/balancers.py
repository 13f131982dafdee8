"""Which replica serves a call: the paper's balancer (Algorithm 2) and its two baselines.

Pure: a balancer is told how loaded the replicas are and remembers only its own placements.
A replica that cannot take calls has an infinite load and is never chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from autellix.errors import EngineStoppedError, SettingsError

SHORT_PROMPT_TOKENS = 2048


class Balancer(Protocol):
    """Places calls on replicas."""

    def place(self, program: str, prompt_tokens: int, loads: Sequence[float]) -> int:
        """The replica, counted from 0, for a program's new call.

        Args:
            program: id of the program.
            prompt_tokens: length of the whole prompt.
            loads: of every replica, in any unit that grows with its work; infinite if it is gone.

        Raises:
            EngineStoppedError: no replica can take the call.
        """
        ...

    def forget(self, program: str) -> None:
        """The program has ended."""
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


class LeastUsed:
    """Every call to the replica that has least to do."""

    def place(self, program: str, prompt_tokens: int, loads: Sequence[float]) -> int:
        """Whatever the program and its prompt."""
        return least_used(loads)

    def forget(self, program: str) -> None:
        """Nothing is remembered."""


class RoundRobin:
    """The replicas in turns."""

    def __init__(self) -> None:
        self._next = 0

    def place(self, program: str, prompt_tokens: int, loads: Sequence[float]) -> int:
        """The next replica after the last one chosen that can take calls."""
        for step in range(len(loads)):
            replica = (self._next + step) % len(loads)
            if loads[replica] != math.inf:
                self._next = replica + 1
                return replica
        return least_used(loads)

    def forget(self, program: str) -> None:
        """Nothing is remembered."""


class ProgramLocality:
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

    def place(self, program: str, prompt_tokens: int, loads: Sequence[float]) -> int:
        """The replica, by the three rules; a program whose replica is gone gets another."""
        if prompt_tokens <= self._short_tokens:
            return least_used(loads)
        home = self._home.get(program)
        if home is None or home >= len(loads) or loads[home] == math.inf:
            home = self._home[program] = least_used(loads)
        return home

    def forget(self, program: str) -> None:
        """Its replica is free of it."""
        self._home.pop(program, None)


_BALANCERS: dict[str, type[ProgramLocality] | type[LeastUsed] | type[RoundRobin]] = {
    "program": ProgramLocality,
    "least-used": LeastUsed,
    "round-robin": RoundRobin,
}

BALANCER_NAMES = tuple(_BALANCERS)


def balancer_named(name: str) -> Balancer:
    """A new balancer: ``program`` (Algorithm 2), ``least-used`` or ``round-robin``.

    Raises:
        SettingsError: there is none of that name.
    """
    try:
        return _BALANCERS[name]()
    except KeyError:
        names = ", ".join(BALANCER_NAMES)
        raise SettingsError(f"balancer must be one of {names}, got {name!r}") from None
