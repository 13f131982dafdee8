"""The run's programs: process table, trace and tickets kept in step with what happens.

The recorder tells what programs and calls do; the engine's receipts tell what calls cost; the
chat front end asks for tickets. All of it meets here, under one lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from autellix.errors import CallError

from ..scheduler.policies import Policy
from ..scheduler.process_table import ProcessTable
from ..scheduler.service_history import ServiceHistory
from ..scheduler.tickets import Receipt, Ticket
from ..scheduler.tool_times import ToolTimes
from ..tracing.events import (
    CallEnded,
    CallStarted,
    ProgramEnded,
    ProgramResumed,
    ProgramStarted,
    ReceiptArrived,
)
from ..tracing.record import RunRecord
from .absences import Absences
from .journal_store import RunningStore
from .journal_threads import ThreadAccounts, default_journal
from .protocols import CallEnd, CallStart, ProgramEnd, ThreadLoad

# Calls that nobody recorded (no callback reached them) belong to this program.
UNRECORDED = "main"


class Programs:
    """Satisfies ``ProgramObserver`` and ``ThreadKeeper``.

    Args:
        policy: turns a program's history into the attained service of its next call.
        record: takes every event.
        now: seconds since the run's start.
        stop_call: asks the engine to stop a call that its program has given up.
        forget: tells the engine that a program has ended.
        away: tells the engine that a program is in a tool or waits for a person, and quantiles of
            how long that takes, seconds.
        returns: tells the engine that what kept a program away has ended.
        tool_times: how long tools have taken in earlier runs; it learns on.
        threads: keeps the accounts of threads; by default in the journal of the user.
    """

    def __init__(
        self,
        policy: Policy,
        record: RunRecord,
        now: Callable[[], float],
        stop_call: Callable[[str], None],
        forget: Callable[[str], None],
        threads: ThreadAccounts | None = None,
        away: Callable[[str, Sequence[float]], None] | None = None,
        returns: Callable[[str], None] | None = None,
        tool_times: ToolTimes | None = None,
    ) -> None:
        self.record = record
        self.table = ProcessTable(policy)
        self.threads = threads or ThreadAccounts(default_journal())
        self.store = RunningStore(self.threads)
        self._now = now
        self._stop_call = stop_call
        self._forget = forget
        self._absences = Absences(away, returns, tool_times) if away is not None else None
        self._lock = threading.RLock()
        self._program_of: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._tools: dict[str, tuple[str, str, float]] = {}
        self._served: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._adopted: set[str] = set()
        self._turns: Counter[str] = Counter()
        self._earlier_calls: dict[str, int] = {}
        self._resumed = 0

    def program_started(self, program: str, name: str) -> None:
        """A run of the program begins; a later turn continues where the last one ended."""
        with self._lock:
            at_s = self._now()
            self._turns[program] += 1
            self.record.apply(ProgramStarted(at_s=at_s, program=program, name=name))
            entry, dag = self.table.open(program, at_s, name), self.record.dag(program)
            # Not those before an interruption: that turn goes on with this one.
            self._earlier_calls.setdefault(program, len(dag))
            entry.service_s = max(entry.service_s, dag.service_s)
            entry.critical_path_s = max(entry.critical_path_s, dag.critical_path_s)
            entry.wait_s = max(entry.wait_s, dag.wait_s)
        if self._absences is not None:
            self._absences.goes_on(program)

    def program_ended(self, program: str, status: ProgramEnd, error: str | None) -> None:
        """A run is over; with the last one under way its entry in the process table is freed."""
        with self._lock:
            self._turns[program] -= 1
            # One that waits for a person may go on: how large it is, is not known yet.
            self._close_if_over(program, ended=status != "interrupted", done=status == "done")
            self.record.apply(
                ProgramEnded(at_s=self._now(), program=program, status=status, error=error)
            )
            self.threads.end_turn(program, status)
        if status == "interrupted" and self._absences is not None:
            self._absences.interrupted(program)
        else:
            if self._absences is not None:
                self._absences.forget(program)
            self._forget(program)

    def _close_if_over(self, program: str, *, ended: bool, done: bool = False) -> None:
        """Free the entry of a program without a turn, whether or not it was there any more.

        Args:
            ended: it does not go on.
            done: it came to its own end: its chains of calls are whole.
        """
        if self._turns[program] <= 0:
            del self._turns[program]
            since = self._earlier_calls.pop(program, None) if ended else None
            # A record that keeps few programs may have let this one go.
            known = done and since is not None and self.record.name(program) is not None
            chains = self.record.dag(program).chains(since or 0) if known else ()
            self.table.close(program, ended=ended, chains=chains)

    # -- threads ------------------------------------------------------------------------------

    def thread_loaded(self, program: str, load: ThreadLoad) -> frozenset[str] | None:
        """A graph run begins from a checkpoint: the program goes on with what its thread had."""
        with self._lock:
            first = not self.threads.is_bound(program)
            bound = self.threads.load(program, load)
            if bound is None:
                return None
            account, start_s = bound.account, bound.branch_s
            if load.nested:
                if load.snapshot is None:
                    return None
            else:
                entry = self.table.open(program, self._now())
                entry.service_s, entry.wait_s = account.service_s, account.wait_s
                entry.owed_wait_s, entry.critical_path_s = account.owed_wait_s, start_s
                new = first and load.checkpoint is None and not account.calls
                if bound.continues or (new and program != load.thread):
                    return None
            return self._earlier(program, start_s)

    def tasks_ended(self, program: str, tasks: Collection[str]) -> frozenset[str]:
        """A run goes on in a superstep of which these tasks have ended, and are not run again."""
        with self._lock:
            return self._earlier(program, self.threads.go_on(program, tasks))

    def _earlier(self, program: str, critical_path_s: float) -> frozenset[str]:
        """What stands in the record for earlier calls with a chain of this length."""
        if critical_path_s <= 0.0:
            return frozenset()
        self._resumed += 1
        earlier = f"{program}/earlier-{self._resumed}"
        self.record.apply(
            ProgramResumed(
                at_s=self._now(),
                program=program,
                earlier=earlier,
                critical_path_s=critical_path_s,
            )
        )
        return frozenset((earlier,))

    def thread_snapshot(self, program: str, store: str, thread: str) -> dict[str, Any] | None:
        """The account that a checkpoint made now is to carry."""
        return self.threads.snapshot(program, store, thread)

    def thread_written(
        self, program: str, store: str, thread: str, checkpoint: str, calls: int
    ) -> None:
        """A graph run has made a checkpoint."""
        self.threads.written(program, (store, thread), checkpoint, calls)

    # -- calls --------------------------------------------------------------------------------

    def call_started(self, start: CallStart) -> None:
        """A call begins."""
        with self._lock:
            if start.kind == "llm":
                self._program_of[start.call] = start.program, start.tasks
            else:
                self._tools[start.call] = (start.program, start.name, self._now())
            self.record.apply(
                CallStarted(
                    at_s=self._now(),
                    program=start.program,
                    call=start.call,
                    kind=start.kind,
                    name=start.name,
                    node=start.node,
                    parents=tuple((parent.id, parent.kind) for parent in start.parents),
                    attempt=start.attempt,
                )
            )
        if self._absences is not None:
            self._absences.call_started(start)

    def call_ended(self, call: str, status: CallEnd, error: str | None) -> None:
        """A call is over; one that its program gave up is stopped in the engine."""
        with self._lock:
            at_s = self._now()
            self._program_of.pop(call, None)
            self.record.apply(CallEnded(at_s=at_s, call=call, status=status, error=error))
            tool = self._tools.pop(call, None)
            if tool is not None and status == "done":
                program, name, start_s = tool
                self.threads.tool_finished(program, call, name, at_s - start_s)
        if self._absences is not None:
            self._absences.call_ended(call, done=status == "done")
        if status == "aborted":
            self._stop_call(call)

    def ticket(self, call: str) -> Ticket:
        """The ticket of a call that goes to the engine now; :meth:`prompt_known` completes it.

        Raises:
            CallError: its program has given it up meanwhile.
        """
        with self._lock:
            if call not in self._program_of:
                if call in self.record:
                    raise CallError("The call was stopped before it began: its program gave it up.")
                self._adopt(call)
            program, _ = self._served[call] = self._program_of[call]
            dag = self.record.dag(program)
            return self.table.call_started(
                program,
                call,
                self._now(),
                chain_s=dag.attained_s(call),
                prompt_tokens=None,
                node=dag.call(call)["node"],
            )

    def learn_in(self, history: ServiceHistory) -> None:
        """The engine is there: from now on, what programs do is told to ``history``."""
        with self._lock:
            self.table.history = history

    def prompt_known(self, ticket: Ticket, prompt_tokens: int) -> Ticket:
        """The ticket of a call whose prompt turns out to have so many tokens."""
        with self._lock:
            return self.table.prompt_known(ticket, prompt_tokens)

    def receipt(self, receipt: Receipt) -> None:
        """The engine tells what a call cost."""
        with self._lock:
            at_s = self._now()
            self.table.call_ended(receipt.call, at_s, receipt)
            if receipt.call in self.record:
                self.record.apply(ReceiptArrived(at_s=at_s, call=receipt.call, receipt=receipt))
                through_s = self.record.attained_s(receipt.call) + receipt.service_s
                _, tasks = self._served.get(receipt.call, ("", ()))
                self.threads.call_finished(receipt.program, receipt, through_s, tasks)

    def served(self, call: str, error: str | None = None) -> None:
        """The front end is done with a call: whatever the engine did not say, it is over."""
        with self._lock:
            self.table.call_ended(call, self._now(), None)
            program, _ = self._served.pop(call, (UNRECORDED, ()))
            entry = self.table.programs.get(program)
            if program != UNRECORDED and entry is not None and not entry.active:
                # Work that its program had left behind.
                self._close_if_over(program, ended=False)
            if call in self._adopted:
                self._adopted.discard(call)
                self.call_ended(call, "failed" if error else "done", error)

    def _adopt(self, call: str) -> None:
        self._adopted.add(call)
        self.call_started(
            CallStart(program=UNRECORDED, call=call, kind="llm", name="chat", node=None, parents=())
        )
