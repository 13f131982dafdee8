"""Where the running code stands: its program, its enclosing run, its strand.

Context variables say it where they reach. Threads do not inherit them, and must not begin to
because they are being watched; there the thread's piece of work carries it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from .langgraph_private import enclosing_run
from .runs import Ambient, Program, Run
from .strands import Owner, Position, Strand

P = ParamSpec("P")
T = TypeVar("T")


class ThreadWork:
    """A piece of work in a thread (a whole thread, or one job of a pool), and where it forked."""

    __slots__ = ("__weakref__", "_done", "ambient", "position", "run", "whole")

    def __init__(
        self,
        position: Position | None = None,
        run: Run | None = None,
        ambient: Ambient | None = None,
        *,
        whole: bool = True,
    ) -> None:
        self.whole = whole  # a thread's whole life, in which others may run jobs of theirs
        self.position = position
        self.run = run
        self.ambient = ambient
        self._done = False

    def done(self) -> bool:
        """Whether the work has finished."""
        return self._done

    def finish(self) -> None:
        """The work has finished; let go of what it was forked from."""
        self._done = True
        self.position = self.run = self.ambient = None


class GuestWork:
    """A job in a thread whose own work is another: someone's pool that no hook knows.

    When it is over cannot be seen. It counts as finished while it makes no call.
    """

    __slots__ = ("__weakref__", "host")

    def __init__(self, host: ThreadWork) -> None:
        self.host = host

    def done(self) -> bool:
        """Whether the work may have finished."""
        return True


class Here:
    """Answers for the code that calls it. The caller holds the recorder's lock.

    Args:
        runs: the runs that are open, by id.
        main: the program of code that belongs to none.
    """

    def __init__(self, runs: dict[UUID, Run], main: Program) -> None:
        self.main = main
        self._runs = runs
        self.position: ContextVar[Position | None] = ContextVar("autellix_strand", default=None)
        self.ambient: ContextVar[Ambient | None] = ContextVar("autellix_ambient", default=None)
        self._work: ContextVar[ThreadWork | None] = ContextVar("autellix_work", default=None)
        self._guest: ContextVar[GuestWork | None] = ContextVar("autellix_guest", default=None)
        self._thread = threading.local()

    # -- who ------------------------------------------------------------------------------------

    def owner(self) -> Owner:
        """The asyncio task that runs, else the thread's piece of work."""
        # Not asyncio.current_task(): it raises where no loop runs, which is the common case here.
        loop = asyncio._get_running_loop()
        task = asyncio.current_task(loop) if loop is not None else None
        return self._thread_owner() if task is None else task

    def _thread_owner(self) -> Owner:
        work: ThreadWork | None = getattr(self._thread, "work", None)
        if work is None:
            work = self._thread.work = ThreadWork()
            self._work.set(work)
        if not work.whole or self._work.get() is work:
            return work
        guest = self._guest.get()
        if guest is None or guest.host is not work:
            guest = GuestWork(work)
            self._guest.set(guest)
        return guest

    @staticmethod
    def _is_between_tasks(owner: Owner) -> bool:
        """Whether a loop runs here that no task has the turn of."""
        of_thread = isinstance(owner, (ThreadWork, GuestWork))
        return of_thread and asyncio._get_running_loop() is not None

    def open_ambient(self) -> Ambient | None:
        """The innermost ambient program that has not been left."""
        ambient = self.ambient.get()
        while ambient is not None and ambient.closed:
            ambient = ambient.outer
        return ambient

    def ambient_of(self, program: Program) -> Ambient | None:
        """The innermost open ambient scope, where it is of this program."""
        ambient = self.open_ambient()
        return ambient if ambient is not None and ambient.program is program else None

    def member(self, parent_run_id: UUID | None) -> tuple[Program | None, Run | None]:
        """The program that the running code belongs to, and the run that encloses it."""
        known = parent_run_id
        run = self._runs.get(parent_run_id) if parent_run_id is not None else None
        if run is None and (enclosing := enclosing_run()) is not None:
            run, known = self._runs.get(enclosing), enclosing
        work = self._work.get()
        if run is None and work is not None and work.run is not None:
            known = work.run.id
            run = self._runs.get(known)
        ambient = self.open_ambient()
        if run is not None and (ambient is None or ambient.encloses(run.ambient)):
            return run.program, run
        if ambient is not None:
            return ambient.program, None
        if known is not None:
            # The run around this code has ended: work left behind stays in its program.
            position = self.position.get()
            if position is not None and position[0].program is not self.main:
                return position[0].program, None
        return None, None

    # -- on which strand ------------------------------------------------------------------------

    def strand(self, program: Program, run: Run | None) -> Strand:
        """The strand of the running code in a program; a fork where another owner runs now."""
        owner = self.owner()
        position = self.position.get()
        found: Strand | None = None
        if position is not None:
            strand, pinned = position
            if strand.program is program and not strand.ran_on(owner):
                return self.stand_on(strand.fork(owner, pinned))
            if strand.program is program and not strand.closed:
                return strand
            found = _usable(strand, program)
        if found is None and run is not None:
            found = _usable(run.strand, program)
        if found is None:
            ambient = self.ambient_of(program)
            found = ambient.strand if ambient is not None else None
        return self._same_or_fork(found, owner, program)

    def stand_on(self, strand: Strand) -> Strand:
        """From now on the running code is on this strand, its frontier pinned."""
        self.position.set((strand, strand.pinned()))
        return strand

    def stand_again(self, strand: Strand) -> None:
        """The frontier of a strand has changed: pin it anew, if this context is on it."""
        position = self.position.get()
        if position is not None and position[0] is strand:
            self.stand_on(strand)

    def step_back(self, strand: Strand, position: Position | None) -> None:
        """Leave a scope, if this context is on it (an async run ends in another context)."""
        now = self.position.get()
        if now is not None and now[0] is strand:
            self.position.set(position)

    def outer(self) -> Strand | None:
        """The open strand around a scope that begins here."""
        position = self.position.get()
        return _usable(position[0], None) if position is not None else None

    # -- forks ----------------------------------------------------------------------------------

    def is_pinned(self) -> bool:
        """Whether a fork taken now would see the right frontier already; needs no lock."""
        position = self.position.get()
        if position is None:
            return False
        (strand, pinned), owner = position, self.owner()
        if not strand.ran_on(owner) and self._is_between_tasks(owner):
            return True  # a finalizer in the context of a task about to run, which keeps its place
        return not strand.kids and strand.owner is owner and strand.pinned() is pinned

    def pin(self) -> None:
        """Pin the frontier of the running strand, whatever its program, in this context."""
        owner, position = self.owner(), self.position.get()
        if position is None:
            strand = Strand(owner, self.main)
        elif not position[0].ran_on(owner):
            strand = position[0].fork(owner, position[1])
        elif not position[0].closed:
            strand = position[0]
        else:
            strand = self._same_or_fork(_usable(position[0], None), owner, self.main)
        strand.join_finished()
        self.stand_on(strand)

    def branch(self, *, whole: bool) -> ThreadWork:
        """A piece of work for another thread, forked here."""
        program, run = self.member(None)
        strand = self.strand(program or self.main, run)
        strand.join_finished()
        return ThreadWork((strand, strand.pinned()), run, self.open_ambient(), whole=whole)

    def runner(self, work: ThreadWork) -> Callable[..., Any]:
        """``run(function, *args, **kwargs)`` that does the work in the thread that calls it."""
        return functools.partial(self._do, work)

    def _do(
        self, work: ThreadWork, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        before: ThreadWork | None = getattr(self._thread, "work", None)
        self._thread.work = work
        mine = self._work.set(work)
        position = self.position.set(work.position)
        ambient = self.ambient.set(work.ambient)
        try:
            return function(*args, **kwargs)
        finally:
            work.finish()
            self._work.reset(mine)
            self.position.reset(position)
            self.ambient.reset(ambient)
            if before is None:
                del self._thread.work
            else:
                self._thread.work = before

    def _same_or_fork(self, strand: Strand | None, owner: Owner, program: Program) -> Strand:
        if strand is None:
            return self.stand_on(Strand(owner, program))
        if strand.owner is not owner:
            strand.join_finished()
            strand = strand.fork(owner, strand.pinned())
        return self.stand_on(strand)


def _usable(strand: Strand | None, program: Program | None) -> Strand | None:
    """The nearest strand outwards (of a program, where one is given) that calls can start on."""
    while strand is not None and (
        strand.closed or strand.passive or (program is not None and strand.program is not program)
    ):
        strand = strand.parent
    return strand
