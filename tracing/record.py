"""The record of a run: a fold over its events, from which trace and views are made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any

from autellix.errors import TraceError

from .dag import ProgramDag
from .document import run_document, run_head
from .events import (
    CallEnded,
    CallStarted,
    ContentRecorded,
    Event,
    ProgramEnded,
    ProgramResumed,
    ProgramStarted,
    ReceiptArrived,
    RunStarted,
)
from .program import ProgramRecord
from .snapshot import ReplicaRow, RunSnapshot

_log = logging.getLogger("autellix")


class RunRecord:
    """All programs of a run; state is a function of the events applied, in their order.

    Events that do not fit (an unknown parent, a second end of a call) are left out with a logged
    warning: the record watches other people's programs and must not break them. Safe to use from
    any thread.
    """

    def __init__(self, *, sink: Callable[[Event], None] | None = None) -> None:
        """Start an empty record.

        Args:
            sink: also given each event, in the order in which they are applied
                (:meth:`TraceWriter.write <autellix.tracing.writer.TraceWriter.write>`).
        """
        self._sink = sink
        self._lock = RLock()
        self._run: RunStarted | None = None
        self._programs: dict[str, ProgramRecord] = {}
        self._program_of: dict[str, ProgramRecord] = {}
        self._last_s = 0.0
        self._llm_done = 0
        self._output_tokens = 0

    def apply(self, event: Event) -> None:
        """Take the next event."""
        with self._lock:
            if self._sink is not None:
                self._sink(event)
            self._last_s = max(self._last_s, event.at_s)
            match event:
                case CallStarted():
                    self._call_started(event)
                case CallEnded():
                    self._call_ended(event)
                case ReceiptArrived():
                    self._receipt_arrived(event)
                case ProgramStarted():
                    self._program(event.program, event.name, event.at_s).begin_turn(event)
                case ProgramResumed():
                    self._program(event.program, event.program, event.at_s).resume(event)
                case ProgramEnded():
                    self._program(event.program, event.program, event.at_s).end_turn(event)
                case ContentRecorded():
                    if event.call in self._program_of:
                        self._program_of[event.call].take_content(event)
                case RunStarted():
                    self._run = event

    @property
    def is_empty(self) -> bool:
        """Whether no program has begun."""
        return not self._programs

    def __contains__(self, call: object) -> bool:
        """Whether a call of this id has begun."""
        return call in self._program_of

    def dag(self, program: str) -> ProgramDag:
        """The DAG of a program, for reading.

        Raises:
            TraceError: no such program has started.
        """
        try:
            return self._programs[program].dag
        except KeyError:
            raise TraceError(
                f"no program {program!r} has started in this run; report its start first"
            ) from None

    def attained_s(self, call: str) -> float:
        """Attained service p(c) of a call by the DAG recursion, seconds.

        Raises:
            TraceError: no such call has begun.
        """
        try:
            return self._program_of[call].dag.attained_s(call)
        except KeyError:
            raise TraceError(
                f"no call {call!r} has begun in this run; report its start first"
            ) from None

    def open_calls(self, program: str) -> tuple[str, ...]:
        """The calls and tools of a program that have begun and not ended."""
        with self._lock:
            record = self._programs.get(program)
            return tuple(record.open) if record else ()

    def document(self) -> dict[str, Any]:
        """The trace document of everything applied so far.

        Raises:
            TraceError: the run's start is missing.
        """
        with self._lock:
            return run_document(self._known_run(), self._program_documents())

    def streamed_document(self) -> dict[str, Any]:
        """As :meth:`document`, but its programs come one by one, each made when it is asked for.

        Raises:
            TraceError: the run's start is missing.
        """
        return {**run_head(self._known_run()), "programs": self._program_documents()}

    def snapshot(
        self,
        now_s: float,
        *,
        replicas: Sequence[ReplicaRow] = (),
        levels: Mapping[str, int] | None = None,
        waiting: Container[str] = (),
        programs_total: int | None = None,
    ) -> RunSnapshot:
        """The run at this moment, for the views.

        Args:
            now_s: seconds since the run's start.
            replicas: the replicas' state, from the engine.
            levels: level of live calls by call id, from the engine.
            waiting: ids of the calls that hold no seat; a set. What is not in it counts as running.
            programs_total: how many programs the run will have, where that is known.
        """
        with self._lock:
            rows = tuple(
                record.row(now_s, levels=levels or {}, waiting=waiting)
                for record in self._programs.values()
            )
            states = [record.status for record in self._programs.values()]
            return RunSnapshot(
                elapsed_s=now_s,
                programs=rows,
                replicas=tuple(replicas),
                calls_done=self._llm_done,
                tokens_per_s=self._output_tokens / now_s if now_s > 0 else 0.0,
                programs_running=states.count("running"),
                programs_done=states.count("done"),
                programs_failed=states.count("failed"),
                programs_total=len(states) if programs_total is None else programs_total,
            )

    def _known_run(self) -> RunStarted:
        if self._run is None:
            raise TraceError(
                "the trace has no run start, so engine and policy are unknown; "
                "apply RunStarted before the document is made"
            )
        return self._run

    def _program_documents(self) -> Iterator[dict[str, Any]]:
        with self._lock:
            records, origin_s, now_s = (
                list(self._programs.values()),
                self._known_run().clock_s,
                self._last_s,
            )
        for record in records:
            with self._lock:
                document = record.document(origin_s=origin_s, now_s=now_s)
            yield document

    def _program(self, program: str, name: str, at_s: float) -> ProgramRecord:
        record = self._programs.get(program)
        if record is None:
            record = self._programs[program] = ProgramRecord(program, name, at_s)
        return record

    def _call_started(self, event: CallStarted) -> None:
        if event.call in self._program_of:
            _log.warning("trace: call %r began twice; the second start is left out", event.call)
            return
        record = self._program(event.program, event.program, event.at_s)
        left_out = record.begin_call(event)
        self._program_of[event.call] = record
        if left_out:
            _log.warning(
                "trace: call %r of program %r names parents that the program does not have; "
                "their edges are left out: %s",
                event.call,
                event.program,
                ", ".join(left_out),
            )

    def _call_ended(self, event: CallEnded) -> None:
        record = self._program_of.get(event.call)
        if record is None:
            _log.warning("trace: call %r ended but never began; it is left out", event.call)
            return
        tokens, done = record.dag.output_tokens, record.dag.llm_done
        if event.call not in record.open and event.receipt is None:
            _log.debug("trace: call %r ended twice; the second end is left out", event.call)
            return
        record.end_call(event)
        self._output_tokens += record.dag.output_tokens - tokens
        self._llm_done += record.dag.llm_done - done

    def _receipt_arrived(self, event: ReceiptArrived) -> None:
        record = self._program_of.get(event.call)
        if record is None:
            _log.warning("trace: a receipt for call %r, which never began", event.call)
            return
        tokens = record.dag.output_tokens
        record.take_receipt(event)
        self._output_tokens += record.dag.output_tokens - tokens
