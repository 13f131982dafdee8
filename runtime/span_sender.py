"""Sends a run's programs as OpenTelemetry spans while it lasts, where ``OTEL_*`` variables ask."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from autellix.errors import AutellixError, SettingsError

from ..tracing.events import Event, ProgramEnded
from ..tracing.record import RunRecord
from ..tracing.spans import Spans, spans_from_environment
from ..tracing.trace_fields import trace_from_document

_log = logging.getLogger("autellix")


def span_sender(record: RunRecord) -> SpanSender | None:
    """What sends the record's programs; None where no ``OTEL_*`` variable asks for it.

    Variables that cannot be followed are named in a warning: they may be meant for others.
    """
    try:
        spans = spans_from_environment()
    except SettingsError as error:
        _log.warning("spans are not sent: %s", error)
        return None
    return None if spans is None else SpanSender(record, spans)


class SpanSender:
    """Sends each program when a turn of it has ended, from a thread of its own.

    Args:
        record: knows the programs.
        spans: makes and sends the spans.
    """

    def __init__(self, record: RunRecord, spans: Spans) -> None:
        self._record = record
        self._spans = spans
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="autellix-spans")
        self._lock = Lock()
        self._is_closed = False

    def take(self, event: Event) -> None:
        """Hear of an event before the record has taken it; returns at once.

        Programs that end after :meth:`close` are left out.
        """
        with self._lock:
            if isinstance(event, ProgramEnded) and not self._is_closed:
                self._thread.submit(self._send, event.program)

    def close(self) -> None:
        """Send what is left; safe to call twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._thread.shutdown(wait=True)
        self._spans.close()
        if self._spans.lost:
            _log.warning(
                "spans: %d could not be sent; is the collector that OTEL_* names running?",
                self._spans.lost,
            )

    def _send(self, program: str) -> None:
        try:
            trace = trace_from_document(self._record.program_document(program), "the run")
            self._spans.program(trace, trace.programs[0])
        except AutellixError as error:
            _log.debug("no spans of program %r: %s", program, error)
