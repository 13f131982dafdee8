"""The calls that are open: LLM calls and tools, from their start to whatever ends them."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from ..runtime.protocols import CallEnd, CallKind, CallStart, Parent
from .audience import Audience
from .here import Here
from .runs import Program, Run
from .strands import Strand

MAIN = "main"


class OpenCalls:
    """Starts and ends calls; a call whose scope has gone is aborted.

    Args:
        runs: the runs that are open, by id; calls are among them.
        here: knows where the running code stands.
        lock: guards both, and strands.
        audience: told outside the lock.
    """

    def __init__(
        self, runs: dict[UUID, Run], here: Here, lock: threading.RLock, audience: Audience
    ) -> None:
        self._runs = runs
        self._here = here
        self._lock = lock
        self._audience = audience
        self._heartbeats: dict[UUID, Callable[[], None]] = {}

    def start(
        self,
        kind: CallKind,
        run_id: UUID,
        parent_run_id: UUID | None,
        *,
        name: str,
        node: str | None,
        outside: bool = False,
        beside: UUID | None = None,
        heartbeat: Callable[[], None] | None = None,
        tasks: tuple[str, ...] = (),
    ) -> None:
        """An LLM or tool call begins.

        Args:
            heartbeat: tells whoever waits for the call that it is alive; see :meth:`beat`.
            outside: no callback announced it and none will end it.
            beside: it stands where this open call stands, not where the running code does.
            tasks: ids of the graph tasks around it.
        """
        with self._lock:
            twin = self._runs.get(beside) if beside is not None else None
            program, parent = (
                self._here.member(parent_run_id) if twin is None else (twin.program, twin.parent)
            )
            first = program is None and not self._here.main.turns
            if program is None:
                program = self._here.main
                program.turns = 1
            strand = self._here.strand(program, parent) if twin is None else twin.strand
            run = Run(run_id, parent, program, self._here.ambient_of(program), strand, node)
            run.kind, run.call = kind, str(run_id)
            run.outside = run.claimed = outside
            run.deps = strand.start(run, tool=kind == "tool")
            self._runs[run_id] = program.calls[run_id] = run
            if heartbeat is not None:
                self._heartbeats[run_id] = heartbeat
            start = _start_of(run, name, tasks)
        if first:
            self._audience.program_started(MAIN, MAIN)
        self._audience.call_started(start)
        if strand.forked and not strand.watched and isinstance(strand.owner, asyncio.Task):
            strand.watched = True
            strand.owner.add_done_callback(functools.partial(self._task_done, strand))

    def beat(self) -> None:
        """Tell those who wait for open LLM calls that these are alive."""
        with self._lock:
            heartbeats = list(self._heartbeats.values())
        for heartbeat in heartbeats:
            heartbeat()

    def claim(self, run_id: UUID) -> bool:
        """Whether an LLM call is open and nobody has claimed it before."""
        with self._lock:
            run = self._runs.get(run_id)
            if run is None or run.kind != "llm" or run.claimed:
                return False
            run.claimed = True
            return True

    def claim_beside(self, run_id: UUID) -> UUID | None:
        """Claim the next call that was announced together with this one."""
        with self._lock:
            run = self._runs.get(run_id)
            if run is None or run.outside:
                return None
            for other in run.program.calls.values():
                together = other.strand is run.strand and other.parent is run.parent
                if together and other.kind == "llm" and not other.claimed:
                    other.claimed = True
                    return other.id
            return None

    def end(
        self, run_id: UUID, status: CallEnd, error: str | None = None, *, outside: bool = False
    ) -> None:
        """A call is over; who told its beginning tells its end, others are not heard."""
        run = self._runs.get(run_id)
        if run is not None and run.kind is not None and run.outside == outside:
            self._end(run, status, error)

    def abort_all(self, program: Program) -> None:
        """Abort every open call of a program."""
        for run in list(program.calls.values()):
            self._end(run, "aborted")

    def abort(self, run: Run) -> None:
        """Abort one open call."""
        self._end(run, "aborted")

    def abandon(self, run: Run, *, everything: bool) -> None:
        """Abort the calls below a run that ends while they are open.

        Args:
            everything: also those that another task or thread could go on with.
        """
        if not run.children:
            return
        with self._lock:
            lost = run.leftovers(everything=everything)
        for child in lost:
            if child.kind is not None:
                self._end(child, "aborted")
            elif self._runs.pop(child.id, None) is not None:
                with self._lock:
                    child.close_scope()

    def _end(self, run: Run, status: CallEnd, error: str | None = None) -> None:
        if run.program.calls.pop(run.id, None) is None:
            return  # aborted before
        self._heartbeats.pop(run.id, None)
        self.abandon(run, everything=status != "done")
        # Told before it enters a frontier: an observer hears of a call after all its parents.
        self._audience.call_ended(run.call, status, error)
        with self._lock:
            self._runs.pop(run.id, None)
            run.strand.end(run, tool=run.kind == "tool")
            run.close_scope()

    def _task_done(self, strand: Strand, task: asyncio.Task[Any]) -> None:
        """A cancelled asyncio task tells nobody that its calls are over."""
        if task.cancelled():
            for run in list(strand.open):
                self._end(run, "aborted")


def _start_of(run: Run, name: str, tasks: tuple[str, ...]) -> CallStart:
    """What observers are told of a call that begins."""
    assert run.kind is not None
    task = run.strand.task
    return CallStart(
        program=run.program.id,
        call=run.call,
        kind=run.kind,
        name=name,
        node=run.node or (task.node if task is not None else None),
        parents=tuple(
            Parent(id=dep, kind="order" if task is None else task.kind(dep))
            for dep in sorted(run.deps)
        ),
        attempt=task.attempts() if task is not None else 1,
        tasks=tasks,
    )
