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

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from .phases import WAITS, Phase, phases_of
from .seat_times import SeatTimes, Span
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
_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A call that ran while another one waited.

    Attributes:
        seconds: for how long.
        level: its level for the longest part of that, from 1.
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
        seats_taken: how many seats of the replica were taken, on average.
    """

    phase: Phase
    causes: dict[Cause, float]
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
        spans: dict[int | None, list[Span]] = defaultdict(list)
        for call in trace.calls():
            for phase in self.phases[call.id]:
                if phase.kind == "running":
                    spans[call.replica].append(Span(call, phase))
        seats = trace.engine.seats
        self._replicas = {replica: SeatTimes(found, seats) for replica, found in spans.items()}

    def seats(self, replica: int | None) -> int:
        """Seats of a replica: as the trace says, else the most that were taken at once."""
        times = self._replicas.get(replica)
        return times.seats if times else self.trace.engine.seats

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

    def served(self, call: TracedCall, wait: Wait) -> list[Served]:
        """The calls that ran while a call waited, longest first."""
        times = self._replicas.get(call.replica)
        spans = times.during(wait.phase) if times else []
        seconds: Counter[str] = Counter()
        longest: dict[str, Span] = {}
        for span in spans:
            id, overlap_s = span.call.id, span.overlap_s(wait.phase)
            seconds[id] += overlap_s  # type: ignore[assignment]
            if id not in longest or overlap_s > longest[id].overlap_s(wait.phase):
                longest[id] = span
        return [
            Served(
                call=longest[id].call,
                seconds=lasted_s,
                level=longest[id].phase.level,
                standing=_standing(call, wait.phase.level, longest[id]),
            )
            for id, lasted_s in seconds.most_common()
        ]

    def _wait(self, call: TracedCall, phase: Phase) -> Wait:
        times = self._replicas.get(call.replica)
        if phase.kind == "held" or times is None:
            cause: Cause = "held" if phase.kind == "held" else "room"
            return Wait(phase=phase, causes={cause: phase.lasts_s}, seats_taken=0.0)
        if phase.kind == "preempted":
            causes: dict[Cause, float] = {"preempted": phase.lasts_s}
        else:
            causes = self._shared(call, phase, times)
        return Wait(phase=phase, causes=causes, seats_taken=times.taken(phase))

    def _shared(self, call: TracedCall, phase: Phase, times: SeatTimes) -> dict[Cause, float]:
        causes: dict[Cause, float] = defaultdict(float)
        for level, held_s in times.share_by_level(phase):
            causes[_by_level(phase.level, level)] += held_s
        for span in times.of_program(call.program, phase):
            own_s = times.share_of_one(
                max(span.phase.start_s, phase.start_s), min(span.phase.end_s, phase.end_s)
            )
            causes["own"] += own_s
            causes[_by_level(phase.level, span.phase.level)] -= own_s
        free_s = times.free(phase)
        causes["step"] = min(free_s, self.step_s)
        causes["room"] = max(0.0, free_s - self.step_s)
        return {cause: held_s for cause, held_s in causes.items() if held_s > _ROUNDING_S}


def _standing(waiting: TracedCall, level: int, span: Span) -> Cause:
    if span.call.program == waiting.program:
        return "own"
    return _by_level(level, span.phase.level)


def _by_level(waiting: int, running: int) -> Cause:
    if running == waiting:
        return "same"
    return "better" if running < waiting else "worse"
