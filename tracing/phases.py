"""A call's life as a row of phases, told from the scheduler's decisions about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .trace import TracedCall, TracedEvent

PhaseKind = Literal[
    "on its way", "held", "waiting", "preempted", "running", "in tool", "unmeasured"
]
WAITS: frozenset[PhaseKind] = frozenset({"held", "waiting", "preempted"})

# What a call is after each kind of decision; the other kinds only change its level.
_AFTER: dict[str, PhaseKind] = {
    "admission": "on its way",
    "arrival": "waiting",
    "dispatch": "running",
    "resume": "running",
    "preemption": "preempted",
    "leave": "on its way",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a call's life in which its state and its level are the same.

    Attributes:
        kind: "on its way" is between program and engine, either way; "held" is before the queue,
            by admission control; "waiting" and "preempted" are in the queue; "unmeasured" is a
            call whose receipt has not come, or never came.
        start_s, end_s: seconds since the run's start.
        level: from 1; 0 outside of the queue.
        reason: of the decision that began it.
    """

    kind: PhaseKind
    start_s: float
    end_s: float
    level: int = 0
    reason: str = ""

    @property
    def lasts_s(self) -> float:
        """Its length, seconds."""
        return self.end_s - self.start_s


def phases_of(call: TracedCall, until_s: float) -> list[Phase]:
    """The phases of a call, in order, without gaps.

    Args:
        call: any call; a tool is one phase.
        until_s: a call that still runs counts up to here, seconds since the run's start.
    """
    end_s = max(call.start_s, until_s if call.end_s is None else call.end_s)
    if call.kind == "tool":
        return [Phase(kind="in tool", start_s=call.start_s, end_s=end_s)]
    if not call.events:
        return [Phase(kind="unmeasured", start_s=call.start_s, end_s=end_s)]
    phases: list[Phase] = []
    kind: PhaseKind = "on its way"
    level, reason, since_s = 0, "", call.start_s
    for event in call.events:
        at_s = max(since_s, event.at_s)
        if at_s > since_s:
            phases.append(Phase(kind=kind, start_s=since_s, end_s=at_s, level=level, reason=reason))
        kind, level = _next(kind, event)
        reason, since_s = event.reason, at_s
    if end_s > since_s:
        phases.append(Phase(kind=kind, start_s=since_s, end_s=end_s, level=level, reason=reason))
    admission = next((event for event in call.events if event.kind == "admission"), None)
    return phases if admission is None else list(_with_hold(call, phases, admission))


def _with_hold(
    call: TracedCall, phases: Sequence[Phase], admission: TracedEvent
) -> Iterator[Phase]:
    """The phases with the hold cut out: it ended when admission control let the call in.

    How long it was is what the call's wait has beside the waits in the queue.
    """
    held_s = call.wait_s - sum(phase.lasts_s for phase in phases if phase.kind in WAITS)
    for phase in phases:
        begin_s = max(phase.start_s, phase.end_s - held_s)
        if phase.end_s != admission.at_s or phase.kind != "on its way" or begin_s >= phase.end_s:
            yield phase
            continue
        if begin_s > phase.start_s:
            yield replace(phase, end_s=begin_s)
        yield Phase(
            kind="held",
            start_s=begin_s,
            end_s=phase.end_s,
            level=admission.level,
            reason=admission.reason,
        )


def _next(kind: PhaseKind, event: TracedEvent) -> tuple[PhaseKind, int]:
    following = _AFTER.get(event.kind, kind)
    return following, 0 if following == "on its way" else event.level
