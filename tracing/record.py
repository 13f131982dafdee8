"""The record of a run: a fold over its events, from which trace and views are made."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from threading import RLock
from typing import Any

from autellix.errors import TraceError

from ..scheduler.tickets import Receipt
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
    ReplicaChanged,
    RunStarted,
)
from .live_rows import program_graph
from .program import ProgramRecord
from .snapshot import EngineCalls, ProgramGraph, ProgramRow, ReplicaRow, RunSnapshot

_log = logging.getLogger("autellix")

NOT_ASKED = EngineCalls()
MOST_ENDED = 500  # ended programs in a snapshot


class DroppedPrograms:
    """Totals of the programs that are not kept any more."""

    __slots__ = ("service_s", "states", "wait_s")

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.service_s = 0.0
        self.wait_s = 0.0

    def add(self, record: ProgramRecord) -> None:
        """One more."""
        self.states[record.status] += 1
        self.service_s += record.dag.service_s
        self.wait_s += record.dag.wait_s


class RunRecord:
    """All programs of a run; state is a function of the events applied, in their order.

    Events that do not fit (an unknown parent, a second end of a call) are left out with a logged
    warning: the record watches other people's programs and must not break them. Safe to use from
    any thread.
    """

    def __init__(
        self, *, sink: Callable[[Event], None] | None = None, keep_ended: int | None = None
    ) -> None:
        """Start an empty record.

        Args:
            sink: also given each event, in the order in which they are applied
                (:meth:`TraceWriter.write <autellix.tracing.writer.TraceWriter.write>`).
            keep_ended: how many programs that have ended are kept, the last ones; of others only
                the totals are. None keeps all, as a trace document needs.
        """
        self._sink = sink
        self._keep_ended = keep_ended
        self._ended: dict[str, None] = {}
        self._dropped = DroppedPrograms()
        self._lock = RLock()
        self._run: RunStarted | None = None
        self._programs: dict[str, ProgramRecord] = {}
        self._program_of: dict[str, ProgramRecord] = {}
        self._replica_changes: list[ReplicaChanged] = []
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
                    self._ended.pop(event.program, None)
                    self._program(event.program, event.name, event.at_s).begin_turn(event)
                case ProgramResumed():
                    self._program(event.program, event.program, event.at_s).resume(event)
                case ProgramEnded():
                    self._program(event.program, event.program, event.at_s).end_turn(event)
                    self._drop_old(event.program)
                case ContentRecorded():
                    if event.call in self._program_of:
                        self._program_of[event.call].take_content(event)
                case RunStarted():
                    self._run = event
                case ReplicaChanged():
                    self._replica_changes.append(event)

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

    def program_of(self, call: str) -> str:
        """The program of a call.

        Raises:
            TraceError: no such call has begun.
        """
        try:
            return self._program_of[call].id
        except KeyError:
            raise TraceError(
                f"no call {call!r} has begun in this run; report its start first"
            ) from None

    def llm_parents(self, call: str) -> tuple[str, ...]:
        """The LLM calls that a call follows, directly or through tools only."""
        with self._lock:
            record = self._program_of.get(call)
            return record.dag.llm_parents(call) if record is not None else ()

    def name(self, program: str) -> str | None:
        """What a program is called; None for one that is not known."""
        with self._lock:
            record = self._programs.get(program)
            return record.name if record is not None else None

    def node(self, call: str) -> str | None:
        """The node that makes a call; None outside of one, and for a call that is not known."""
        with self._lock:
            record = self._program_of.get(call)
            return record.dag.call(call)["node"] if record is not None else None

    def receipt(self, call: str) -> Receipt | None:
        """What a call has cost; None where that is not known, yet or any more."""
        with self._lock:
            record = self._program_of.get(call)
            return record.dag.call(call)["receipt"] if record is not None else None

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
            return run_document(self._known_run(), self._program_documents(), self._replica_changes)

    def program_document(self, program: str) -> dict[str, Any]:
        """The document with one program only.

        Raises:
            TraceError: the run's start is missing, or no such program has started.
        """
        with self._lock:
            run, record = self._known_run(), self._programs.get(program)
            if record is None:
                raise TraceError(f"no program {program!r} has started; report its start first")
            one = record.document(origin_s=run.clock_s, now_s=self._last_s)
            return run_document(run, [one], self._replica_changes)

    def streamed_document(self) -> dict[str, Any]:
        """As :meth:`document`, but its programs come one by one, each made when it is asked for.

        Raises:
            TraceError: the run's start is missing.
        """
        head = run_head(self._known_run(), self._replica_changes)
        return {**head, "programs": self._program_documents()}

    def snapshot(
        self,
        now_s: float,
        *,
        replicas: Sequence[ReplicaRow] = (),
        engine: EngineCalls = NOT_ASKED,
        programs_total: int | None = None,
        title: str = "",
    ) -> RunSnapshot:
        """The run at this moment, for the views.

        Args:
            now_s: seconds since the run's start.
            replicas: the replicas' state, from the engine.
            engine: where the live calls are, from the engine.
            programs_total: how many programs the run will have, where that is known.
            title: what runs.
        """
        with self._lock:
            dropped = self._dropped
            states = Counter(record.status for record in self._programs.values())
            states.update(dropped.states)
            started = len(self._programs) + sum(dropped.states.values())
            tokens = self._output_tokens + sum(engine.tokens.values())
            return RunSnapshot(
                elapsed_s=now_s,
                title=title,
                engine=self._run.engine if self._run else "",
                model=self._run.model if self._run else "",
                policy=self._run.policy if self._run else "",
                programs=tuple(self._rows(now_s, engine)),
                replicas=tuple(replicas),
                calls_done=self._llm_done,
                tokens=tokens,
                tokens_per_s=tokens / now_s if now_s > 0 else 0.0,
                service_s=dropped.service_s
                + sum(record.dag.service_s for record in self._programs.values()),
                wait_s=dropped.wait_s
                + sum(record.dag.wait_s for record in self._programs.values()),
                programs_running=states["running"],
                programs_done=states["done"],
                programs_failed=states["failed"],
                programs_total=started if programs_total is None else programs_total,
            )

    def graph(
        self, program: str, now_s: float, *, engine: EngineCalls = NOT_ASKED
    ) -> ProgramGraph | None:
        """The DAG of a program at this moment, for the views; None of one that has not begun."""
        with self._lock:
            record = self._programs.get(program)
            return record and program_graph(record.dag, now_s, engine)

    def _rows(self, now_s: float, engine: EngineCalls) -> Iterator[ProgramRow]:
        """All programs that have not ended, and the last ones of those that have."""
        ended = sum(record.status != "running" for record in self._programs.values())
        left_out = max(0, ended - MOST_ENDED)
        for record in self._programs.values():
            if left_out and record.status != "running":
                left_out -= 1
                continue
            yield record.row(now_s, engine)

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

    def _drop_old(self, ended: str) -> None:
        """Forget the oldest of the ended programs, where there are more than are kept."""
        if self._keep_ended is None:
            return
        self._ended.pop(ended, None)
        self._ended[ended] = None
        while len(self._ended) > self._keep_ended:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            record = self._programs.pop(oldest)
            for call in record.dag.graph:
                self._program_of.pop(call, None)
            self._dropped.add(record)

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
