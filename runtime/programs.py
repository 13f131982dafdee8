"""The run's programs: process table, trace and tickets kept in step with what happens.

The recorder tells what programs and calls do; the engine's receipts tell what calls cost; the
chat front end asks for tickets. All of it meets here, under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..scheduler.policies import Policy
from ..scheduler.process_table import ProcessTable
from ..scheduler.tickets import Receipt, Ticket
from ..tracing.events import (
    CallEnded,
    CallStarted,
    ProgramEnded,
    ProgramStarted,
    ReceiptArrived,
)
from ..tracing.record import RunRecord
from .protocols import CallEnd, CallStart, ProgramEnd

# Calls that nobody recorded (no callback reached them) belong to this program.
UNRECORDED = "main"


class Programs:
    """Satisfies ``ProgramObserver``.

    Args:
        policy: turns a program's history into the attained service of its next call.
        record: takes every event.
        now: seconds since the run's start.
        stop_call: asks the engine to stop a call that its program has given up.
    """

    def __init__(
        self,
        policy: Policy,
        record: RunRecord,
        now: Callable[[], float],
        stop_call: Callable[[str], None],
    ) -> None:
        self.record = record
        self.table = ProcessTable(policy)
        self._now = now
        self._stop_call = stop_call
        self._lock = threading.RLock()
        self._program_of: dict[str, str] = {}
        self._adopted: set[str] = set()

    def program_started(self, program: str, name: str) -> None:
        """A run of the program begins; a later turn continues where the last one ended."""
        with self._lock:
            at_s = self._now()
            self.record.apply(ProgramStarted(at_s=at_s, program=program, name=name))
            entry, dag = self.table.open(program, at_s), self.record.dag(program)
            entry.service_s = max(entry.service_s, dag.service_s)
            entry.critical_path_s = max(entry.critical_path_s, dag.critical_path_s)
            entry.wait_s = max(entry.wait_s, dag.wait_s)

    def program_ended(self, program: str, status: ProgramEnd, error: str | None) -> None:
        """The run is over: its entry in the process table is freed."""
        with self._lock:
            self.table.close(program)
            self.record.apply(
                ProgramEnded(at_s=self._now(), program=program, status=status, error=error)
            )

    def call_started(self, start: CallStart) -> None:
        """A call begins."""
        with self._lock:
            if start.kind == "llm":
                self._program_of[start.call] = start.program
            self.record.apply(
                CallStarted(
                    at_s=self._now(),
                    program=start.program,
                    call=start.call,
                    kind=start.kind,
                    name=start.name,
                    node=start.node,
                    parents=tuple((parent.id, parent.kind) for parent in start.parents),
                )
            )

    def call_ended(self, call: str, status: CallEnd, error: str | None) -> None:
        """A call is over; one that its program gave up is stopped in the engine."""
        with self._lock:
            self._program_of.pop(call, None)
            self.record.apply(CallEnded(at_s=self._now(), call=call, status=status, error=error))
        if status == "aborted":
            self._stop_call(call)

    def ticket(self, call: str) -> Ticket:
        """The ticket of a call that goes to the engine now."""
        with self._lock:
            program = self._program_of.get(call)
            if program is None:
                program = self._adopt(call)
            return self.table.call_started(
                program, call, self._now(), chain_s=self.record.attained_s(call)
            )

    def receipt(self, receipt: Receipt) -> None:
        """The engine tells what a call cost."""
        with self._lock:
            at_s = self._now()
            self.table.call_ended(receipt.call, at_s, receipt)
            if receipt.call in self.record:
                self.record.apply(ReceiptArrived(at_s=at_s, call=receipt.call, receipt=receipt))

    def served(self, call: str, error: str | None = None) -> None:
        """The front end is done with a call: whatever the engine did not say, it is over."""
        with self._lock:
            self.table.call_ended(call, self._now(), None)
            if call in self._adopted:
                self._adopted.discard(call)
                self.call_ended(call, "failed" if error else "done", error)

    def _adopt(self, call: str) -> str:
        self._adopted.add(call)
        self.call_started(
            CallStart(program=UNRECORDED, call=call, kind="llm", name="chat", node=None, parents=())
        )
        return UNRECORDED
