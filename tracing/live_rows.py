"""From the record of a program to what the views show of it: its row and its DAG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .dag import CallAttributes, ProgramDag
from .notation import brief_seconds
from .snapshot import CallNode, EngineCalls, NodeState, ProgramGraph, ProgramRow, ProgramState

if TYPE_CHECKING:
    from .program import ProgramRecord

MOST_NODES = 400


def program_row(record: ProgramRecord, now_s: float, engine: EngineCalls) -> ProgramRow:
    """The program at this moment.

    Args:
        record: the program.
        now_s: seconds since the run's start.
        engine: where its live calls are.
    """
    calls = [call for call, event in record.open.items() if event.kind == "llm"]
    seatless = [call for call in calls if call in engine.places]
    dag = record.dag
    state, waits_for = _state(record, calls, seatless, now_s, engine)
    return ProgramRow(
        id=record.id,
        name=record.name,
        state=state,
        level=min((engine.levels[call] for call in calls if call in engine.levels), default=None),
        calls_done=dag.llm_done,
        calls_running=len(calls) - len(seatless),
        calls_waiting=len(seatless),
        tools=dag.tools,
        tokens=dag.output_tokens + sum(engine.tokens.get(call, 0) for call in calls),
        attained_s=dag.service_s,
        critical_path_s=dag.critical_path_s,
        wait_s=dag.wait_s,
        response_s=dag.response_s(now_s),
        waits_for=waits_for,
    )


def program_graph(
    dag: ProgramDag, now_s: float, engine: EngineCalls, most: int = MOST_NODES
) -> ProgramGraph:
    """The DAG of a program at this moment.

    Args:
        dag: the calls.
        now_s: seconds since the run's start.
        engine: where its live calls are.
        most: the newest so many calls are kept.
    """
    ids = list(dag.graph)
    hidden = max(0, len(ids) - most)
    places = {call: place for place, call in enumerate(ids[hidden:])}
    critical = set(dag.critical_path())
    nodes = (_node(dag, call, places, call in critical, now_s, engine) for call in places)
    return ProgramGraph(program=dag.program, nodes=tuple(nodes), hidden=hidden)


def _node(
    dag: ProgramDag,
    call: str,
    places: dict[str, int],
    is_critical: bool,
    now_s: float,
    engine: EngineCalls,
) -> CallNode:
    of = dag.call(call)
    receipt = of["receipt"]
    tokens = receipt.output_tokens if receipt else engine.tokens.get(call, 0)
    return CallNode(
        kind=of["kind"],
        label=(of["name"] if of["kind"] != "llm" else of["node"] or of["name"]),
        state=_node_state(of, call, engine),
        superstep=of["superstep"] + 1,
        took_s=_took_s(of, now_s),
        wait_s=receipt.wait_s if receipt else 0.0,
        tokens=tokens,
        level=receipt.levels[-1] if receipt and receipt.levels else engine.levels.get(call),
        is_critical=is_critical,
        parents=tuple(
            (places[parent], kind) for parent, kind in dag.parents(call) if parent in places
        ),
    )


def _node_state(of: CallAttributes, call: str, engine: EngineCalls) -> NodeState:
    if of["status"] != "running":
        return of["status"]
    return "waiting" if of["kind"] == "llm" and call in engine.places else "running"


def _took_s(of: CallAttributes, now_s: float) -> float:
    if of["receipt"] is not None or of["kind"] == "earlier":
        return of["service_s"]
    end_s = now_s if of["end_s"] is None else of["end_s"]
    return max(0.0, end_s - of["start_s"])


def _state(
    record: ProgramRecord,
    calls: Sequence[str],
    seatless: Sequence[str],
    now_s: float,
    engine: EngineCalls,
) -> tuple[ProgramState, str]:
    if record.status != "running":
        return record.status, "a person" if record.status == "interrupted" else ""
    if calls and len(seatless) == len(calls):
        return "waiting", _queue_words(seatless, engine)
    if calls:
        return "running", _engine_words(record, calls, now_s, engine)
    tools = [event for event in record.open.values() if event.kind == "tool"]
    if tools:
        more = f" +{len(tools) - 1}" if len(tools) > 1 else ""
        return "in tool", f"{tools[0].name}{more} {brief_seconds(now_s - tools[0].at_s)}"
    return "running", "its own code"


def _queue_words(seatless: Sequence[str], engine: EngineCalls) -> str:
    """What calls without a seat wait for: the one that gets its seat first counts."""
    first = min(seatless, key=engine.places.__getitem__)
    before = engine.places[first]
    what = "a seat again" if first in engine.preempted else "a seat"
    return f"{what}, {before} ahead" if before else f"{what}, next"


def _engine_words(
    record: ProgramRecord, calls: Sequence[str], now_s: float, engine: EngineCalls
) -> str:
    """What runs: ``expand x3 1.2s``, and how many of its calls are queued meanwhile."""
    seated = [call for call in calls if call in engine.levels and call not in engine.places]
    if not seated and engine.known:
        return "on its way in"
    running = [record.open[call] for call in seated or calls]
    (name, many), *_ = Counter(event.node or event.name for event in running).most_common(1)
    since_s = now_s - min(event.at_s for event in running)
    text = f"{name}{f' x{many}' if many > 1 else ''} {brief_seconds(since_s)}"
    queued = sum(call in engine.places for call in calls)
    return f"{text}, {queued} queued" if queued else text
