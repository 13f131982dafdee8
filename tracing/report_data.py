"""What the report page is given: the trace in compact form, with what Python has worked out.

Names and reasons are numbers into ``texts``; calls are numbered over the whole run. The page
unfolds it in ``data.js``: the two files change together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, get_args

from .phases import PhaseKind
from .show import program_causes
from .trace import Trace, TracedCall, TracedProgram
from .waiting import CAUSES, Cause, Waiting

_KINDS: tuple[PhaseKind, ...] = get_args(PhaseKind)
_CAUSE_NAMES: tuple[Cause, ...] = tuple(CAUSES)


def report_data(trace: Trace) -> dict[str, Any]:
    """The trace for the page, as plain JSON types."""
    waiting = Waiting(trace)
    texts = _Texts()
    numbers = {call.id: number for number, call in enumerate(trace.calls())}
    lanes = seat_lanes(waiting)
    calls = [_call(waiting, call, numbers, texts, lanes.get(call.id, ())) for call in trace.calls()]
    engine = trace.engine
    return {
        "run": {
            "engine": engine.kind,
            "model": engine.model,
            "replicas": max(engine.replicas, 1 + max(_replicas(trace), default=0)),
            "seats": waiting.trace.engine.seats,
            "policy": trace.policy,
            "schema": trace.schema,
            "startedAt": trace.started_at,
            "end": _short(trace.end_s),
            "losses": list(trace.losses),
        },
        "phaseKinds": list(_KINDS),
        "causes": [[cause, CAUSES[cause]] for cause in _CAUSE_NAMES],
        "texts": texts.all,
        "programs": [_program(waiting, program, numbers) for program in trace.programs],
        "calls": calls,
    }


def seat_lanes(waiting: Waiting) -> dict[str, list[tuple[int, float, float]]]:
    """Which seat of its replica each call held and when: (lane, start, end) of its runs, by id.

    An engine's seats have no numbers; a call is drawn in the lowest one that is free.
    """
    runs: dict[int | None, list[tuple[float, float, str]]] = defaultdict(list)
    for call in waiting.trace.calls():
        for start_s, end_s in _joined_runs(waiting, call):
            runs[call.replica].append((start_s, end_s, call.id))
    lanes: dict[str, list[tuple[int, float, float]]] = {}
    for found in runs.values():
        lanes |= lowest_lanes(found)
    return lanes


def lowest_lanes(
    stays: Iterable[tuple[float, float, str]],
) -> dict[str, list[tuple[int, float, float]]]:
    """Stays (start, end, id) side by side: each in the lowest lane that is free when it begins.

    Returns:
        (lane, start, end) of each stay, in order, by id.
    """
    lanes: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    free: list[int] = []
    taken: list[tuple[float, int]] = []
    many = 0
    for start_s, end_s, id in sorted(stays):
        while taken and taken[0][0] <= start_s:
            heappush(free, heappop(taken)[1])
        if free:
            lane = heappop(free)
        else:
            lane, many = many, many + 1
        heappush(taken, (end_s, lane))
        lanes[id].append((lane, start_s, end_s))
    return dict(lanes)


def _joined_runs(waiting: Waiting, call: TracedCall) -> list[tuple[float, float]]:
    """Its stays in a seat: running phases with those of another level right after them."""
    joined: list[tuple[float, float]] = []
    for phase in waiting.phases[call.id]:
        if phase.kind != "running":
            continue
        if joined and joined[-1][1] == phase.start_s:
            joined[-1] = (joined[-1][0], phase.end_s)
        else:
            joined.append((phase.start_s, phase.end_s))
    return joined


def _replicas(trace: Trace) -> list[int]:
    return [call.replica for call in trace.calls() if call.replica is not None]


def _program(
    waiting: Waiting, program: TracedProgram, numbers: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "id": program.id,
        "name": program.name,
        "status": program.status,
        "error": program.error,
        "start": _short(program.start_s),
        "end": _short(program.last_s),
        "response": _short(program.response_s),
        "wait": _short(program.wait_s),
        "service": _short(program.service_s),
        "tool": _short(program.tool_s),
        "path": _short(program.critical_path_s),
        "critical": [numbers[id] for id in program.critical_path if id in numbers],
        "first": numbers[program.calls[0].id] if program.calls else 0,
        "count": len(program.calls),
        "causes": _causes(program_causes(waiting, program)),
    }


def _call(
    waiting: Waiting,
    call: TracedCall,
    numbers: Mapping[str, int],
    texts: _Texts,
    lanes: Sequence[tuple[int, float, float]],
) -> list[Any]:
    return [
        call.id,
        call.number,
        int(call.kind == "tool"),
        texts(call.name),
        texts(call.node) if call.node is not None else -1,
        _short(call.start_s),
        _short(call.end_s) if call.end_s is not None else None,
        _short(call.service_s),
        _short(call.wait_s),
        call.replica,
        call.status,
        [call.prompt_tokens, call.cached_tokens, call.output_tokens, call.preemptions],
        [
            value
            for phase in waiting.phases[call.id]
            for value in (
                _KINDS.index(phase.kind),
                _short(phase.start_s),
                _short(phase.end_s),
                phase.level,
            )
        ],
        [value for p in call.parents if p.id in numbers for value in (numbers[p.id], p.kind[0])],
        [
            value
            for event in call.events
            for value in (_short(event.at_s), texts(event.kind), event.level, texts(event.reason))
        ],
        _causes(waiting.causes(call)),
        [value for lane, start, end in lanes for value in (lane, _short(start), _short(end))],
        texts(call.error) if call.error is not None else -1,
        _short(call.first_token_s) if call.first_token_s is not None else None,
    ]


def _causes(causes: Mapping[Cause, float]) -> list[float]:
    """Seconds of each cause, in the order of ``CAUSES``; trailing zeros left out."""
    seconds = [_short(causes.get(cause, 0.0)) for cause in _CAUSE_NAMES]
    while seconds and not seconds[-1]:
        seconds.pop()
    return seconds


def _short(seconds: float) -> float:
    """Microseconds are finer than any pixel."""
    return round(seconds, 6)


class _Texts:
    """Numbers for texts that come again and again."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.all)
            self.all.append(text)
        return number
