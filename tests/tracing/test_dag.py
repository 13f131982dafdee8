"""Attained service and critical path, kept as the program grows."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.errors import TraceError
from autellix.scheduler.tickets import Receipt
from autellix.tracing.dag import ProgramDag


def receipt(call: str, service_s: float, **more) -> Receipt:
    values = {"wait_s": 0.0, "levels": (1,), "preemptions": 0, **more}
    return Receipt(program="p", call=call, service_s=service_s, **values)


def grow(dag: ProgramDag, call: str, *parents: str, kind="llm", start_s=0.0, edge="order") -> float:
    return dag.add_call(
        call,
        kind=kind,
        name="model",
        node=None,
        parents=[(parent, edge) for parent in parents],
        start_s=start_s,
    )


def node(
    dag: ProgramDag, call: str, name: str, *parents: str, service_s: float, start_s: float = 0.0
) -> None:
    dag.add_call(
        call,
        kind="llm",
        name="model",
        node=name,
        parents=[(parent, "order") for parent in parents],
        start_s=start_s,
    )
    dag.finish_call(call, end_s=start_s + service_s, status="done")
    dag.set_receipt(call, receipt(call, service_s))


def serve(dag: ProgramDag, call: str, service_s: float, *parents: str) -> float:
    attained = grow(dag, call, *parents)
    dag.finish_call(call, end_s=service_s, status="done")
    dag.set_receipt(call, receipt(call, service_s))
    return attained


def test_a_root_has_attained_nothing():
    assert serve(ProgramDag("p"), "a", 3.0) == 0.0


def test_in_a_sequence_attained_service_adds_up():
    dag = ProgramDag("p")
    serve(dag, "a", 3.0)
    assert serve(dag, "b", 4.0, "a") == 3.0
    assert serve(dag, "c", 1.0, "b") == 7.0
    assert dag.critical_path_s == 8.0
    assert dag.critical_path() == ["a", "b", "c"]
    assert dag.service_s == 8.0


def test_a_join_inherits_the_longest_branch():
    dag = ProgramDag("p")
    serve(dag, "root", 1.0)
    serve(dag, "short", 2.0, "root")
    serve(dag, "long", 5.0, "root")
    assert serve(dag, "join", 1.0, "short", "long") == 6.0
    assert dag.critical_path() == ["root", "long", "join"]
    assert dag.critical_path_s == 7.0
    assert dag.service_s == 9.0


def test_tools_count_nothing_and_pass_on_what_came_before():
    dag = ProgramDag("p")
    serve(dag, "a", 2.0)
    grow(dag, "search", "a", kind="tool", start_s=2.0)
    dag.finish_call("search", end_s=9.5, status="done")
    assert serve(dag, "b", 1.0, "search") == 2.0
    assert dag.critical_path() == ["a", "search", "b"]
    assert dag.tool_s == 7.5
    assert (dag.llm_calls, dag.tools, dag.tools_done) == (2, 1, 1)


def test_a_receipt_that_comes_late_reaches_the_descendants():
    dag = ProgramDag("p")
    grow(dag, "a")
    grow(dag, "b", "a")
    grow(dag, "c", "b")
    dag.set_receipt("b", receipt("b", 2.0))
    assert dag.attained_s("c") == 2.0
    dag.set_receipt("a", receipt("a", 5.0))
    assert (dag.attained_s("b"), dag.attained_s("c")) == (5.0, 7.0)
    assert dag.critical_path_s == 7.0
    assert dag.critical_path() == ["a", "b"]


def test_a_second_receipt_replaces_the_first():
    dag = ProgramDag("p")
    serve(dag, "a", 5.0)
    serve(dag, "b", 1.0)
    dag.set_receipt("a", receipt("a", 0.5))
    assert dag.critical_path() == ["b"]
    assert dag.critical_path_s == 1.0
    assert dag.service_s == 1.5


def test_totals_sum_the_receipts():
    dag = ProgramDag("p")
    grow(dag, "a")
    grow(dag, "b")
    tokens = {"prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 3}
    dag.set_receipt("a", receipt("a", 1.0, wait_s=0.25, **tokens))
    dag.set_receipt("b", receipt("b", 1.0, wait_s=0.5, **tokens))
    assert dag.wait_s == 0.75
    assert (dag.prompt_tokens, dag.cached_tokens, dag.output_tokens) == (20, 8, 6)


def test_without_service_there_is_no_critical_path():
    dag = ProgramDag("p")
    grow(dag, "a")
    assert dag.critical_path() == []
    assert dag.critical_path_s == 0.0


def test_the_graph_is_a_networkx_digraph_with_call_and_edge_attributes():
    dag = ProgramDag("p")
    serve(dag, "a", 2.0)
    grow(dag, "b", "a", edge="barrier")
    assert isinstance(dag.graph, nx.DiGraph)
    assert dag.graph.edges["a", "b"] == {"kind": "barrier"}
    assert dag.graph.nodes["a"]["service_s"] == 2.0
    assert dag.graph.nodes["b"]["kind"] == "llm"


def test_response_time_leaves_tools_out():
    dag = ProgramDag("p")
    grow(dag, "a", start_s=1.0)
    dag.finish_call("a", end_s=2.0, status="done")
    grow(dag, "tool", "a", kind="tool", start_s=2.0)
    dag.finish_call("tool", end_s=50.0, status="done")
    grow(dag, "b", "tool", start_s=50.0)
    assert dag.response_s(now_s=53.0) == 4.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda dag: grow(dag, "a"), "already has a call 'a'"),
        (lambda dag: grow(dag, "b", "ghost"), "'ghost'; add parents before"),
        (lambda dag: grow(dag, "b", "b"), "'b'; add parents before"),
        (lambda dag: dag.attained_s("ghost"), "no call 'ghost'"),
        (lambda dag: dag.set_receipt("ghost", receipt("ghost", 1.0)), "no call 'ghost'"),
        (lambda dag: dag.finish_call("a", end_s=2.0, status="failed"), "ended before, as 'done'"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(wrong, message):
    dag = ProgramDag("p")
    serve(dag, "a", 1.0)
    with pytest.raises(TraceError, match=message):
        wrong(dag)
    assert list(dag.graph) == ["a"]
    assert dag.critical_path_s == 1.0


@st.composite
def programs(draw) -> tuple[list[tuple[str, list[int]]], list[tuple[int, int, float]]]:
    """Calls as (kind, parents) and receipts as (call, calls that exist by then, service)."""
    size = draw(st.integers(1, 12))
    calls = [
        (
            draw(st.sampled_from(["llm", "llm", "llm", "tool"])),
            draw(st.lists(st.integers(0, place - 1), max_size=4)) if place else [],
        )
        for place in range(size)
    ]
    served = draw(st.permutations([place for place in range(size) if calls[place][0] == "llm"]))
    again = draw(st.lists(st.sampled_from(served), max_size=3)) if served else []
    receipts = [
        (place, draw(st.integers(place + 1, size)), draw(st.integers(0, 40)) / 8)
        for place in [*served, *again]
    ]
    return calls, receipts


@settings(max_examples=300, deadline=None)
@given(programs())
def test_incremental_figures_equal_a_recomputation(program):
    calls, receipts = program
    dag = ProgramDag("p")
    service = dict.fromkeys(range(len(calls)), 0.0)

    def add_up_to(size: int) -> None:
        for place in range(len(dag), size):
            kind, parents = calls[place]
            grow(dag, str(place), *map(str, parents), kind=kind)

    for place, existing, service_s in receipts:
        add_up_to(existing)
        dag.set_receipt(str(place), receipt(str(place), service_s))
        service[place] = service_s
        check(dag, calls, service)
    add_up_to(len(calls))
    check(dag, calls, service)


def check(dag: ProgramDag, calls, service) -> None:
    attained: dict[int, float] = {}
    for place in range(len(dag)):
        attained[place] = max((attained[k] + service[k] for k in calls[place][1]), default=0.0)
        assert dag.attained_s(str(place)) == attained[place]
    totals = [attained[place] + service[place] for place in attained]
    assert dag.critical_path_s == max(totals, default=0.0)
    path = dag.critical_path()
    assert sum(service[int(call)] for call in path) == dag.critical_path_s
    assert all(dag.graph.has_edge(*edge) for edge in pairwise(path))
    assert bool(path) == (dag.critical_path_s > 0)
    assert nx.is_directed_acyclic_graph(dag.graph)
    assert dag.service_s == sum(service[place] for place in attained)


def test_a_call_in_a_long_program_touches_no_more_calls_than_in_a_short_one(monkeypatch):
    """Flat in program size: the work per call is counted, not timed."""
    dag = ProgramDag("p")
    work = 0
    through = dag._through

    def counted(call: str) -> float:
        nonlocal work
        work += 1
        return through(call)

    monkeypatch.setattr(dag, "_through", counted)
    per_call = []
    previous: tuple[str, ...] = ()
    for place in range(2000):
        before = work
        serve(dag, str(place), 1.0, *previous)
        per_call.append(work - before)
        previous = (str(place),)
    assert set(per_call[1:]) == {per_call[1]}
    assert dag.critical_path_s == 2000.0
    assert len(dag.critical_path()) == 2000


def test_edges_between_node_tasks_lead_into_a_later_superstep():
    dag = ProgramDag("p")
    grow(dag, "plan")
    grow(dag, "look up", "plan", kind="tool")
    grow(dag, "left", "look up", edge="trigger")
    grow(dag, "right", "look up", edge="barrier")
    grow(dag, "right again", "right")
    grow(dag, "join", "left", "right again", edge="trigger")
    supersteps = {call: dag.call(call)["superstep"] for call in dag.graph}
    assert supersteps == {
        "plan": 0,
        "look up": 0,
        "left": 1,
        "right": 1,
        "right again": 1,
        "join": 2,
    }


def test_a_calls_chain_is_the_longest_that_it_begins_tools_and_all():
    dag = ProgramDag("p")
    node(dag, "root", "plan", service_s=1.0)
    node(dag, "short", "check", "root", service_s=2.0)
    node(dag, "long", "search", "root", service_s=3.0)
    grow(dag, "tool", "long", kind="tool", start_s=10.0)
    dag.finish_call("tool", end_s=14.0, status="done")
    grow(dag, "outside of a node", "tool", start_s=14.0)
    dag.finish_call("outside of a node", end_s=15.0, status="done")
    dag.set_receipt("outside of a node", receipt("outside of a node", 0.5))
    node(dag, "join", "sum up", "short", "outside of a node", start_s=20.0, service_s=0.25)
    grow(dag, "running", "root")
    dag.add_call(
        "failed", kind="llm", name="m", node="check", parents=[("root", "order")], start_s=0
    )
    dag.finish_call("failed", end_s=9.0, status="failed")
    assert len([*dag.chains()]) == 4
    assert dict(dag.chains(since=0)) == {
        "sum up": 0.25,
        "search": 3.0 + 4.0 + 0.5 + 0.25,
        "check": 2.0 + 0.25,
        "plan": 1.0 + 3.0 + 4.0 + 0.5 + 0.25,
    }


def test_the_chains_of_a_turn_leave_out_the_calls_of_those_before():
    dag = ProgramDag("p")
    node(dag, "first", "chat", service_s=1.0)
    node(dag, "second", "chat", "first", service_s=2.0)
    assert [*dag.chains(since=1)] == [("chat", 2.0)]


def test_an_agent_called_as_a_tool_counts_once():
    dag = ProgramDag("p")
    node(dag, "outer", "supervisor", service_s=1.0)
    grow(dag, "tool", "outer", kind="tool", start_s=1.0)
    node(dag, "inner", "researcher", "tool", start_s=1.5, service_s=8.0)
    dag.finish_call("tool", end_s=10.0, status="done")
    assert dict(dag.chains()) == {"researcher": 8.0, "supervisor": 1.0 + 0.5 + 8.0}
