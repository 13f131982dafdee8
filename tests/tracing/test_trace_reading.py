"""A trace is read in whatever form it lies there, and what is lost of it is said."""

from __future__ import annotations

import copy
import gzip
import json
import random
from pathlib import Path

import jsonschema
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.errors import TraceError, UsageError
from autellix.tracing.document import load_schema
from autellix.tracing.events import SCHEMA_VERSION
from autellix.tracing.record import RunRecord
from autellix.tracing.trace import Trace
from autellix.tracing.trace_fields import trace_from_document
from autellix.tracing.trace_file import OLDEST_VERSION, read_trace
from autellix.tracing.writer import TraceWriter, document_lines, part_of, write_document
from tests.tracing.simulated import document_of, simulated_run

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="module")
def events():
    return simulated_run(4, 6)


@pytest.fixture(scope="module")
def document(events):
    return document_of(events)


def same(trace: Trace, document: dict) -> bool:
    whole = trace_from_document(document, "the document")
    return (trace.programs, trace.engine, trace.policy) == (
        whole.programs,
        whole.engine,
        whole.policy,
    )


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.json.zst", "t.anything"])
def test_a_document_is_read_back_however_it_is_compressed(tmp_path, document, name):
    path = tmp_path / name
    write_document(document, path)
    trace = read_trace(path)
    assert same(trace, document)
    assert trace.losses == ()
    assert trace.schema == SCHEMA_VERSION


def test_the_compression_is_what_the_name_says_and_what_the_bytes_say_is_read(tmp_path, document):
    text = "".join(document_lines(document)).encode()
    write_document(document, tmp_path / "t.json.gz")
    write_document(document, tmp_path / "t.json.zst")
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == text
    packed = (tmp_path / "t.json.zst").read_bytes()
    assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == text
    assert len(packed) < len(text) / 4
    (tmp_path / "misnamed.json").write_bytes(packed)
    assert same(read_trace(tmp_path / "misnamed.json"), document)


@pytest.mark.parametrize("name", ["t.json", "t.json.zst", "t.json.gz"])
def test_a_run_that_lasts_is_read_from_its_part_file(tmp_path, events, document, name):
    writer = TraceWriter(tmp_path / name)
    record = RunRecord(sink=writer.write)
    for event in events:
        record.apply(event)
    assert same(read_trace(part_of(tmp_path / name)), document)
    by_name = read_trace(tmp_path / name)
    assert same(by_name, document)
    assert by_name.losses == (
        f"{tmp_path / name} is not written yet; read {part_of(tmp_path / name)} instead",
    )
    writer.close(record.streamed_document())
    assert read_trace(tmp_path / name).losses == ()
    assert same(read_trace(tmp_path / name), document)
    assert not part_of(tmp_path / name).exists()


def test_a_document_made_by_another_tool_is_read_too(tmp_path, document):
    (tmp_path / "t.json").write_text(json.dumps(document, indent=4))
    assert same(read_trace(tmp_path / "t.json"), document)


def test_of_a_document_that_is_cut_off_the_whole_programs_are_read(tmp_path, document):
    text = "".join(document_lines(document))
    lines = text.splitlines(keepends=True)
    path = tmp_path / "t.json"
    path.write_text("".join(lines[:3]) + lines[3][:100])
    trace = read_trace(path)
    assert [p.id for p in trace.programs] == [p["id"] for p in document["programs"][:2]]
    assert trace.losses == (
        "the file is cut off: its first 2 programs could be read, the next one only in part and is "
        "left out; how many followed is not known",
    )
    path.write_text("".join(lines[:2]))
    assert len(read_trace(path).losses) == 1
    assert "its first 1 program could be read" in read_trace(path).losses[0]


@pytest.mark.parametrize("name", ["t.json.gz", "t.json.zst"])
def test_compressed_data_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path, document, name):
    path = tmp_path / name
    many = {**document, "programs": [*document["programs"]]}
    # Several megabytes, so that some blocks are whole.
    noise = random.Random(1)
    for number in range(400):
        program = copy.deepcopy(document["programs"][0])
        program["id"] = f"p{number}"
        for call in program["calls"]:
            call["id"] = f"{noise.getrandbits(128):x}"
            call["parents"] = []
        program["critical_path"] = []
        many["programs"].append(program)
    write_document(many, path)
    path.write_bytes(path.read_bytes()[:-2000])
    trace = read_trace(path)
    assert 0 < len(trace.programs) < len(many["programs"])
    assert any("cut off" in loss for loss in trace.losses)


def test_damaged_programs_and_events_in_the_middle_are_left_out_and_named(
    tmp_path, events, document
):
    lines = "".join(document_lines(document)).splitlines(keepends=True)
    lines[2] = lines[2][:50] + "\n"
    (tmp_path / "t.json").write_text("".join(lines))
    trace = read_trace(tmp_path / "t.json")
    assert len(trace.programs) == len(document["programs"]) - 1
    assert trace.losses == ("1 program could not be read and is left out",)

    writer = TraceWriter(tmp_path / "u.json")
    for event in events:
        writer.write(event)
    writer.abandon()
    lines = writer.part.read_text().splitlines(keepends=True)
    lines[5] = "\x00\x00\x00\n"
    writer.part.write_text("".join(lines)[:-30])
    trace = read_trace(writer.part)
    assert trace.losses == (
        f"line {len(lines)}, the last one, is cut off; its event is left out",
        "lines that are no events are left out: 6",
    )


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.v1.json")), ids=lambda p: p.name)
def test_a_trace_of_the_first_version_is_still_read(sample):
    trace = read_trace(sample)
    assert trace.schema == 1
    document = json.loads(sample.read_text())
    assert len(trace.programs) == len(document["programs"])
    assert sum(1 for _ in trace.calls()) == sum(len(p["calls"]) for p in document["programs"])
    assert trace.started_at is None
    assert trace.engine.seats == 0


def test_every_version_there_was_has_a_committed_sample():
    found = {p.name.split(".")[1] for p in SAMPLES.iterdir()}
    assert found >= {f"v{n}" for n in range(OLDEST_VERSION, SCHEMA_VERSION + 1)}


@pytest.mark.parametrize(
    "sample", sorted(SAMPLES.glob(f"*.v{SCHEMA_VERSION}.*")), ids=lambda p: p.name
)
def test_samples_of_the_present_version_keep_to_the_schema(sample):
    trace = read_trace(sample)
    assert trace.schema == SCHEMA_VERSION
    assert trace.losses == ()
    packed = sample.read_bytes()
    text = zstandard.ZstdDecompressor().decompressobj().decompress(packed).decode()
    jsonschema.Draft202012Validator(load_schema()).validate(json.loads(text))


def test_a_newer_version_is_refused_with_both_versions_named(tmp_path, events, document):
    newer = SCHEMA_VERSION + 1
    message = (
        f"is a trace of version {newer}; this Autellix reads versions {OLDEST_VERSION} to "
        f"{SCHEMA_VERSION}"
    )
    write_document({**document, "schema": newer}, tmp_path / "t.json")
    (tmp_path / "u.json").write_text(json.dumps({**document, "schema": newer}))
    writer = TraceWriter(tmp_path / "v.json")
    for event in events:
        writer.write(event)
    writer.abandon()
    text = writer.part.read_text()
    writer.part.write_text(text.replace(f'"schema":{SCHEMA_VERSION}', f'"schema":{newer}', 1))
    for path in (tmp_path / "t.json", tmp_path / "u.json", writer.part):
        with pytest.raises(TraceError, match=message):
            read_trace(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        "null",
        "hello",
        '{"schema": "2", "programs": []}',
        '{"schema": true, "programs": []}',
        '{"schema": 0, "programs": []}',
        '{"a": 1}\n{"b": 2}\n',
        "\x89PNG",
    ],
)
def test_what_is_no_trace_is_called_so(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(TraceError, match=r"t\.json is no trace of Autellix"):
        read_trace(tmp_path / "t.json")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"absent\.json cannot be read: No such file"):
        read_trace(tmp_path / "absent.json")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.pop("engine"), "has no 'engine'"),
        (lambda d: d["programs"][0].pop("calls"), "program 1 of .* has no 'calls'"),
        (
            lambda d: d["programs"][1]["calls"][2].update(wait_s="long"),
            "'wait_s' of call 3 of program 2 of .* must be a number, got 'long'",
        ),
        (
            lambda d: d["programs"][0]["calls"][0].update(kind="guess"),
            "must be one of llm, tool, got 'guess'",
        ),
        (lambda d: d["programs"][0].update(start_s=float("nan")), "must be a number, got nan"),
        (lambda d: d["programs"].append(d["programs"][0]), "two calls of one id"),
    ],
)
def test_a_field_that_is_wrong_is_named_with_its_place(document, spoil, message):
    spoiled = copy.deepcopy(document)
    spoil(spoiled)
    with pytest.raises(TraceError, match=message):
        trace_from_document(spoiled, "t.json")


def _places(value, path=()):
    """Every place in a document."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*path, index))


SMALL = document_of(simulated_run(2, 3))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([p for p in _places(SMALL) if p]), json_values, st.booleans())
def test_whatever_is_changed_in_a_document_it_is_read_or_refused_in_words(place, value, removed):
    document = copy.deepcopy(SMALL)
    within = document
    for step in place[:-1]:
        within = within[step]
    if removed:
        del within[place[-1]]
    else:
        within[place[-1]] = value
    try:
        trace = trace_from_document(document, "t.json")
    except TraceError as error:
        assert "t.json" in str(error)
    else:
        assert list(trace.calls()) is not None


def test_calls_and_programs_are_found_as_people_name_them(document):
    trace = trace_from_document(document, "t")
    call = trace.programs[1].calls[2]
    assert trace.call(call.id) is call
    assert trace.call(f"{call.program}/3") is call
    assert trace.call(call.id[-8:]) is call
    with pytest.raises(UsageError, match=r"has calls 1 to \d+, got 99"):
        trace.call("agent-1/99")
    with pytest.raises(UsageError, match="no call 'nothing'"):
        trace.call("nothing")
    with pytest.raises(UsageError, match=r"'-' fits \d+ calls: .* and \d+ more"):
        trace.call("-")
    with pytest.raises(UsageError, match="start of 4 programs' ids"):
        trace.program("agent")
    with pytest.raises(UsageError, match="no program 'x'"):
        trace.program("x")


# Size: 100,000 calls of the shape that real ones have take less than 200 MB.


def test_a_call_takes_less_than_2000_bytes_in_either_form(tmp_path):
    events = simulated_run(250, 24, every_s=2.0)
    writer = TraceWriter(tmp_path / "t.json")
    record = RunRecord(sink=writer.write)
    for event in events:
        record.apply(event)
    part = writer.part.stat().st_size
    document = record.document()
    calls = sum(len(program["calls"]) for program in document["programs"])
    assert calls > 10_000
    longest = max(len(c["events"]) for p in document["programs"] for c in p["calls"])
    assert longest > 4  # demotions and preemptions are among them
    writer.close(record.streamed_document())
    size = writer.path.stat().st_size
    print(f"\n{calls} calls: document {size / calls:.0f} bytes a call, part {part / calls:.0f}")
    assert size < 2000 * calls
    assert part < 2000 * calls
