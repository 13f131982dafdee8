"""Where the KV of a program stays that is in a tool, or waits for a person.

1. *Keep*: it lies where it lies, on the device and in host memory, until others need the room.
2. *Move*: it is kept in host memory until the program is back; the device's part goes in its turn.
3. *Drop*: it goes before that of all others, on the device and in host memory.

Each is priced by the seconds it is expected to lose, and the cheapest is taken. A program that
comes back finds its KV on the device if it was away no longer than ``device_s``, which costs
nothing; else in host memory, which costs a load, if it was moved or was away no longer than
``host_s``; else it is computed again.

Room has a price where it is short. Host memory that is full turns over once in ``host_s``: KV that
stays longer than that takes the room of as many others as often as it outstays them, and KV that
goes at once leaves it to them. What that is worth to them is what the KV itself is worth, a
computation less a load, times the chance that they come back for it; that chance is taken to be
the same as everybody's, a half.

Pure: the distribution of the absence comes from recorded durations, the rest is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Home = Literal["keep", "move", "drop"]
_OTHERS_RETURN = 0.5
# With a host tier a program's KV outlives a tool of some minutes, and so does its room at the gate.
HOSTED_IDLE_S = 300.0
_WINDOW_S = 10.0
# A person answers in a minute or in days: deciles that grow by a half of an order each.
PERSON_S = tuple(30.0 * math.sqrt(10.0) ** i for i in range(9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How long KV that nobody uses stays, at the rate at which room is needed now.

    Attributes:
        device_s: on the device, seconds; infinite where nothing is overwritten.
        host_s: in host memory, if it is not to be kept, seconds; infinite while that is not full.
    """

    device_s: float
    host_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnCost:
    """What it costs a program to go on when it is back.

    Attributes:
        load_s: with its KV in host memory, seconds.
        compute_s: without, seconds.
    """

    load_s: float
    compute_s: float


class Turnover:
    """How long room that is free, or held by what nobody uses, lasts at the rate it is taken.

    The rate is measured over windows of ten seconds, each counting for half.
    """

    __slots__ = ("_before", "_began_s", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._before = 0
        self._began_s = 0.0

    def lasts_s(self, available: int, taken: int, now: float) -> float:
        """Seconds that it lasts; infinite while nothing is taken.

        Args:
            available: how much there is now.
            taken: how much has been taken since the start.
        """
        passed_s = now - self._began_s
        if passed_s >= _WINDOW_S:
            newest = (taken - self._before) / passed_s
            self._rate = (self._rate + newest) / 2 if self._rate else newest
            self._before, self._began_s = taken, now
        return available / self._rate if self._rate else math.inf


def home(absence_s: Sequence[float], pressure: Pressure, cost: ReturnCost) -> Home:
    """The cheapest home of a program's KV.

    Args:
        absence_s: quantiles of how long the program will be away, at equal distances and in
            ascending order, seconds; empty where nothing is known, and then nothing is done.
        pressure: how long KV stays.
        cost: what coming back costs.
    """
    prices = expected_s(absence_s, pressure, cost)
    return min(prices, key=prices.__getitem__)


def expected_s(
    absence_s: Sequence[float], pressure: Pressure, cost: ReturnCost
) -> dict[Home, float]:
    """Seconds that each home is expected to lose, others' included; keeping first."""
    if not absence_s:
        return {"keep": 0.0}
    load_s = min(cost.load_s, cost.compute_s)
    saved_s = cost.compute_s - load_s
    late = _share_beyond(absence_s, pressure.device_s)
    gone = _share_beyond(absence_s, max(pressure.host_s, pressure.device_s))
    kept_s = late * load_s + gone * saved_s
    moved_s = late * load_s
    dropped_s = cost.compute_s
    if pressure.host_s < math.inf:
        stays_s = sum(absence_s) / len(absence_s)
        worth_s = _OTHERS_RETURN * saved_s
        moved_s += max(stays_s / pressure.host_s - 1.0, 0.0) * worth_s
        dropped_s -= min(stays_s / pressure.host_s, 1.0) * worth_s
    return {"keep": kept_s, "move": moved_s, "drop": dropped_s}


def _share_beyond(absence_s: Sequence[float], limit_s: float) -> float:
    return sum(one > limit_s for one in absence_s) / len(absence_s)
