"""Exports hold what the trace holds, in the form that their readers ask for."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from pathlib import Path

import jsonschema
import networkx as nx
import pytest

from autellix.tracing.export_csv import csv_text
from autellix.tracing.export_graph import graphml_text, mermaid_text
from autellix.tracing.export_perfetto import perfetto_document
from autellix.tracing.trace import Trace
from autellix.tracing.trace_fields import trace_from_document
from autellix.tracing.trace_file import read_trace
from autellix.tracing.waiting import CAUSES
from tests.tracing.simulated import document_of, simulated_run

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
AWKWARD = '</script> "x" `y` #1 <b> & \x00\x1b[31m \\ : ]--> 日本\n'


def _traces() -> list[tuple[str, Trace]]:
    found = [(sample.name, read_trace(sample)) for sample in SAMPLES]
    document = document_of(simulated_run(12, 10, replicas=2, every_s=0.3))
    found.append(("simulated x2", trace_from_document(document, "t")))
    awkward = document_of(simulated_run(1, 4))
    program = awkward["programs"][0]
    program["id"] = program["name"] = AWKWARD
    for call in program["calls"]:
        call["node"] = call["name"] = AWKWARD
    found.append(("awkward names", trace_from_document(awkward, "t")))
    return found


TRACES = _traces()
every_trace = pytest.mark.parametrize("trace", [t for _, t in TRACES], ids=[n for n, _ in TRACES])

# The Trace Event Format as its description has it; one entry for each kind of event in use.
_COMMON = {
    "pid": {"type": "integer"},
    "tid": {"type": "integer"},
    "name": {"type": "string"},
    "cat": {"type": "string"},
    "ts": {"type": "number", "minimum": 0},
    "args": {"type": "object"},
}


def _kind(ph: str, *needed: str, **more: object) -> dict:
    return {
        "properties": {"ph": {"const": ph}, **_COMMON, **more},
        "required": ["ph", "pid", "tid", "name", *needed],
        "additionalProperties": False,
    }


EVENT_FORMAT = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    _kind("M", "args"),
                    _kind("X", "ts", "dur", dur={"type": "number", "minimum": 0}),
                    _kind("s", "ts", "id", "cat", id={"type": "integer"}),
                    _kind("f", "ts", "id", "cat", "bp", id={"type": "integer"}, bp={"const": "e"}),
                    _kind("b", "ts", "id", "cat", id={"type": "string"}),
                    _kind("e", "ts", "id", "cat", id={"type": "string"}),
                    _kind("C", "ts", "args"),
                ]
            },
        }
    },
}


def by_kind(document: dict) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = defaultdict(list)
    for event in document["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


@every_trace
def test_perfetto_gets_events_of_its_format_in_the_order_of_time(trace: Trace):
    document = json.loads(json.dumps(perfetto_document(trace)))
    jsonschema.Draft202012Validator(EVENT_FORMAT).validate(document)
    times = [event["ts"] for event in document["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)


@every_trace
def test_slices_of_a_seat_lie_inside_each_other_or_apart(trace: Trace):
    threads: dict[tuple[int, int], list[dict]] = defaultdict(list)
    for event in by_kind(perfetto_document(trace))["X"]:
        threads[event["pid"], event["tid"]].append(event)
    for slices in threads.values():
        open_until: list[int] = []
        for event in slices:
            start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


@every_trace
def test_processes_are_replicas_and_threads_are_seats(trace: Trace):
    found = by_kind(perfetto_document(trace))
    names = {e["pid"]: e["args"]["name"] for e in found["M"] if e["name"] == "process_name"}
    replicas = {c.replica for c in trace.calls() if c.replica is not None}
    tools = {"tools"} if any(c.kind == "tool" for c in trace.calls()) else set()
    assert set(names.values()) == {f"replica {r}" for r in replicas} | tools
    seats = {(e["pid"], e["tid"]) for e in found["X"]}
    named = {(e["pid"], e["tid"]) for e in found["M"] if e["name"] == "thread_name"}
    assert seats == named
    if trace.engine.seats:
        assert max(tid for pid, tid in seats if names[pid] != "tools") <= trace.engine.seats
    calls = {e["args"]["call"]: e for e in found["X"] if e["cat"] in ("llm", "tool")}
    assert calls.keys() == {c.id for c in trace.calls() if c.end_s is not None}
    for id, event in calls.items():
        if event["cat"] == "llm":
            assert names[event["pid"]] == f"replica {trace.by_id[id].replica}"


@every_trace
def test_every_edge_of_the_dag_is_a_flow_that_leaves_and_enters_its_slices(trace: Trace):
    found = by_kind(perfetto_document(trace))
    slices: dict[tuple[int, int], list[dict]] = defaultdict(list)
    for event in found["X"]:
        if event["cat"] != "level":
            slices[event["pid"], event["tid"]].append(event)

    def inside(flow: dict) -> str:
        at = ns(flow["ts"])
        for event in reversed(slices[flow["pid"], flow["tid"]]):
            if ns(event["ts"]) <= at <= ns(event["ts"]) + ns(event["dur"]):
                return event["args"]["call"]
        raise AssertionError(f"no slice around {flow}")

    starts = {event["id"]: event for event in found["s"]}
    ends = {event["id"]: event for event in found["f"]}
    assert starts.keys() == ends.keys()
    edges = sorted((inside(starts[n]), inside(ends[n]), starts[n]["name"]) for n in starts)
    wanted = sorted((p.id, c.id, p.kind) for c in trace.calls() for p in c.parents)
    assert edges == wanted
    for number in starts:
        assert starts[number]["ts"] <= ends[number]["ts"]


@every_trace
def test_waits_are_pairs_and_the_counter_ends_at_nobody(trace: Trace):
    found = by_kind(perfetto_document(trace))
    began = {event["id"]: event["ts"] for event in found["b"]}
    ended = {event["id"]: event["ts"] for event in found["e"]}
    assert began.keys() == ended.keys()
    waited = sum(ended[id] - began[id] for id in began) / 1e6
    assert waited == pytest.approx(sum(c.wait_s for c in trace.calls()), abs=1e-3)
    last: dict[int, int] = {}
    for event in found["C"]:
        assert event["args"]["calls"] >= 0
        last[event["pid"]] = event["args"]["calls"]
    assert set(last.values()) <= {0}


_NODE = re.compile(r'^    (p\d+c\d+)(\(\["|\[")([^"]*)("\]\)|"\])$')
_EDGE = re.compile(r"^    (p\d+c\d+) (-->|-\.->|==>) (p\d+c\d+)$")
_OTHER = (
    re.compile(r"^flowchart LR$"),
    re.compile(r'^  subgraph p\d+\["[^"]*"\]$'),
    re.compile(r"^  end$"),
    re.compile(r"^  class [p\dc,]+ critical$"),
    re.compile(r"^  classDef critical [\w:#,-]+$"),
    re.compile(r"^  linkStyle [\d,]+ [\w:#,-]+$"),
)


@every_trace
def test_mermaid_has_every_call_and_edge_and_nothing_that_it_would_misread(trace: Trace):
    lines = mermaid_text(trace.programs).splitlines()
    nodes = {m[1]: m[3] for line in lines if (m := _NODE.match(line))}
    edges = [(m[1], m[3]) for line in lines if (m := _EDGE.match(line))]
    assert all(
        _NODE.match(line) or _EDGE.match(line) or any(o.match(line) for o in _OTHER)
        for line in lines
    )
    ids = {
        call.id: f"p{number}c{call.number}"
        for number, program in enumerate(trace.programs, start=1)
        for call in program.calls
    }
    assert nodes.keys() == set(ids.values())
    wanted = [(ids[p.id], ids[c.id]) for c in trace.calls() for p in c.parents]
    assert sorted(edges) == sorted(wanted)
    for label in nodes.values():
        assert not re.search(r"[`\\]|<(?!br/>)", label)
        assert "#" not in re.sub(r"#(\d+|quot|lt|gt|amp);", "", label)


@every_trace
def test_graphml_is_read_back_by_networkx_with_what_was_measured(trace: Trace):
    graph = nx.parse_graphml(graphml_text(trace.programs))
    assert len(graph) == sum(1 for _ in trace.calls())
    assert nx.is_directed_acyclic_graph(graph)
    for call in trace.calls():
        node = graph.nodes[call.id]
        assert (node["kind"], node["number"]) == (call.kind, call.number)
        assert node["service_s"] == pytest.approx(call.service_s)
        assert {(p, e["kind"]) for p, e in graph.pred[call.id].items()} == {
            (p.id, p.kind) for p in call.parents
        }


@every_trace
def test_csv_has_a_row_for_each_call_and_causes_that_sum_to_the_wait(trace: Trace):
    rows = list(csv.DictReader(io.StringIO(csv_text(trace))))
    assert [row["call"] for row in rows] == [call.id for call in trace.calls()]
    for row, call in zip(rows, trace.calls(), strict=True):
        assert (row["program"], row["name"]) == (call.program, call.name)
        assert float(row["wait_s"]) == call.wait_s
        assert sum(float(row[f"wait_{cause}"]) for cause in CAUSES) == pytest.approx(
            call.wait_s, abs=1e-6
        )
        assert len(row["parents"].split()) == len(call.parents)
        if call.kind == "llm" and call.end_s is not None:
            told = call.service_s + call.wait_s + float(row["way_s"])
            # A seat is held a little longer than the steps that the call was charged.
            lasted = call.end_s - call.start_s
            assert 0.95 * lasted <= told <= lasted + 1e-6
