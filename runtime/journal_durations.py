"""How long something takes, as a distribution that can be merged and stays small.

A histogram over logarithmic buckets: bucket i holds durations in (GAMMA^(i-1), GAMMA^i] seconds, so
that any quantile is known within 5 % of its value whatever came in, and two histograms merge by
adding counts (the idea of DDSketch, Masson et al., VLDB 2019). Durations from a microsecond to a
fortnight fall into some 290 buckets, of which only those in use are kept.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Self

GAMMA = 1.1
_LOG_GAMMA = math.log(GAMMA)
_SHORTEST_S, _LONGEST_S = 1e-6, 1e6


class Durations:
    """A distribution of durations, seconds.

    Attributes:
        sum_s: their sum, exactly.
    """

    __slots__ = ("_buckets", "_text", "sum_s")

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._buckets: Counter[int] = Counter()
        self._text: str | None = None

    def __len__(self) -> int:
        """How many durations came in."""
        return self._buckets.total()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Durations)
            and self.sum_s == other.sum_s
            and self._buckets == other._buckets
        )

    __hash__ = None  # type: ignore[assignment]

    def add(self, duration_s: float) -> None:
        """One more."""
        within = min(max(duration_s, _SHORTEST_S), _LONGEST_S)
        self._buckets[math.ceil(math.log(within) / _LOG_GAMMA)] += 1
        self.sum_s += duration_s
        self._text = None

    def merge(self, other: Durations) -> None:
        """Take all of another distribution in."""
        self._buckets += other._buckets
        self.sum_s += other.sum_s
        self._text = None

    def copy(self) -> Durations:
        """The same distribution, on its own from now on."""
        twin = Durations()
        twin.merge(self)
        return twin

    def quantile_s(self, share: float) -> float:
        """The duration that ``share`` (0 to 1) of them do not exceed, within 5 %; 0 of none."""
        rank = share * (len(self) - 1)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen > rank:
                return GAMMA ** (bucket - 0.5)
        return 0.0

    def to_wire(self) -> str:
        """The distribution as text, which is cheap to store: the sum, then bucket:count pairs."""
        if self._text is None:
            pairs = sorted(self._buckets.items())
            parts = (f"{bucket}:{count}" for bucket, count in pairs)
            self._text = " ".join((repr(self.sum_s), *parts))
        return self._text

    @classmethod
    def from_wire(cls, wire: str) -> Self:
        """Inverse of :meth:`to_wire`.

        Raises:
            ValueError, AttributeError: it is no such text.
        """
        made = cls()
        sum_s, *parts = wire.split(" ")
        made.sum_s = float(sum_s)
        pairs = (part.partition(":") for part in parts)
        made._buckets = Counter({int(bucket): int(count) for bucket, _, count in pairs})
        return made
