"""How long tools take, by name: the last few durations of each, as quantiles."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Self

_KEPT = 64
_LEAST = 4
_MOST_NAMES = 1000


class ToolTimes:
    """What has been recorded of tools.

    The last 64 durations of a tool count. Below four of them nothing is said: one odd duration
    would decide. Of more than a thousand tools those that came first are forgotten.
    """

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._deciles: dict[str, tuple[float, ...]] = {}

    def add(self, name: str, seconds: float) -> None:
        """A tool has taken so long."""
        times = self._times.get(name)
        if times is None:
            times = self._times[name] = deque(maxlen=_KEPT)
            if len(self._times) > _MOST_NAMES:
                oldest, _ = self._times.popitem(last=False)
                self._deciles.pop(oldest, None)
        times.append(seconds)
        self._deciles.pop(name, None)

    def to_wire(self) -> dict[str, list[float]]:
        """The durations as plain types, seconds, rounded to a tenth of a millisecond."""
        return {name: [round(s, 4) for s in times] for name, times in self._times.items()}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Iterable[float]]) -> Self:
        """Inverse of :meth:`to_wire`.

        Raises:
            ValueError, TypeError, AttributeError: it is nothing like that.
        """
        made = cls()
        made.add_all(wire)
        return made

    def add_all(self, durations: Mapping[str, Iterable[float]]) -> None:
        """Tools have taken so long, in this order; by name, seconds."""
        for name, times in durations.items():
            for seconds in times:
                self.add(str(name), float(seconds))

    def deciles_s(self, name: str) -> tuple[float, ...]:
        """Nine deciles of its durations, ascending, seconds; none where too little is known."""
        known = self._deciles.get(name)
        if known is None:
            times = sorted(self._times.get(name, ()))
            known = ()
            if len(times) >= _LEAST:
                known = tuple(
                    times[min(len(times) * i // 10, len(times) - 1)] for i in range(1, 10)
                )
            self._deciles[name] = known
        return known
