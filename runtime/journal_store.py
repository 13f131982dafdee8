"""Where checkpointers tell of their threads, with a running session or without one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from .journal import ThreadRef
from .journal_threads import ThreadAccounts, default_journal


class RunningStore:
    """The threads of a session. Satisfies ``ThreadStore``."""

    def __init__(self, threads: ThreadAccounts) -> None:
        self._threads = threads

    def read_ahead(self, store: str, thread: str) -> None:
        """A checkpoint of the thread is about to be read."""
        self._threads.read_ahead(ThreadRef(store, thread))

    def snapshot_now(self, store: str, thread: str) -> dict[str, Any] | None:
        """The account of a thread that runs."""
        return self._threads.snapshot_of(ThreadRef(store, thread))

    def saved(self, store: str, thread: str) -> None:
        """A checkpoint of the thread has been stored."""
        self._threads.saved(ThreadRef(store, thread))

    def deleted(self, store: str, thread: str) -> None:
        """The thread has been deleted."""
        self._threads.delete(ThreadRef(store, thread))

    def copied(self, store: str, source: str, target: str) -> None:
        """A thread has been copied."""
        self._threads.copy(ThreadRef(store, source), ThreadRef(store, target))

    def pruned(self, store: str, threads: Sequence[str], strategy: str) -> None:
        """Threads have been pruned."""
        self._threads.prune([ThreadRef(store, thread) for thread in threads], strategy)


class IdleStore(RunningStore):
    """The journal alone: no program runs, but threads may be deleted, copied and pruned."""

    def __init__(self) -> None:
        super().__init__(ThreadAccounts(default_journal()))

    def read_ahead(self, store: str, thread: str) -> None:
        """Nobody is going to ask."""

    def saved(self, store: str, thread: str) -> None:
        """No program runs that could have entries."""

    def deleted(self, store: str, thread: str) -> None:
        """The thread has been deleted."""
        with self._closing():
            super().deleted(store, thread)

    def copied(self, store: str, source: str, target: str) -> None:
        """A thread has been copied."""
        with self._closing():
            super().copied(store, source, target)

    def pruned(self, store: str, threads: Sequence[str], strategy: str) -> None:
        """Threads have been pruned."""
        with self._closing():
            super().pruned(store, threads, strategy)

    def _closing(self) -> ExitStack:
        stack = ExitStack()
        stack.callback(self._threads.close)
        return stack


def current_store() -> RunningStore:
    """The store of the process's session; of the journal alone where there is none."""
    from .session import running_session

    session = running_session()
    return session.programs.store if session is not None else IdleStore()
