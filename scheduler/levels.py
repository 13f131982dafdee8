"""The levels of the multilevel queue and how they follow the engine's speed.

1. Level i (from 0 here, from 1 in receipts) holds attained service in [lo_i, hi_i): half-open,
   adjacent, the last one unbounded.
2. hi_0 is the first quantum; each further bound is the one before times a ratio.
3. A level's quantum is its width; the last one has no end.
4. The first quantum is a number of *typical steps*, the median of the measured ones: bounds in a
   unit that does not fit the engine would put every program into the last level after one call.
5. Bounds follow the typical step only when it has moved by half: small drifts would shuffle
   programs for nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from statistics import median
from typing import Self

from .config import SchedulerConfig

_FIRST_WINDOW = 16
_WINDOW = 64
_DRIFT = 1.5


@dataclass(frozen=True, slots=True)
class Levels:
    """The bounds of the levels (section 4.2.2).

    Attributes:
        bounds: hi_i of every level but the last, seconds, ascending.
        quanta: service a call may take in a level before it is demoted, seconds.
    """

    bounds: tuple[float, ...]
    quanta: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        lows = (0.0, *self.bounds)
        highs = (*self.bounds, math.inf)
        widths = tuple(high - low for low, high in zip(lows, highs, strict=True))
        object.__setattr__(self, "quanta", widths)

    @classmethod
    def derive(cls, config: SchedulerConfig, typical_step_s: float) -> Self:
        """The levels that the settings ask for on an engine with this typical step, seconds."""
        first = config.first_quantum_s or config.quantum_steps * typical_step_s
        return cls(tuple(first * config.quantum_ratio**i for i in range(config.levels - 1)))

    def of(self, attained_s: float) -> int:
        """The level, from 0, that holds this attained service."""
        return bisect_right(self.bounds, attained_s)


class TypicalStep:
    """Median duration of the engine's steps, window by window.

    Attributes:
        step_s: median of the last full window, seconds; 0 before the first.
    """

    __slots__ = ("_need", "_window", "step_s")

    def __init__(self) -> None:
        self.step_s = 0.0
        self._window: list[float] = []
        self._need = _FIRST_WINDOW

    def add(self, step_s: float) -> None:
        """Count one step, seconds."""
        self._window.append(step_s)
        if len(self._window) == self._need:
            self.step_s = median(self._window)
            self._window.clear()
            self._need = _WINDOW

    def add_series(self, first_s: float, growth_s: float, steps: int) -> None:
        """Count steps of which each lasted longer than the one before by the same amount."""
        done = 0
        while done < steps:
            some = min(steps - done, self.left_in_window)
            self._window.extend(first_s + growth_s * i for i in range(done, done + some - 1))
            done += some
            self.add(first_s + growth_s * (done - 1))

    @property
    def left_in_window(self) -> int:
        """Steps until there is a new typical step."""
        return self._need - len(self._window)

    def has_left(self, reference_s: float) -> bool:
        """Whether the typical step has moved so far from the reference that bounds must follow."""
        return self.step_s > 0 and not (reference_s / _DRIFT <= self.step_s <= reference_s * _DRIFT)
