"""Who held the seats of a replica and when, so that any stretch of time is answered at once.

Between two changes the number of calls of each level is constant, so what is asked of a stretch is
a difference of two sums over such pieces: the time with a free seat, the seats taken, and of the
time without a free seat the part that belongs to each level when every moment is shared among the
calls that hold seats.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .phases import Phase
from .trace import TracedCall


@dataclass(frozen=True, slots=True)
class Span:
    """A running phase and whose it is."""

    call: TracedCall
    phase: Phase

    def overlap_s(self, other: Phase) -> float:
        """How long it ran during another phase, seconds; both must touch."""
        return min(self.phase.end_s, other.end_s) - max(self.phase.start_s, other.start_s)


class SeatTimes:
    """The seats of one replica over the whole run.

    Attributes:
        seats: how many there are.
    """

    def __init__(self, spans: Sequence[Span], seats: int) -> None:
        """Sort out who ran when.

        Args:
            spans: every running phase on the replica.
            seats: how many the replica has; 0 where that is not known: then the most that were
                taken at once.
        """
        self._spans = _ByTime(spans)
        programs: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            programs[span.call.program].append(span)
        self._programs = {program: _ByTime(found) for program, found in programs.items()}
        changes = sorted(
            change
            for span in spans
            for change in (
                (span.phase.start_s, 1, span.phase.level),
                (span.phase.end_s, -1, span.phase.level),
            )
        )
        taken = list(accumulate(count for _, count, _ in changes))
        self.seats = seats or max(taken, default=0)
        self._sum_up(changes, taken)

    def _sum_up(self, changes: list[tuple[float, int, int]], taken: list[int]) -> None:
        at_s = [change[0] for change in changes]
        is_full = [count >= self.seats for count in taken]
        shares = [1.0 / count if full else 0.0 for count, full in zip(taken, is_full, strict=True)]
        self._taken = _Integral(at_s, taken)
        self._full = _Integral(at_s, [float(full) for full in is_full])
        self._share = _Integral(at_s, shares)
        self._levels: dict[int, _Integral] = {}
        for level in sorted({change[2] for change in changes}):
            held = accumulate(count * (its == level) for _, count, its in changes)
            rates = [count * share for count, share in zip(held, shares, strict=True)]
            self._levels[level] = _Integral(at_s, rates)

    def during(self, phase: Phase) -> list[Span]:
        """The running phases that overlap with a phase."""
        return self._spans.during(phase)

    def of_program(self, program: str, phase: Phase) -> list[Span]:
        """Those of one program."""
        found = self._programs.get(program)
        return found.during(phase) if found else []

    def taken(self, phase: Phase) -> float:
        """How many seats were taken during a phase, on average."""
        return self._taken.over(phase.start_s, phase.end_s) / max(phase.lasts_s, 1e-12)

    def free(self, phase: Phase) -> float:
        """Seconds of a phase in which a seat was free."""
        return max(0.0, phase.lasts_s - self._full.over(phase.start_s, phase.end_s))

    def share_by_level(self, phase: Phase) -> Iterator[tuple[int, float]]:
        """(level, seconds): the time without a free seat, shared among the calls in the seats."""
        for level, integral in self._levels.items():
            yield level, integral.over(phase.start_s, phase.end_s)

    def share_of_one(self, start_s: float, end_s: float) -> float:
        """The share that falls to a single call that held a seat all that time, seconds."""
        return self._share.over(start_s, end_s)


class _ByTime:
    """Running phases, found by time."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans, key=lambda span: span.phase.start_s)
        self._starts = [span.phase.start_s for span in self._spans]
        # Ascending, so the first span that may still run at a given time is found by halving.
        self._latest_ends = list(accumulate((s.phase.end_s for s in self._spans), max))

    def during(self, phase: Phase) -> list[Span]:
        first = bisect_right(self._latest_ends, phase.start_s)
        last = bisect_left(self._starts, phase.end_s)
        return [span for span in self._spans[first:last] if span.phase.end_s > phase.start_s]


class _Integral:
    """A step function summed up: its integral between any two times in logarithmic time."""

    def __init__(self, at_s: Sequence[float], values: Sequence[float]) -> None:
        self._at_s = at_s
        self._values = values
        pieces = (
            value * (later - sooner)
            for sooner, later, value in zip(at_s, at_s[1:], values, strict=False)
        )
        self._sums = list(accumulate(pieces, initial=0.0))

    def over(self, start_s: float, end_s: float) -> float:
        return self._until(end_s) - self._until(start_s)

    def _until(self, at_s: float) -> float:
        place = bisect_right(self._at_s, at_s) - 1
        if place < 0:
            return 0.0
        return self._sums[place] + self._values[place] * (at_s - self._at_s[place])
