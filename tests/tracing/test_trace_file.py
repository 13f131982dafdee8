"""The trace document, its schema, and the file that survives a crash."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from threading import Thread
from typing import get_args

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.errors import TraceError
from autellix.scheduler.tickets import Decision, DecisionKind, Receipt
from autellix.tracing.document import load_schema
from autellix.tracing.events import (
    CallEnded,
    CallStarted,
    Event,
    ProgramEnded,
    ProgramStarted,
    ReceiptArrived,
    RunStarted,
    event_from_wire,
    event_to_wire,
)
from autellix.tracing.record import RunRecord
from autellix.tracing.trace_file import rebuild
from autellix.tracing.writer import TraceWriter, part_of

RUN = RunStarted(clock_s=100.0, engine="vllm", model="smollm2", replicas=1, policy="atlas")


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(load_schema())


def document_of(events: list[Event]) -> dict:
    record = RunRecord()
    for event in events:
        record.apply(event)
    return record.document()


def write(path: Path, events: list[Event]) -> tuple[TraceWriter, RunRecord]:
    writer = TraceWriter(path)
    record = RunRecord(sink=writer.write)
    for event in events:
        record.apply(event)
    return writer, record


def test_events_survive_their_lines(small_run):
    for event in small_run:
        assert event_from_wire(json.loads(json.dumps(event_to_wire(event)))) == event


def test_while_the_run_lasts_events_are_in_the_part_file(tmp_path: Path, small_run):
    writer, _ = write(tmp_path / "t.json", small_run)
    lines = writer.part.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines][:3] == [
        "run_started",
        "program_started",
        "call_started",
    ]
    assert not writer.path.exists()
    writer.abandon()


def test_close_puts_the_document_in_place_of_the_part_file(tmp_path: Path, small_run):
    writer, record = write(tmp_path / "t.json", small_run)
    (tmp_path / "t.json").write_text("an older trace")
    writer.close(record.document())
    assert json.loads(writer.path.read_text()) == record.document()
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    writer.close({})
    writer.write(RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_a_document_without_programs_is_json(tmp_path: Path):
    writer, record = write(tmp_path / "t.json", [RUN])
    writer.close(record.document())
    assert json.loads(writer.path.read_text())["programs"] == []


def test_text_of_any_kind_survives(tmp_path: Path):
    name = 'naïve "agent"\n\ud800 日本\u2028'
    events = [RUN, ProgramStarted(at_s=0.0, program="p", name=name)]
    writer, record = write(tmp_path / "t.json", events)
    assert rebuild(writer.part) == record.document()
    writer.close(record.document())
    assert json.loads(writer.path.read_text())["programs"][0]["name"] == name


def test_a_run_that_never_began_leaves_no_file(tmp_path: Path):
    writer = TraceWriter(tmp_path / "t.json")
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_trace_needs_a_name():
    with pytest.raises(TraceError, match="needs the name of a file"):
        TraceWriter("")


def test_a_crash_in_the_last_line_loses_that_line_only(tmp_path: Path, small_run):
    writer, _ = write(tmp_path / "t.json", small_run)
    writer.abandon()
    whole = writer.part.read_bytes()
    writer.part.write_bytes(whole[:-20])
    assert rebuild(writer.part) == document_of(small_run[:-1])


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, small_run):
    writer, _ = write(tmp_path / "t.json", small_run)
    writer.abandon()
    lines = writer.part.read_text().splitlines()
    lines[2] = lines[2][:30]
    writer.part.write_text("\n".join(lines))
    with pytest.raises(TraceError, match=r"line 3 of .*delete the line"):
        rebuild(writer.part)


def test_a_part_file_without_a_run_start_is_refused(tmp_path: Path):
    part = tmp_path / "t.json.part"
    part.write_text("")
    with pytest.raises(TraceError, match="holds no run's start"):
        rebuild(part)
    with pytest.raises(TraceError, match=r"cannot be read: No such file.*check the name"):
        rebuild(tmp_path / "absent.part")


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path):
    with pytest.raises(TraceError, match=r"does not exist; create it"):
        TraceWriter(tmp_path / "no" / "t.json")
    with pytest.raises(TraceError, match=r"is a folder; name a file in it"):
        TraceWriter(tmp_path)
    part_of(tmp_path / "t.json").mkdir()
    with pytest.raises(TraceError, match=r"Is a directory; check the permissions"):
        TraceWriter(tmp_path / "t.json")


def test_two_runs_cannot_write_the_same_trace(tmp_path: Path):
    first = TraceWriter(tmp_path / "t.json")
    with pytest.raises(TraceError, match="being written by another run; choose another"):
        TraceWriter(tmp_path / "t.json")
    first.abandon()


def test_what_a_crashed_run_left_is_kept(tmp_path: Path, small_run):
    crashed, _ = write(tmp_path / "t.json", small_run)
    crashed.abandon()
    writer, record = write(tmp_path / "t.json", [RUN])
    writer.close(record.document())
    assert rebuild(tmp_path / "t.json.part.old") == document_of(small_run)


def test_a_document_that_cannot_be_written_leaves_the_part_file(tmp_path: Path, small_run):
    writer, record = write(tmp_path / "t.json", small_run)
    (tmp_path / "t.json").mkdir()
    with pytest.raises(TraceError, match=r"cannot be written: .* is in .*t.json.part"):
        writer.close(record.document())
    assert rebuild(writer.part) == record.document()
    assert not (tmp_path / "t.json.tmp").exists()


def test_a_full_disk_does_not_disturb_the_run(tmp_path: Path, caplog):
    writer = TraceWriter(tmp_path / "t.json")

    class Full:
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    assert writer._file is not None
    writer._file.close()
    writer._file = Full()  # type: ignore[assignment]
    writer.write(RUN)
    writer.write(RUN)
    assert [record.message for record in caplog.records] == [
        f"trace: cannot append to {writer.part} (No space left on device); the run goes on, its "
        "trace survives only if the document can be written at the end"
    ]


def test_threads_may_report_at_once(tmp_path: Path):
    writer, record = write(tmp_path / "t.json", [RUN])
    receipt = Receipt(program="p", call="a", service_s=0.5, wait_s=0.25, levels=(1,), preemptions=0)

    def run_program(program: str) -> None:
        record.apply(ProgramStarted(at_s=0.0, program=program, name=program))
        for place in range(50):
            call = f"{program}/{place}"
            parents = ((f"{program}/{place - 1}", "order"),) if place else ()
            record.apply(
                CallStarted(
                    at_s=1.0, program=program, call=call, kind="llm", name="m", parents=parents
                )
            )
            record.apply(CallEnded(at_s=2.0, call=call, status="done", receipt=receipt))

    threads = [Thread(target=run_program, args=(f"p{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    document = record.document()
    assert [len(program["calls"]) for program in document["programs"]] == [50] * 8
    assert rebuild(writer.part) == document
    writer.abandon()


receipts = st.builds(
    Receipt,
    program=st.just("p"),
    call=st.just("c"),
    service_s=st.floats(0, 100),
    wait_s=st.floats(0, 100),
    levels=st.lists(st.integers(1, 8), max_size=3).map(tuple),
    preemptions=st.integers(0, 3),
    output_tokens=st.integers(0, 100),
    replica=st.integers(0, 3),
    decisions=st.lists(
        st.builds(
            Decision,
            at_s=st.floats(100, 200),
            kind=st.sampled_from(get_args(DecisionKind)),
            level=st.integers(1, 8),
            cause=st.text(max_size=5),
        ),
        max_size=2,
    ).map(tuple),
)
names = st.sampled_from(["p", "q"])
ids = st.sampled_from("abcdef")
errors = st.none() | st.text(max_size=5)
times = st.floats(0, 1000)
# Any order at all, also ends before starts and parents that never began.
events = st.one_of(
    st.builds(ProgramStarted, at_s=times, program=names, name=st.text(max_size=5)),
    st.builds(
        ProgramEnded,
        at_s=times,
        program=names,
        status=st.sampled_from(["done", "failed", "interrupted", "cancelled"]),
        error=errors,
    ),
    st.builds(
        CallStarted,
        at_s=times,
        program=names,
        call=ids,
        kind=st.sampled_from(["llm", "tool"]),
        name=st.text(max_size=5),
        node=st.none() | st.text(max_size=5),
        parents=st.lists(
            st.tuples(ids, st.sampled_from(["order", "trigger", "barrier"])), max_size=3
        ).map(tuple),
    ),
    st.builds(
        CallEnded,
        at_s=times,
        call=ids,
        status=st.sampled_from(["done", "failed", "aborted"]),
        error=errors,
        receipt=st.none() | receipts,
        first_token_s=st.none() | times,
    ),
    st.builds(ReceiptArrived, at_s=times, call=ids, receipt=receipts),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=30), st.data())
def test_any_stream_gives_a_valid_document_and_rebuilds_to_it(stream: list[Event], data):
    stream = [RUN, *stream]
    with tempfile.TemporaryDirectory() as folder:
        writer, record = write(Path(folder) / "t.json", stream)
        document = record.document()
        validator().validate(document)
        for program in document["programs"]:
            ids_so_far: set[str] = set()
            for call in program["calls"]:
                assert {parent["id"] for parent in call["parents"]} <= ids_so_far
                ids_so_far.add(call["id"])
            assert set(program["critical_path"]) <= ids_so_far
        assert rebuild(writer.part) == document

        lines = writer.part.read_bytes().splitlines(keepends=True)
        torn = data.draw(st.integers(1, len(lines[-1]) - 2), label="bytes of the last line")
        writer.part.write_bytes(b"".join(lines[:-1]) + lines[-1][:torn])
        if len(lines) > 1:
            assert rebuild(writer.part) == document_of(stream[:-1])

        writer.close(document)
        assert json.loads(writer.path.read_text()) == document
