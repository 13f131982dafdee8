"""The threads that programs run as: their accounts, kept across turns, processes and crashes.

1. A program is bound to the first thread that a graph of it loads; a thread that runs inside
   another program is part of that one, and keeps no account of its own there.
2. Totals of a thread are the larger of the journal's and the snapshot's in the loaded checkpoint.
   Its critical path is that of the loaded checkpoint: a fork continues from the fork point's.
3. A thread whose store has lost its checkpoints is a new one, although the journal knows its name.
   It is not lost while it never had one: a run may be killed before its first checkpoint.
4. Stores that end with the process ("memory:...") are journalled in memory.
5. A run may go on in the middle of a superstep, which an interrupt, a failure or a kill broke off.
   Tasks that had ended by then are not run again: their chains, kept by task in journal and late
   snapshots, go on with the thread.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..scheduler.tickets import Receipt
from .journal import FOLD_AT, Journal, ThreadHistory, ThreadRef
from .journal_account import (
    BRANCHES,
    RESET,
    SAVED,
    SNAPSHOT_VERSION,
    Account,
    Entry,
    call_entry,
    tool_entry,
    turn_entry,
)
from .protocols import ProgramEnd, ThreadLoad

log = logging.getLogger("autellix")

MEMORY = "memory:"
_REMEMBERED = 10_000  # threads that no program runs as


def default_journal() -> Path:
    """Where the journal lies: ``AUTELLIX_JOURNAL``, else in the user's state folder."""
    named = os.environ.get("AUTELLIX_JOURNAL")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "autellix" / "journal.sqlite"


@dataclass(slots=True, kw_only=True)
class BoundThread:
    """A thread that a program runs as now.

    Attributes:
        account: its totals.
        branch_s: critical path of the branch of checkpoints it is on, seconds.
        continues: it goes on where this process last left it.
        turns: how many turns of it are open.
        tip: id of the checkpoint last written, and how many calls there were by then.
    """

    ref: ThreadRef
    account: Account
    branch_s: float = 0.0
    continues: bool = False
    turns: int = 1
    tip: tuple[str, int] | None = None
    _wire: dict[str, Any] | None = field(default=None)

    def book(self, entry: Entry) -> None:
        """Take a finished call or tool in."""
        self.account.book(entry)
        self.branch_s = max(self.branch_s, entry.get("through_s", 0.0))
        self._wire = None

    def snapshot(self) -> dict[str, Any]:
        """What goes into the metadata of a checkpoint written now."""
        if self._wire is None:
            self._wire = self.account.to_wire()
            self._wire["critical_path_s"] = self.branch_s
            self._wire.pop(BRANCHES, None)  # a checkpoint is made where a superstep is over
        return self._wire

    def late_snapshot(self) -> dict[str, Any]:
        """What goes with the writes of a superstep that is broken off now."""
        snapshot = self.snapshot()
        branches = self.account.branches
        return {**snapshot, BRANCHES: branches.copy()} if branches else snapshot


class ThreadAccounts:
    """All threads of a session. Safe from any thread.

    Args:
        path: the journal; opened when the first thread needs it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._disk: Journal | None = None
        self._memory: Journal | None = None
        self._bound: dict[str, BoundThread] = {}
        self._read_ahead: OrderedDict[ThreadRef, ThreadHistory | None] = OrderedDict()
        self._left: OrderedDict[str, ThreadRef] = OrderedDict()
        self._tips: OrderedDict[ThreadRef, tuple[str, int]] = OrderedDict()
        self._saved: OrderedDict[ThreadRef, None] = OrderedDict()

    def open_journal(self) -> Journal:
        """The journal on disk.

        Raises:
            JournalError: it cannot be used.
        """
        with self._lock:
            if self._disk is None:
                self._disk = Journal(self._path)
            return self._disk

    def _journal(self, ref: ThreadRef) -> Journal:
        if not ref.store.startswith(MEMORY):
            return self.open_journal()
        with self._lock:
            if self._memory is None:
                self._memory = Journal(None)
            return self._memory

    # -- turns --------------------------------------------------------------------------------

    def read_ahead(self, ref: ThreadRef) -> None:
        """Read a thread's journal before its checkpoint is read; may block."""
        history = self._journal(ref).history(ref)
        with self._lock:
            _remember(self._read_ahead, ref, history)

    def load(self, program: str, load: ThreadLoad) -> BoundThread | None:
        """A graph of a program has loaded a checkpoint, or found none.

        Returns:
            The thread, bound to the program; None where the program runs as another one (rule 1).
        """
        ref = ThreadRef(load.store, load.thread)
        with self._lock:
            bound = self._bound.get(program)
            if bound is not None and bound.ref != ref:
                return None
            snapshot = _account_in(load.snapshot, ref)
            if load.nested:
                if bound is not None and snapshot is not None:
                    bound.branch_s = max(bound.branch_s, snapshot.critical_path_s)
                return bound
            account, known = self._known(ref, load)
            start_s = account.critical_path_s if snapshot is None else snapshot.critical_path_s
            if snapshot is not None:
                account.at_least(snapshot)
            tip = self._tips.get(ref) if bound is None else bound.tip
            continues = known and tip is not None and tip == (load.checkpoint, account.calls)
            if bound is None:
                bound = self._bound[program] = BoundThread(ref=ref, account=account)
            else:
                bound.turns += load.is_turn
                bound.account, bound._wire = account, None
            others = load.is_turn and bound.turns > 1
            bound.branch_s = max(bound.branch_s, start_s) if others else start_s
            bound.continues = continues
            return bound

    def _known(self, ref: ThreadRef, load: ThreadLoad) -> tuple[Account, bool]:
        """A thread's account by the journal, and whether the journal knows it."""
        journal = self._journal(ref)
        history = self._read_ahead.pop(ref) if ref in self._read_ahead else journal.history(ref)
        if history is None:
            return Account(), False
        if load.checkpoint is None and not load.addressed and history.saved:  # rule 3
            journal.append(ref, f"reset {uuid.uuid4()}", RESET)
            self._saved.pop(ref, None)
            return Account(), False
        if history.entries >= FOLD_AT:
            journal.compact(ref)
        return history.account, True

    def go_on(self, program: str, tasks: Collection[str]) -> float:
        """The longest chain that ends in one of these tasks, which are not run again, seconds."""
        with self._lock:
            bound = self._bound.get(program)
            if bound is None:
                return 0.0
            ended_s = bound.account.longest(tasks)
            bound.branch_s = max(bound.branch_s, ended_s)
            bound._wire = None
            return ended_s

    def is_bound(self, program: str) -> bool:
        """Whether a program runs as a thread."""
        return program in self._bound

    def end_turn(self, program: str, status: ProgramEnd) -> None:
        """A turn of a program is over; its thread is let go with the last one."""
        with self._lock:
            bound = self._bound.get(program)
            if bound is None:
                return
            entry = turn_entry(status)
            bound.book(entry)
            self._journal(bound.ref).append(bound.ref, f"turn {uuid.uuid4()}", entry)
            bound.turns -= 1
            if bound.turns > 0:
                return
            del self._bound[program]
            _remember(self._left, program, bound.ref)
            self._tips.pop(bound.ref, None)
            if bound.tip is not None:
                _remember(self._tips, bound.ref, bound.tip)

    # -- calls --------------------------------------------------------------------------------

    def call_finished(
        self, program: str, receipt: Receipt, through_s: float, tasks: Sequence[str] = ()
    ) -> None:
        """An LLM call of a program has ended, maybe after the program.

        Args:
            through_s: p(c) + t(c), seconds.
            tasks: ids of the graph tasks that it was made in.
        """
        self._book(program, receipt.call, call_entry(receipt, through_s, tasks))

    def tool_finished(self, program: str, call: str, name: str, duration_s: float) -> None:
        """A tool of a program has ended."""
        self._book(program, call, tool_entry(name, duration_s))

    def _book(self, program: str, call: str, entry: Entry) -> None:
        with self._lock:
            bound = self._bound.get(program)
            ref = bound.ref if bound is not None else self._left.get(program)
            if bound is not None:
                bound.book(entry)
                bound.snapshot()  # made now: an event loop may wait where a checkpoint is made
        if ref is not None:
            self._journal(ref).append(ref, call, entry)

    # -- checkpoints --------------------------------------------------------------------------

    def snapshot(self, program: str, store: str, thread: str) -> dict[str, Any] | None:
        """What a checkpoint of a thread carries; None where no program runs as the thread."""
        with self._lock:
            bound = self._bound.get(program)
            return bound.snapshot() if bound is not None and bound.ref == (store, thread) else None

    def snapshot_of(self, ref: ThreadRef) -> dict[str, Any] | None:
        """The same, whatever program runs as the thread."""
        with self._lock:
            running = (bound for bound in self._bound.values() if bound.ref == ref)
            bound = next(running, None)
            return bound.late_snapshot() if bound is not None else None

    def written(self, program: str, ref: tuple[str, str], checkpoint: str, calls: int) -> None:
        """A graph has made a checkpoint of its thread, which stands after so many calls."""
        with self._lock:
            bound = self._bound.get(program)
            if bound is not None and bound.ref == ref:
                bound.tip = (checkpoint, calls)
                bound.account.branches.clear()

    def saved(self, ref: ThreadRef) -> None:
        """A checkpoint of a thread is in its store; may block."""
        with self._lock:
            if ref in self._saved:
                return
            _remember(self._saved, ref, None)
        self._journal(ref).append(ref, "saved", SAVED)

    # -- whole threads ------------------------------------------------------------------------

    def delete(self, ref: ThreadRef) -> None:
        """Its store has deleted a thread."""
        with self._lock:
            for known in (self._read_ahead, self._tips, self._saved):
                known.pop(ref, None)
            for bound in self._bound.values():
                if bound.ref == ref:
                    bound.account, bound.branch_s, bound.tip = Account(), 0.0, None
                    bound._wire = None
        if self._has_journal(ref):
            self._journal(ref).delete(ref)

    def copy(self, source: ThreadRef, target: ThreadRef) -> None:
        """Its store has copied a thread."""
        with self._lock:
            self._read_ahead.pop(target, None)
            self._tips.pop(target, None)
        if self._has_journal(source):
            self._journal(source).copy(source, target)

    def prune(self, refs: Sequence[ThreadRef], strategy: str) -> None:
        """Its store has pruned threads."""
        for ref in refs:
            if strategy == "delete":
                self.delete(ref)
            elif self._has_journal(ref):
                self._journal(ref).compact(ref)

    def _has_journal(self, ref: ThreadRef) -> bool:
        if ref.store.startswith(MEMORY):
            return self._memory is not None
        return self._disk is not None or self._path.exists()

    def close(self) -> None:
        """Close the journals; safe to call twice."""
        with self._lock:
            journals = (self._disk, self._memory)
            self._disk = self._memory = None
        for journal in journals:
            if journal is not None:
                journal.close()


def _account_in(snapshot: Mapping[str, Any] | None, ref: ThreadRef) -> Account | None:
    """The account that a checkpoint carries; None where it carries none that can be read."""
    if snapshot is None:
        return None
    version = snapshot.get("v")
    try:
        if version != SNAPSHOT_VERSION:
            raise ValueError(
                f"it has version {version}, this release reads version {SNAPSHOT_VERSION}; "
                "install a newer Autellix"
            )
        return Account.from_wire(snapshot)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        log.warning(
            "The snapshot in a checkpoint of thread %s cannot be used: %s. Its totals come from "
            "the journal alone.",
            ref.thread,
            cause,
        )
        return None


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
