"""Spans reach a real OTLP endpoint as the GenAI conventions say, and only when asked for."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from autellix.errors import SettingsError, TraceError
from autellix.runtime.span_sender import span_sender
from autellix.runtime.trace_exports import send_spans
from autellix.tracing.events import (
    CallEnded,
    CallStarted,
    ContentRecorded,
    ProgramEnded,
    ProgramStarted,
)
from autellix.tracing.record import RunRecord
from autellix.tracing.spans import spans_from_environment, wanted_exporters
from autellix.tracing.trace import Trace
from autellix.tracing.trace_fields import trace_from_document
from autellix.tracing.trace_file import read_trace
from tests.tracing.simulated import document_of, repeated, simulated_run

SAMPLE = Path(__file__).parent / "samples" / "react_agent.v2.json.zst"


@dataclass
class Collector:
    """What an OTLP endpoint took."""

    url: str = ""
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        return attributes(self.requests[0].resource_spans[0].resource)


def attributes(told: Any) -> dict[str, Any]:
    """OTLP attributes as plain values."""

    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(inner) for inner in value.array_value.values]
        return getattr(value, kind)

    return {pair.key: plain(pair.value) for pair in told.attributes}


@pytest.fixture
def http_collector() -> Iterator[Collector]:
    """An OTLP endpoint over HTTP with protobuf."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.requests.append(ExportTraceServiceRequest.FromString(body))
            collector.headers.append(dict(self.headers))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield collector
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def grpc_collector() -> Iterator[Collector]:
    """An OTLP endpoint over gRPC."""
    collector = Collector()

    class Servicer(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collector.requests.append(request)
            return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    add_TraceServiceServicer_to_server(Servicer(), server)
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield collector
    server.stop(None).wait()


@pytest.fixture(autouse=True)
def no_otel(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture(params=["http", "grpc"])
def collector(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Collector]:
    """Either of them, named by the standard variables."""
    collector: Collector = request.getfixturevalue(f"{request.param}_collector")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    protocol = {"http": "http/protobuf", "grpc": "grpc"}[request.param]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    return collector


def check_program(trace: Trace, id: str, spans: list[Any]) -> None:
    """The spans of one program are what the trace says."""
    program = trace.program(id)
    by_call = {attributes(s).get("autellix.call"): s for s in spans}
    root = by_call.pop(None)
    assert root.name == f"invoke_workflow {program.name}"
    assert attributes(root)["gen_ai.operation.name"] == "invoke_workflow"
    assert attributes(root)["gen_ai.conversation.id"] == program.id
    assert not root.parent_span_id
    assert by_call.keys() == {call.id for call in program.calls}
    origin_s = trace.started_at or 0.0
    for call in program.calls:
        span, said = by_call[call.id], attributes(by_call[call.id])
        assert span.parent_span_id == root.span_id
        assert span.trace_id == root.trace_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano / 1e9 == pytest.approx(origin_s + call.start_s, abs=1e-5)
        assert span.end_time_unix_nano / 1e9 == pytest.approx(
            origin_s + (call.end_s or 0), abs=1e-5
        )
        linked = {(link.span_id, attributes(link)["autellix.edge"]) for link in span.links}
        assert linked == {(by_call[p.id].span_id, p.kind) for p in call.parents if p.id in by_call}
        assert [e.name for e in span.events] == [f"autellix.{e.kind}" for e in call.events]
        assert said["autellix.program"] == program.id
        if call.kind == "tool":
            assert span.name == f"execute_tool {call.name}"
            assert said["gen_ai.tool.name"] == call.name
        else:
            assert span.name == f"chat {trace.engine.model}"
            assert span.kind == 3  # client
            assert said["gen_ai.operation.name"] == "chat"
            assert said["gen_ai.request.model"] == trace.engine.model
            assert said["gen_ai.usage.input_tokens"] == call.prompt_tokens
            assert said["gen_ai.usage.output_tokens"] == call.output_tokens
            assert said["autellix.wait_s"] == call.wait_s
            assert said["autellix.levels"] == list(call.levels)


def by_program(collector: Collector) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for span in collector.spans:
        found.setdefault(attributes(span)["autellix.program"], []).append(span)
    return found


def test_a_recorded_trace_reaches_the_collector_span_by_span(collector: Collector):
    trace = read_trace(SAMPLE)
    calls = sum(1 for _ in trace.calls())
    assert send_spans(trace) == calls + len(trace.programs) == len(collector.spans)
    found = by_program(collector)
    assert found.keys() == {program.id for program in trace.programs}
    for id, spans in found.items():
        check_program(trace, id, spans)
    assert collector.resource["service.name"] == "autellix"


def test_attributes_have_the_names_of_the_conventions_or_our_own(collector: Collector):
    send_spans(read_trace(SAMPLE))
    known = {v for k, v in vars(gen_ai_attributes).items() if k.startswith("GEN_AI_")}
    for span in collector.spans:
        for name in attributes(span):
            assert name in known or name.startswith("autellix.") or name == "error.type", name


def test_a_run_sends_a_program_when_it_has_ended(collector: Collector):
    record_events = simulated_run(3, 4)
    told: list[Any] = []
    record = RunRecord(sink=lambda event: [sink(event) for sink in told])  # type: ignore[func-returns-value]
    sender = span_sender(record)
    assert sender is not None
    told.append(sender.take)
    for event in record_events:
        record.apply(event)
    sender.close()
    sender.close()
    record.apply(ProgramStarted(at_s=99.0, program="late", name="late"))
    record.apply(ProgramEnded(at_s=99.0, program="late", status="done"))
    document = record.document()
    del document["programs"][-1]
    trace = trace_from_document(document, "the run")
    found = by_program(collector)
    assert found.keys() == {program.id for program in trace.programs}
    for id, spans in found.items():
        check_program(trace, id, spans)


def test_later_turns_of_a_program_link_to_earlier_ones(http_collector: Collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", http_collector.url)
    first = simulated_run(1, 2)
    record = RunRecord()
    for event in first:
        record.apply(event)
    spans = spans_from_environment()
    assert spans is not None
    trace = trace_from_document(record.document(), "t")
    program = trace.programs[0]
    last = program.calls[-1].id
    assert spans.program(trace, program) == len(program.calls) + 1
    parents = ((last, "order"),)
    for event in (
        ProgramStarted(at_s=50.0, program=program.id, name="agent"),
        CallStarted(
            at_s=51.0, program=program.id, call="later", kind="llm", name="m", parents=parents
        ),
        CallEnded(at_s=52.0, call="later", status="failed", error="no room"),
        ProgramEnded(at_s=53.0, program=program.id, status="failed", error="no room"),
    ):
        record.apply(event)
    trace = trace_from_document(record.document(), "t")
    assert spans.program(trace, trace.programs[0]) == 2
    spans.close()
    by_call = {attributes(s).get("autellix.call"): s for s in http_collector.spans}
    later = by_call["later"]
    assert [link.span_id for link in later.links] == [by_call[last].span_id]
    assert later.links[0].trace_id == by_call[last].trace_id != later.trace_id
    assert (later.status.code, later.status.message) == (2, "no room")
    assert attributes(later)["error.type"] == "failed"


def test_prompts_and_answers_are_sent_only_where_they_were_recorded(
    http_collector: Collector, monkeypatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", http_collector.url)
    events = simulated_run(1, 1)
    call = next(e.call for e in events if isinstance(e, CallEnded))
    send_spans(trace_from_document(document_of(events), "t"))
    assert not any("messages" in name for s in http_collector.spans for name in attributes(s))
    http_collector.requests.clear()
    content = ContentRecorded(at_s=1.0, call=call, prompt="Why?", answer="Because.")
    send_spans(trace_from_document(document_of([*events, content]), "t"))
    said = next(attributes(s) for s in http_collector.spans if s.name.startswith("chat"))
    assert json.loads(said["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Why?"}]}
    ]
    assert json.loads(said["gen_ai.output.messages"])[0]["parts"][0]["content"] == "Because."


def test_thousands_of_spans_arrive_whole(http_collector: Collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", http_collector.url)
    trace = trace_from_document(repeated(document_of(simulated_run(10, 15)), 16), "t")
    assert send_spans(trace) == len(http_collector.spans) > 3000


def test_the_standard_variables_are_followed(http_collector: Collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{http_collector.url}/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "agents")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=blue")
    send_spans(read_trace(SAMPLE))
    assert http_collector.headers[0]["x-key"] == "secret"
    assert http_collector.headers[0]["Content-Encoding"] == "gzip"
    assert http_collector.resource["service.name"] == "agents"
    assert http_collector.resource["team"] == "blue"


@pytest.mark.parametrize(
    ("environ", "exporters"),
    [
        ({}, ()),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_LOG_LEVEL": "debug"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, ("otlp_proto_http",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h"}, ()),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp_proto_http",)),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ("otlp_proto_grpc",),
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            },
            ("otlp_proto_grpc",),
        ),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ("console", "otlp_proto_http")),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, ()),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, ()),
    ],
)
def test_spans_are_off_unless_the_standard_variables_ask(environ, exporters):
    assert wanted_exporters(environ) == exporters


def test_without_variables_nothing_is_made_and_the_export_says_what_to_set():
    assert spans_from_environment() is None
    assert span_sender(RunRecord()) is None
    with pytest.raises(SettingsError, match="set OTEL_EXPORTER_OTLP_ENDPOINT"):
        send_spans(read_trace(SAMPLE))


def test_an_exporter_that_is_not_there_stops_an_export_but_not_a_run(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin_of_nobody")
    with pytest.raises(SettingsError, match="'zipkin_of_nobody' that is not installed"):
        send_spans(read_trace(SAMPLE))
    assert span_sender(RunRecord()) is None
    assert "spans are not sent" in caplog.text


def test_a_collector_that_does_not_answer_is_said(monkeypatch):
    # A port that was free a moment ago and has nobody behind it.
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    port = server.server_address[1]
    server.server_close()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with pytest.raises(TraceError, match=r"\d+ of \d+ spans could not be sent"):
        send_spans(read_trace(SAMPLE))
