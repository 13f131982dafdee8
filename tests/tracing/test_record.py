"""The record of a run: what it keeps of the events, and what the views get from it."""

from __future__ import annotations

import jsonschema
import pytest

from autellix.errors import TraceError
from autellix.scheduler.tickets import Receipt
from autellix.tracing.document import load_schema
from autellix.tracing.events import (
    CallEnded,
    CallStarted,
    Event,
    ProgramEnded,
    ProgramStarted,
    ReceiptArrived,
    ReplicaChanged,
    RunStarted,
)
from autellix.tracing.live_rows import program_graph
from autellix.tracing.record import RunRecord
from autellix.tracing.show import replica_lines
from autellix.tracing.snapshot import EngineCalls, ProgramRow, ReplicaRow
from autellix.tracing.trace_fields import trace_from_document

RUN = RunStarted(clock_s=0.0, engine="vllm", model="m", replicas=1, policy="plas")


def started(program: str = "p", at_s: float = 0.0) -> ProgramStarted:
    return ProgramStarted(at_s=at_s, program=program, name="agent")


def begin(call: str, *parents: str, at_s: float = 0.0, kind="llm", name="m") -> CallStarted:
    edges = tuple((parent, "order") for parent in parents)
    return CallStarted(
        at_s=at_s, program="p", call=call, kind=kind, name=name, node=None, parents=edges
    )


def receipt(call: str, service_s: float, tokens: int = 10) -> Receipt:
    return Receipt(
        program="p",
        call=call,
        service_s=service_s,
        wait_s=0.5,
        levels=(1,),
        preemptions=0,
        output_tokens=tokens,
    )


def end(call: str, service_s: float | None = None, at_s: float = 1.0, status="done") -> CallEnded:
    cost = None if service_s is None else receipt(call, service_s)
    return CallEnded(at_s=at_s, call=call, status=status, receipt=cost)


def record_of(*events: Event) -> RunRecord:
    record = RunRecord()
    for event in (RUN, *events):
        record.apply(event)
    return record


def row_of(*events: Event, now_s: float = 10.0, **engine) -> ProgramRow:
    calls = EngineCalls(known=bool(engine), **engine)
    snapshot = record_of(started(), *events).snapshot(now_s, engine=calls)
    (row,) = snapshot.programs
    return row


def test_the_next_call_knows_what_its_parents_cost():
    record = record_of(started(), begin("a"), end("a", 2.0), begin("b", "a"))
    assert record.attained_s("b") == 2.0
    assert record.dag("p").service_s == 2.0
    assert record.dag("p").wait_s == 0.5
    assert "b" in record
    assert "c" not in record


def test_a_receipt_may_come_after_the_end_of_an_aborted_call():
    record = record_of(
        started(),
        begin("a"),
        end("a", status="aborted"),
        ReceiptArrived(at_s=2.0, call="a", receipt=receipt("a", 3.0)),
    )
    (call,) = record.document()["programs"][0]["calls"]
    assert (call["status"], call["service_s"], call["output_tokens"]) == ("aborted", 3.0, 10)


def test_a_second_turn_continues_the_program_and_the_time_between_does_not_count():
    record = record_of(
        started(at_s=1.0),
        begin("a", at_s=1.0),
        end("a", 1.0, at_s=3.0),
        ProgramEnded(at_s=3.0, program="p", status="interrupted"),
        started(at_s=60.0),
        begin("b", "a", at_s=60.0),
        end("b", 1.0, at_s=61.0),
        ProgramEnded(at_s=61.5, program="p", status="done"),
    )
    (program,) = record.document()["programs"]
    assert (program["status"], program["start_s"], program["end_s"]) == ("done", 1.0, 61.5)
    assert program["response_s"] == 3.0
    assert program["critical_path"] == ["a", "b"]


def test_a_failed_program_says_why():
    record = record_of(
        started(), ProgramEnded(at_s=1.0, program="p", status="failed", error="ValueError: no")
    )
    assert record.document()["programs"][0]["error"] == "ValueError: no"


def test_an_unknown_parent_is_left_out_with_a_warning(caplog):
    record = record_of(started(), begin("a"), begin("b", "ghost", "a"))
    assert record.document()["programs"][0]["calls"][1]["parents"] == [{"id": "a", "kind": "order"}]
    assert "parents that the program does not have" in caplog.text
    assert "ghost" in caplog.text


def test_what_does_not_fit_is_left_out_with_a_warning(caplog):
    record = record_of(started(), end("ghost"), begin("a"), begin("a"), end("a", 1.0))
    record.apply(ReceiptArrived(at_s=1.0, call="ghost", receipt=receipt("ghost", 1.0)))
    record.apply(end("a", status="failed"))
    (call,) = record.document()["programs"][0]["calls"]
    assert (call["id"], call["status"]) == ("a", "done")
    assert len(caplog.records) == 3


def test_a_call_of_a_program_that_never_started_opens_it():
    record = record_of()
    assert record.is_empty
    record.apply(begin("a"))
    assert not record.is_empty
    assert [program["id"] for program in record.document()["programs"]] == ["p"]


def test_without_a_run_start_there_is_no_document():
    with pytest.raises(TraceError, match="apply RunStarted before"):
        RunRecord().document()
    with pytest.raises(TraceError, match="no program 'p' has started"):
        RunRecord().dag("p")
    with pytest.raises(TraceError, match="no call 'a' has begun"):
        RunRecord().attained_s("a")


def test_a_later_run_start_completes_the_facts():
    record = record_of(started())
    record.apply(RunStarted(clock_s=0.0, engine="vllm", model="big", replicas=4, policy="atlas"))
    assert record.document()["engine"] == {"kind": "vllm", "model": "big", "replicas": 4}


def test_a_program_with_a_seated_call_is_running():
    levels, places = {"a": 3, "b": 2}, {"b": 0}
    row = row_of(begin("a"), begin("b"), levels=levels, places=places, tokens={"a": 7})
    assert (row.state, row.waits_for, row.level) == ("running", "m 10.0s, 1 queued", 2)
    assert (row.calls_done, row.calls_running, row.calls_waiting) == (0, 1, 1)
    assert row.tokens == 7


def test_calls_of_one_kind_are_counted_in_words():
    row = row_of(begin("a"), begin("b", at_s=1.0), levels={"a": 1, "b": 1})
    assert row.waits_for == "m x2 10.0s"


def test_without_word_from_the_engine_an_open_call_is_taken_to_run():
    row = row_of(begin("a"))
    assert (row.state, row.waits_for, row.level) == ("running", "m 10.0s", None)


def test_a_call_that_the_engine_does_not_have_yet_is_on_its_way():
    row = row_of(begin("a"), levels={"somebody else's": 1})
    assert (row.state, row.waits_for) == ("running", "on its way in")


def test_a_program_whose_calls_all_queue_is_waiting():
    row = row_of(begin("a"), begin("b"), levels={"a": 2, "b": 1}, places={"a": 3, "b": 1})
    assert (row.state, row.waits_for, row.level) == ("waiting", "a seat, 1 ahead", 1)
    assert row_of(begin("a"), places={"a": 0}, levels={"a": 1}).waits_for == "a seat, next"


def test_a_call_that_lost_its_seat_says_so():
    row = row_of(begin("a"), levels={"a": 2}, places={"a": 4}, preempted=frozenset({"a"}))
    assert row.waits_for == "a seat again, 4 ahead"


def test_a_program_in_a_tool_says_which_and_for_how_long():
    tools = (begin("t", kind="tool", name="search"), begin("u", kind="tool", name="read"))
    assert row_of(tools[0]).waits_for == "search 10.0s"
    row = row_of(*tools, now_s=75.0)
    assert (row.state, row.waits_for) == ("in tool", "search +1 1:15")


def test_a_call_inside_a_tool_is_what_the_program_waits_for():
    assert row_of(begin("t", kind="tool", name="sub"), begin("a", "t")).state == "running"


def test_a_program_between_its_calls_runs_its_own_code():
    row = row_of(begin("a"), end("a", 2.0, at_s=4.0))
    assert (row.state, row.waits_for, row.calls_done, row.tokens) == (
        "running",
        "its own code",
        1,
        10,
    )
    assert (row.attained_s, row.critical_path_s, row.wait_s, row.response_s) == (2.0, 2.0, 0.5, 4.0)


@pytest.mark.parametrize("status", ["done", "failed", "interrupted", "cancelled"])
def test_an_ended_program_shows_its_status_and_keeps_its_row(status):
    record = record_of(
        started(), begin("a"), end("a", 2.0), ProgramEnded(at_s=2.0, program="p", status=status)
    )
    row = record.snapshot(5.0).programs[0]
    assert row.state == status
    assert record.snapshot(50.0).programs[0] is row
    record.apply(started(at_s=60.0))
    assert record.snapshot(61.0).programs[0].state == "running"


def test_a_snapshot_counts_programs_calls_and_tokens():
    record = record_of(
        started("p"),
        started("q"),
        started("r"),
        begin("a"),
        end("a", 2.0),
        begin("b"),
        begin("t", kind="tool"),
        end("t"),
        ProgramEnded(at_s=2.0, program="q", status="failed"),
        ProgramEnded(at_s=2.0, program="r", status="done"),
    )
    replicas = (ReplicaRow(index=0, running=1),)
    snapshot = record.snapshot(5.0, replicas=replicas, programs_total=8)
    assert snapshot.replicas == replicas
    assert (snapshot.calls_done, snapshot.tokens_per_s, snapshot.elapsed_s) == (1, 2.0, 5.0)
    counts = (snapshot.programs_running, snapshot.programs_done, snapshot.programs_failed)
    assert counts == (1, 1, 1)
    assert snapshot.programs_total == 8
    assert record.snapshot(5.0).programs_total == 3
    assert record.open_calls("p") == ("b",)
    assert record.open_calls("nobody") == ()


def test_of_many_ended_programs_the_last_ones_are_in_a_snapshot(monkeypatch):
    monkeypatch.setattr("autellix.tracing.record.MOST_ENDED", 2)
    record = record_of(started("live"))
    for name in "abcd":
        record.apply(started(name))
        record.apply(ProgramEnded(at_s=1.0, program=name, status="done"))
    snapshot = record.snapshot(2.0)
    assert [row.id for row in snapshot.programs] == ["live", "c", "d"]
    assert (snapshot.programs_running, snapshot.programs_done) == (1, 4)


def test_the_dag_of_a_program_is_there_for_the_views():
    record = record_of(
        started(),
        begin("a"),
        end("a", 2.0),
        begin("t", "a", kind="tool", name="search", at_s=1.0),
        begin("b", "a", at_s=2.0),
        begin("c", "t", at_s=2.0),
    )
    calls = EngineCalls(levels={"b": 1, "c": 3}, places={"c": 0}, tokens={"b": 5}, known=True)
    graph = record.graph("p", 4.0, engine=calls)
    assert graph is not None
    a, t, b, c = graph.nodes
    assert (a.state, a.took_s, a.wait_s, a.tokens, a.is_critical) == ("done", 2.0, 0.5, 10, True)
    assert (t.kind, t.label, t.state, t.took_s) == ("tool", "search", "running", 3.0)
    assert (b.state, b.level, b.tokens, b.took_s) == ("running", 1, 5, 2.0)
    assert (c.state, c.level, c.parents) == ("waiting", 3, ((1, "order"),))
    assert record.graph("nobody", 4.0) is None


def test_of_a_large_dag_the_newest_calls_are_kept():
    record = record_of(started(), *(begin(str(n), *[str(n - 1)] * (n > 0)) for n in range(9)))
    graph = program_graph(record.dag("p"), 1.0, EngineCalls(), most=3)
    assert (graph.hidden, len(graph.nodes)) == (6, 3)
    assert [node.parents for node in graph.nodes] == [(), ((0, "order"),), ((1, "order"),)]


def test_what_happened_to_replicas_is_in_the_document_and_in_what_is_read_of_it():
    record = RunRecord()
    record.apply(RUN)
    for at_s, replica, state in ((2.0, 1, "lost"), (2.0, 1, "starting"), (30.5, 1, "serving")):
        record.apply(ReplicaChanged(at_s=at_s, replica=replica, state=state))
    record.apply(ReplicaChanged(at_s=40.0, replica=0, state="lost"))
    document = record.document()
    jsonschema.validate(document, load_schema())
    assert document["replica_changes"][0] == {"at_s": 2.0, "replica": 1, "state": "lost"}
    assert replica_lines(trace_from_document(document, "t")) == [
        "replica 1 was lost at 2.0 s and served again at 30.5 s",
        "replica 0 was lost at 40.0 s",
    ]


def test_a_run_without_losses_says_nothing_of_them():
    record = RunRecord()
    record.apply(RUN)
    assert "replica_changes" not in record.document()
