"""Exports of a trace by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from autellix.errors import SettingsError, TraceError

from ..tracing.export_csv import csv_text
from ..tracing.export_graph import graphml_text, mermaid_text
from ..tracing.export_perfetto import perfetto_document
from ..tracing.spans import spans_from_environment
from ..tracing.trace import Trace

ENDINGS: Mapping[str, str] = {
    "perfetto": ".perfetto.json",
    "mermaid": ".mmd",
    "graphml": ".graphml",
    "csv": ".csv",
}


def export_text(trace: Trace, form: str, programs: Sequence[str]) -> str:
    """The trace in another form.

    Args:
        form: one of ``ENDINGS``.
        programs: ids of those that a graph is to hold; none are all.

    Raises:
        UsageError: no such program.
    """
    chosen = [trace.program(id) for id in programs] or trace.programs
    match form:
        case "perfetto":
            return json.dumps(perfetto_document(trace), separators=(",", ":")) + "\n"
        case "mermaid":
            return mermaid_text(chosen)
        case "graphml":
            return graphml_text(chosen)
        case _:
            return csv_text(trace)


def send_spans(trace: Trace) -> int:
    """Send the trace as spans where the ``OTEL_*`` variables say; how many.

    Raises:
        SettingsError: they say nothing, or OpenTelemetry is not installed.
        TraceError: the collector did not take them.
    """
    spans = spans_from_environment()
    if spans is None:
        raise SettingsError(
            "No OTEL_* variable says where spans go: set OTEL_EXPORTER_OTLP_ENDPOINT, for example "
            "to http://localhost:4318."
        )
    try:
        made = sum(spans.program(trace, program) for program in trace.programs)
    finally:
        spans.close()
    if spans.lost:
        raise TraceError(
            f"{spans.lost} of {made} spans could not be sent; is the collector that the OTEL_* "
            "variables name running?"
        )
    return made
