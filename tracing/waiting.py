"""Why calls waited: who held the seats meanwhile, and what else kept them.

While a call waits, each moment goes to a cause:

1. before the queue it is *held* by admission control;
2. after it has lost its seat it is *preempted*;
3. while every seat of its replica is taken, the moment is shared among the calls that hold them, by
   how they stand to the waiting one: of its *own* program, *better* placed, of the *same* level, or
   *worse* placed (they may keep a seat they have);
4. while a seat is free, up to one engine step is the wait for the next *step*; what is longer is
   for *room*: KV cache or the step's token budget.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import median
from typing import Literal

from .phases import WAITS, Phase, phases_of
from .trace import Trace, TracedCall

Cause = Literal["held", "preempted", "own", "better", "same", "worse", "step", "room"]
CAUSES: dict[Cause, str] = {
    "held": "held by admission control",
    "preempted": "lost its seat",
    "own": "its own program's other calls had the seats",
    "better": "calls of a better level had the seats",
    "same": "calls of the same level had the seats",
    "worse": "calls of a worse level kept the seats they had",
    "step": "the next engine step",
    "room": "room in the KV cache or in the step",
}
_DEFAULT_STEP_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A call that ran while another one waited.

    Attributes:
        seconds: for how long.
        level: its level at the end of that, from 1.
        standing: how it stood to the waiting call.
    """

    call: TracedCall
    seconds: float
    level: int
    standing: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One wait of a call.

    Attributes:
        phase: when, and at which level.
        causes: seconds by cause; their sum is the wait's length.
        served: the calls that ran meanwhile, longest first.
        seats_taken: how many seats of the replica were taken, on average.
    """

    phase: Phase
    causes: dict[Cause, float]
    served: tuple[Served, ...]
    seats_taken: float


class Waiting:
    """Answers, for one trace, what its calls waited for.

    Attributes:
        trace: the trace.
        phases: the phases of every call, by its id.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.phases = {call.id: phases_of(call, trace.end_s) for call in trace.calls()}
        self._replicas = _running_by_replica(trace, self.phases)

    def seats(self, replica: int | None) -> int:
        """Seats of a replica: as the trace says, else the most that were taken at once."""
        if self.trace.engine.seats:
            return self.trace.engine.seats
        running = self._replicas.get(replica)
        return running.most_at_once if running else 0

    @cached_property
    def step_s(self) -> float:
        """A typical engine step, seconds: the median call's service per token it generated."""
        steps = [c.service_s / c.output_tokens for c in self.trace.calls() if c.output_tokens]
        return median(steps) if steps else _DEFAULT_STEP_S

    def waits(self, call: TracedCall) -> list[Wait]:
        """The waits of a call, in order."""
        return [self._wait(call, p) for p in self.phases[call.id] if p.kind in WAITS]

    def causes(self, call: TracedCall) -> Counter[Cause]:
        """Seconds that a call waited, by cause."""
        total: Counter[Cause] = Counter()
        for wait in self.waits(call):
            total.update(wait.causes)
        return total

    def _wait(self, call: TracedCall, phase: Phase) -> Wait:
        running = self._replicas.get(call.replica)
        spans = running.during(phase.start_s, phase.end_s) if running else []
        spans = [span for span in spans if span.call is not call]
        lasts_s = phase.lasts_s
        taken_s = sum(span.overlap_s(phase) for span in spans)
        causes: dict[Cause, float] = {}
        if phase.kind == "held":
            causes["held"] = lasts_s
        elif phase.kind == "preempted":
            causes["preempted"] = lasts_s
        else:
            causes = self._shared(call, phase, spans)
        return Wait(
            phase=phase,
            causes=causes,
            served=_served(call, phase, spans),
            seats_taken=taken_s / lasts_s if lasts_s > 0 else 0.0,
        )

    def _shared(self, call: TracedCall, phase: Phase, spans: list[_Span]) -> dict[Cause, float]:
        causes: dict[Cause, float] = defaultdict(float)
        seats, free_s = self.seats(call.replica), 0.0
        for seconds, standings in _moments(call, phase, spans):
            taken = standings.total()
            if not seats or taken < seats:
                free_s += seconds
                continue
            for standing, count in standings.items():
                causes[standing] += seconds * count / taken
        if free_s > 0:
            causes["step"] = min(free_s, self.step_s)
        if free_s > self.step_s:
            causes["room"] = free_s - self.step_s
        return dict(causes)


def _standing(waiting: TracedCall, level: int, span: _Span) -> Cause:
    if span.call.program == waiting.program:
        return "own"
    if span.phase.level == level:
        return "same"
    return "better" if span.phase.level < level else "worse"


def _moments(
    call: TracedCall, phase: Phase, spans: list[_Span]
) -> Iterator[tuple[float, Counter[Cause]]]:
    """The wait cut where a seat changes hands: how long, and who held how many seats."""
    turns: list[tuple[float, int, Cause]] = []
    for span in spans:
        standing = _standing(call, phase.level, span)
        turns.append((max(span.phase.start_s, phase.start_s), 1, standing))
        turns.append((min(span.phase.end_s, phase.end_s), -1, standing))
    turns.sort(key=lambda turn: turn[0])
    holders: Counter[Cause] = Counter()
    since_s = phase.start_s
    for at_s, change, standing in turns:
        if at_s > since_s:
            yield at_s - since_s, holders
            since_s = at_s
        holders[standing] += change
    if phase.end_s > since_s:
        yield phase.end_s - since_s, holders


def _served(call: TracedCall, phase: Phase, spans: list[_Span]) -> tuple[Served, ...]:
    seconds: Counter[str] = Counter()
    last: dict[str, _Span] = {}
    for span in spans:
        seconds[span.call.id] += span.overlap_s(phase)  # type: ignore[assignment]
        last[span.call.id] = span
    return tuple(
        Served(
            call=last[id].call,
            seconds=lasted,
            level=last[id].phase.level,
            standing=_standing(call, phase.level, last[id]),
        )
        for id, lasted in seconds.most_common()
    )


# Who ran when.


@dataclass(frozen=True, slots=True)
class _Span:
    call: TracedCall
    phase: Phase

    def overlap_s(self, other: Phase) -> float:
        return min(self.phase.end_s, other.end_s) - max(self.phase.start_s, other.start_s)


class _Running:
    """The running phases of one replica, found by time."""

    def __init__(self, spans: list[_Span]) -> None:
        self._spans = sorted(spans, key=lambda span: span.phase.start_s)
        self._starts = [span.phase.start_s for span in self._spans]
        # Ascending, so the first span that may still run at a given time is found by halving.
        self._latest_ends = list(accumulate((s.phase.end_s for s in self._spans), max))

    def during(self, start_s: float, end_s: float) -> list[_Span]:
        first = bisect_right(self._latest_ends, start_s)
        last = bisect_left(self._starts, end_s)
        return [span for span in self._spans[first:last] if span.phase.end_s > start_s]

    @cached_property
    def most_at_once(self) -> int:
        turns = [(span.phase.start_s, 1) for span in self._spans]
        turns += [(span.phase.end_s, -1) for span in self._spans]
        return max(accumulate(change for _, change in sorted(turns)), default=0)


def _running_by_replica(trace: Trace, phases: dict[str, list[Phase]]) -> dict[int | None, _Running]:
    spans: dict[int | None, list[_Span]] = defaultdict(list)
    for call in trace.calls():
        for phase in phases[call.id]:
            if phase.kind == "running":
                spans[call.replica].append(_Span(call, phase))
    return {replica: _Running(found) for replica, found in spans.items()}
