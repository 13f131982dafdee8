"""A trace for ui.perfetto.dev and chrome://tracing, in the Trace Event Format.

Replicas are processes and seats their threads; a call's stay in a seat is a slice, with a slice for
each level inside it. Tools stand in a process of their own. Edges of the DAG are flows, waits are
asynchronous slices of the replica, and the number of waiting calls is a counter.

Times are whole nanoseconds, written as microseconds: rounding alone must not make slices overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from .phases import WAITS
from .report_data import lowest_lanes, seat_lanes
from .trace import Trace, TracedCall
from .waiting import Waiting

_Event = dict[str, Any]
_TOOLS = 0  # the process of what happens outside of the engine


class _Stay(NamedTuple):
    """Where a call was and when; processes and threads as in the file, times in nanoseconds."""

    process: int
    thread: int
    start: int
    end: int


def perfetto_document(trace: Trace) -> dict[str, Any]:
    """The trace as an object of the Trace Event Format (JSON)."""
    waiting = Waiting(trace)
    stays = _stays(waiting)
    events = [
        *_slices(waiting, stays),
        *_flows(trace, stays),
        *_waits(waiting),
        *_counters(waiting),
    ]
    # Of those that begin together the longer one comes first: it is the one outside.
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "engine": trace.engine.kind,
            "model": trace.engine.model,
            "policy": trace.policy,
        },
        "traceEvents": [*_names(stays), *events],
    }


def _stays(waiting: Waiting) -> dict[str, list[_Stay]]:
    """Where every call was, in order, by its id."""
    trace = waiting.trace
    stays = {
        id: [_Stay(_process(trace.by_id[id]), n + 1, _ns(s), _ns(e)) for n, s, e in lanes]
        for id, lanes in seat_lanes(waiting).items()
    }
    tools = [
        (call.start_s, call.end_s, call.id)
        for call in trace.calls()
        if call.kind == "tool" and call.end_s is not None
    ]
    for id, lanes in lowest_lanes(tools).items():
        stays[id] = [_Stay(_TOOLS, n + 1, _ns(s), _ns(e)) for n, s, e in lanes]
    return stays


def _process(call: TracedCall) -> int:
    return (call.replica or 0) + 1


def _slices(waiting: Waiting, stays: dict[str, list[_Stay]]) -> Iterator[_Event]:
    for id, found in stays.items():
        call = waiting.trace.by_id[id]
        for stay in found:
            yield _slice(call.title, call.kind, stay, stay.start, stay.end, _args(call))
            for phase in waiting.phases[id]:
                start, end = _ns(phase.start_s), _ns(phase.end_s)
                if phase.kind == "running" and stay.start <= start and end <= stay.end:
                    why = {"reason": phase.reason}
                    yield _slice(f"level {phase.level}", "level", stay, start, end, why)


def _slice(
    name: str, category: str, stay: _Stay, start: int, end: int, args: dict[str, Any]
) -> _Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": stay.process,
        "tid": stay.thread,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": args,
    }


def _args(call: TracedCall) -> dict[str, Any]:
    args: dict[str, Any] = {"program": call.program, "call": call.id, "status": call.status}
    if call.kind == "llm":
        args |= {
            "number": call.number,
            "service_s": call.service_s,
            "wait_s": call.wait_s,
            "attained_s": call.attained_s,
            "prompt_tokens": call.prompt_tokens,
            "cached_tokens": call.cached_tokens,
            "output_tokens": call.output_tokens,
            "preemptions": call.preemptions,
        }
    return args


def _flows(trace: Trace, stays: dict[str, list[_Stay]]) -> Iterator[_Event]:
    number = 0
    for call in trace.calls():
        for parent in call.parents:
            if not stays.get(parent.id) or not stays.get(call.id):
                continue  # one of the two was never in a seat
            number += 1
            before, after = stays[parent.id][-1], stays[call.id][0]
            flow = {"name": parent.kind, "cat": "dag", "id": number}
            # A flow leaves from inside its slice, so at its last nanosecond.
            leaves = max(before.start, before.end - 1) / 1000
            enters = max(after.start / 1000, leaves)
            yield {"ph": "s", **flow, "pid": before.process, "tid": before.thread, "ts": leaves}
            yield {
                "ph": "f",
                "bp": "e",
                **flow,
                "pid": after.process,
                "tid": after.thread,
                "ts": enters,
            }


def _waits(waiting: Waiting) -> Iterator[_Event]:
    for call in waiting.trace.calls():
        if call.kind != "llm":
            continue
        for phase in waiting.phases[call.id]:
            if phase.kind in WAITS and phase.end_s > phase.start_s:
                event = {
                    "name": phase.kind,
                    "cat": "wait",
                    "id": f"{call.id}@{_ns(phase.start_s)}",
                    "pid": _process(call),
                    "tid": 0,
                }
                args = {"program": call.program, "call": call.id, "level": phase.level}
                yield {"ph": "b", **event, "ts": _ns(phase.start_s) / 1000, "args": args}
                yield {"ph": "e", **event, "ts": _ns(phase.end_s) / 1000}


def _counters(waiting: Waiting) -> Iterator[_Event]:
    changes: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for call in waiting.trace.calls():
        for phase in waiting.phases[call.id]:
            if phase.kind in WAITS:
                changes[_process(call)][_ns(phase.start_s)] += 1
                changes[_process(call)][_ns(phase.end_s)] -= 1
    for process, found in changes.items():
        count = 0
        for at, change in sorted(found.items()):
            count += change
            yield {
                "ph": "C",
                "name": "waiting calls",
                "pid": process,
                "tid": 0,
                "ts": at / 1000,
                "args": {"calls": count},
            }


def _names(stays: dict[str, list[_Stay]]) -> Iterator[_Event]:
    threads: dict[int, int] = defaultdict(int)
    for found in stays.values():
        for stay in found:
            threads[stay.process] = max(threads[stay.process], stay.thread)
    for process, most in sorted(threads.items()):
        name = "tools" if process == _TOOLS else f"replica {process - 1}"
        yield _name("process_name", process, 0, {"name": name})
        yield _name("process_sort_index", process, 0, {"sort_index": process})
        for thread in range(1, most + 1):
            what = "tool" if process == _TOOLS else "seat"
            yield _name("thread_name", process, thread, {"name": f"{what} {thread}"})


def _name(kind: str, process: int, thread: int, args: dict[str, Any]) -> _Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
