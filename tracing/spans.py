"""Programs and calls as OpenTelemetry spans, by the GenAI conventions.

A program is a span ``invoke_workflow NAME``, its calls are spans below it: ``chat MODEL`` and
``execute_tool NAME``. Edges of the DAG are links from a call to its predecessors. What the
conventions have no name for is under ``autellix.*``; the scheduler's decisions are span events.

Nothing is sent unless the standard ``OTEL_*`` variables ask for it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from autellix.errors import SettingsError

from .trace import Trace, TracedCall, TracedProgram

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_INSTALL = "OTEL_* variables ask for spans: pip install 'autellix[otel]', or unset them."
# Programs that may go on after their spans were sent; more are forgotten, oldest first.
_KEPT_PROGRAMS = 1000
# Less than the shortest queue that anybody sets; its default is 2,048.
_AT_ONCE = 500


def wanted_exporters(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the span exporters that the ``OTEL_*`` variables ask for; none is off."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    named = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if not named:
        named = "otlp" if any(environ.get(name) for name in _ENDPOINTS) else "none"
    names = [name.strip() for name in named.split(",")]
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), "http/protobuf")
    return tuple(
        _OTLP.get(protocol, protocol) if name == "otlp" else name
        for name in names
        if name not in ("", "none")
    )


def spans_from_environment(environ: Mapping[str, str] | None = None) -> Spans | None:
    """What sends spans where the ``OTEL_*`` variables say; None where they say nothing.

    Raises:
        SettingsError: they ask for spans but OpenTelemetry or the exporter they name is lacking.
    """
    names = wanted_exporters(os.environ if environ is None else environ)
    if not names:
        return None
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        raise SettingsError(_INSTALL) from missing
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "autellix"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporters = [_Counted(_exporter(name)) for name in names]
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(cast("Any", exporter)))
    return Spans(provider, exporters)


def _exporter(name: str) -> Any:
    found = importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=name)
    if not found:
        raise SettingsError(
            f"The OTEL_* variables name a span exporter {name!r} that is not installed. {_INSTALL}"
        )
    try:
        return next(iter(found)).load()()
    except ImportError as missing:
        raise SettingsError(f"The span exporter {name!r} cannot be loaded: {missing}.") from missing


class _Counted:
    """A span exporter that counts what it could not send."""

    def __init__(self, exporter: Any) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._exporter = exporter
        self._success = SpanExportResult.SUCCESS
        self.lost = 0

    def export(self, spans: Sequence[Any]) -> Any:
        result = self._exporter.export(spans)
        if result is not self._success:
            self.lost += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class Spans:
    """Makes spans of programs and has them sent.

    Args:
        provider: an OpenTelemetry ``TracerProvider`` of our own.
        exporters: its exporters.
    """

    def __init__(self, provider: Any, exporters: Sequence[_Counted]) -> None:
        from opentelemetry import trace

        self._api = trace
        self._provider = provider
        self._exporters = exporters
        self._waiting = 0
        self._tracer = provider.get_tracer("autellix")
        # Contexts of the calls whose spans were sent, by program: later turns link to them.
        self._sent: dict[str, dict[str, Any]] = {}

    @property
    def lost(self) -> int:
        """How many spans could not be sent."""
        return sum(exporter.lost for exporter in self._exporters)

    def program(self, trace: Trace, program: TracedProgram) -> int:
        """Make the spans of a program's calls, less those that an earlier turn made; how many.

        Args:
            trace: the run, for its engine and its start.
            program: as it is at the end of a turn.
        """
        sent = self._sent.pop(program.id, {})
        calls = [call for call in program.calls if call.id not in sent and call.end_s is not None]
        at = _Clock(trace)
        start_s = min([call.start_s for call in calls], default=program.last_s)
        root = self._tracer.start_span(
            f"invoke_workflow {program.name}",
            start_time=at(start_s if sent else program.start_s),
            attributes=_program_attributes(trace, program),
        )
        inside = self._api.set_span_in_context(root)
        for call in calls:
            sent[call.id] = self._call(trace, program, call, inside, sent, at)
            self._made()
        if program.status in ("failed", "cancelled"):
            self._failed(root, program.error, program.status)
        root.end(end_time=at(max(program.last_s, start_s)))
        self._made()
        self._sent[program.id] = sent
        if len(self._sent) > _KEPT_PROGRAMS:
            del self._sent[next(iter(self._sent))]
        return len(calls) + 1

    def _made(self) -> None:
        """Wait now and then: the queue before the exporter drops what is too much for it."""
        self._waiting += 1
        if self._waiting >= _AT_ONCE and not self.lost:
            self._provider.force_flush()
            self._waiting = 0

    def close(self) -> None:
        """Send what is left and stop."""
        self._provider.shutdown()

    def _call(
        self,
        trace: Trace,
        program: TracedProgram,
        call: TracedCall,
        inside: Any,
        sent: Mapping[str, Any],
        at: _Clock,
    ) -> Any:
        links = [
            self._api.Link(sent[parent.id], {"autellix.edge": parent.kind})
            for parent in call.parents
            if parent.id in sent
        ]
        is_llm = call.kind == "llm"
        span = self._tracer.start_span(
            f"chat {trace.engine.model}" if is_llm else f"execute_tool {call.name}",
            context=inside,
            kind=self._api.SpanKind.CLIENT if is_llm else self._api.SpanKind.INTERNAL,
            links=links,
            start_time=at(call.start_s),
            attributes=_call_attributes(trace, program, call),
        )
        for event in call.events:
            span.add_event(
                f"autellix.{event.kind}",
                {"autellix.level": event.level, "autellix.reason": event.reason},
                timestamp=at(event.at_s),
            )
        if call.status in ("failed", "aborted"):
            self._failed(span, call.error, call.status)
        span.end(end_time=at(call.end_s or call.start_s))
        return span.get_span_context()

    def _failed(self, span: Any, error: str | None, status: str) -> None:
        span.set_attribute("error.type", status)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, error or status))


class _Clock:
    """Nanoseconds since 1970 of times of a run; a trace that does not say when it was ends now."""

    def __init__(self, trace: Trace) -> None:
        origin = trace.started_at
        self._origin_s = time.time() - trace.end_s if origin is None else origin

    def __call__(self, at_s: float) -> int:
        return round((self._origin_s + at_s) * 1e9)


def _program_attributes(trace: Trace, program: TracedProgram) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": program.name,
        "gen_ai.provider.name": trace.engine.kind,
        "gen_ai.conversation.id": program.id,
        "autellix.program": program.id,
        "autellix.status": program.status,
        "autellix.policy": trace.policy,
        "autellix.response_s": program.response_s,
        "autellix.service_s": program.service_s,
        "autellix.wait_s": program.wait_s,
        "autellix.critical_path_s": program.critical_path_s,
    }


def _call_attributes(trace: Trace, program: TracedProgram, call: TracedCall) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.conversation.id": program.id,
        "autellix.program": program.id,
        "autellix.call": call.id,
        "autellix.critical": call.id in program.critical_path,
    }
    if call.node is not None:
        attributes["autellix.node"] = call.node
    if call.kind == "tool":
        return attributes | {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name}
    attributes |= {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": trace.engine.kind,
        "gen_ai.request.model": trace.engine.model,
        "gen_ai.response.model": trace.engine.model,
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "autellix.service_s": call.service_s,
        "autellix.wait_s": call.wait_s,
        "autellix.attained_s": call.attained_s,
        "autellix.levels": list(call.levels),
        "autellix.preemptions": call.preemptions,
    }
    if call.replica is not None:
        attributes["autellix.replica"] = call.replica
    if call.first_token_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = call.first_token_s - call.start_s
    return attributes | _content_attributes(call)


def _content_attributes(call: TracedCall) -> dict[str, str]:
    """Prompt and answer, where the run was told to record them."""
    if call.content is None:
        return {}
    parts = {
        "gen_ai.input.messages": [_message("user", call.content["prompt"])],
        "gen_ai.output.messages": [_message("assistant", call.content["answer"])],
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in parts.items()}


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}
