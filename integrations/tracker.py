"""The recorder's core: programs, runs and open calls as they come and go.

Knows runs, not frameworks: ``recorder.py`` turns callbacks into these methods. The DAG's rules are
numbered in ``strands.py`` (inside a task) and ``supersteps.py`` (between the tasks of a graph).

Who is the program of a run? The first that applies:

1. the innermost ``enter_program`` scope inside the enclosing run, or that no run encloses;
2. the program of the enclosing run (by parent id, else by the context's run, else by the run that
   forked this thread);
3. of a chain without any: a program of its own, id = the thread_id where it has one, else the run
   id. A thread's next turn follows the calls of the one before;
4. of a bare call without any: the program "main", until ``close_main``.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..runtime.protocols import CallEnd, CallKind, CallStart, Parent, ProgramEnd, ProgramObserver
from .here import Here
from .runs import Ambient, Program, Run
from .strands import EMPTY, Strand
from .supersteps import Supersteps

log = logging.getLogger("autellix")
MAIN = "main"
_KEPT_THREADS = 10_000  # frontiers of threads that have no turn open; the oldest go first


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """Where in its graph a node task stands."""

    id: str
    step: int
    triggers: tuple[str, ...]


class Tracker:
    """Keeps track, and tells the observer. Safe from any thread; the lock is never held for long.

    Args:
        observer: told outside the lock; what it raises is reported, not passed on.
    """

    def __init__(self, observer: ProgramObserver) -> None:
        self._observer = observer
        self._lock = threading.RLock()
        self._runs: dict[UUID, Run] = {}
        self._heartbeats: dict[UUID, Callable[[], None]] = {}
        self._programs: dict[str, Program] = {}
        self._here = Here(self._runs, Program(MAIN, lasting=True))
        self._faulty = False

    def tables(self) -> dict[str, int]:
        """How many runs, open calls and programs are kept now."""
        with self._lock:
            programs = [self._here.main, *self._programs.values()]
            return {
                "runs": len(self._runs),
                "calls": sum(len(program.calls) for program in programs),
                "programs": len(self._programs),
            }

    def is_open(self, run_id: UUID) -> bool:
        """Whether a run has begun and not ended."""
        return run_id in self._runs

    def report(self, fault: Exception) -> None:
        """Log a fault: the first for people, every one at debug level."""
        if not self._faulty:
            self._faulty = True
            log.warning(
                "The recorder met a fault (%s: %s); programs go on, but their DAG may have gaps. "
                "Further faults are logged at debug level only.",
                type(fault).__name__,
                fault,
            )
        log.debug("Fault in the recorder", exc_info=fault)

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        try:
            what(*args)
        except Exception as fault:
            self.report(fault)

    # -- ambient programs ---------------------------------------------------------------------

    def enter(self, program_id: str | None, name: str, *, fresh: bool) -> Ambient:
        """An ambient program begins in this context."""
        with self._lock:
            program, run = self._here.member(None)
            outer = self._here.open_ambient()
            position = self._here.position.get()
            if program is not None and (fresh or program_id in (None, program.id)):
                return Ambient(program, outer=outer)
            id = program_id or str(uuid.uuid4())
            own = self._program(id, lasting=program_id is not None and not fresh)
            enclosing = self._here.strand(program or self._here.main, run)
            strand = own.begin(self._here.owner(), enclosing)
            ambient = Ambient(own, outer=outer, strand=strand, position=position)
            self._here.ambient.set(ambient)
            self._here.stand_on(strand)
        self._tell(self._observer.program_started, own.id, name or id)
        return ambient

    def leave(self, ambient: Ambient, status: ProgramEnd, error: str | None) -> None:
        """An ambient program ends."""
        if ambient.joined or ambient.strand is None or ambient.closed:
            return
        with self._lock:
            owner, program = ambient.strand.owner, ambient.program
            lost = [
                run
                for run in program.calls.values()
                if program.turns == 1 and (status != "done" or run.is_stuck(owner))
            ]
        for run in lost:
            self._end_call(run, "aborted")
        with self._lock:
            ambient.closed = True
            if self._here.ambient.get() is ambient:
                self._here.ambient.set(ambient.outer)
            self._here.step_back(ambient.strand, ambient.position)
            program.finish(ambient.strand)
            self._keep_or_drop(program)
        self._tell(self._observer.program_ended, program.id, status, error)

    def close_main(self, status: ProgramEnd = "done", error: str | None = None) -> None:
        """End the program of bare calls, if any was made; its open calls are aborted."""
        with self._lock:
            main, self._here.main = self._here.main, Program(MAIN, lasting=True)
        for run in list(main.calls.values()):
            self._end_call(run, "aborted")
        if main.turns:
            self._tell(self._observer.program_ended, MAIN, status, error)

    def forget(self, program: str) -> None:
        """Let go of a program: a later turn of the same id begins without parents."""
        with self._lock:
            known = self._programs.get(program)
            if known is not None:
                known.lasting = False
                self._keep_or_drop(known)

    def _program(self, id: str, *, lasting: bool) -> Program:
        program = self._programs.pop(id, None) or Program(id, lasting=lasting)
        program.lasting = program.lasting or lasting
        self._programs[id] = program  # last in order: the one whose turn came last
        return program

    def _keep_or_drop(self, program: Program) -> None:
        if program.turns == 0 and not program.lasting:
            self._programs.pop(program.id, None)
        if len(self._programs) > _KEPT_THREADS:
            idle = next((p.id for p in self._programs.values() if p.turns == 0), None)
            if idle is not None:
                del self._programs[idle]

    # -- chains: roots, graphs, node tasks, plain runnables -----------------------------------

    def begin_chain(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        *,
        name: str | None,
        thread: str | None,
        node: str | None,
        place: TaskPlace | None,
    ) -> None:
        """A chain begins; with a place it is a node task."""
        with self._lock:
            program, parent = self._here.member(parent_run_id)
            root = program is None
            if program is None:
                id = str(run_id) if thread is None else thread
                program = self._program(id, lasting=thread is not None)
                run = self._begin_root(run_id, program)
            elif parent is not None and place is not None:
                run = Run(run_id, parent, program, self._ambient(program), parent.strand, node)
                self._begin_task(run, parent, place)
            else:
                strand = self._here.strand(program, parent)
                run = Run(run_id, parent, program, self._ambient(program), strand, node)
            self._runs[run_id] = run
        if root:
            self._tell(self._observer.program_started, program.id, name or program.id)

    def end_chain(
        self, run_id: UUID, status: ProgramEnd, error: str | None, *, give_up: bool
    ) -> None:
        """A chain ends.

        Args:
            status, error: how its program ends, where it is a root.
            give_up: it failed or was cancelled, and the calls below it with it.
        """
        run = self._runs.get(run_id)
        if run is None:
            return
        self._abandon(run, everything=give_up)
        with self._lock:
            if self._runs.pop(run_id, None) is None:
                return
            strand = run.strand
            run.close_scope()
            if run.root:
                run.program.finish(strand)
                self._keep_or_drop(run.program)
            if run.root or run.task is not None:
                self._here.step_back(strand, run.position)
        if run.root:
            status = "interrupted" if status == "done" and run.interrupted else status
            self._tell(self._observer.program_ended, run.program.id, status, error)

    def wrote(self, graph: UUID, task: str, channels: Iterable[str]) -> None:
        """A node task of a graph run wrote to channels."""
        run = self._runs.get(graph)
        if run is not None and run.steps is not None:
            with self._lock:
                run.steps.wrote(task, channels)

    def stopped(self, graph: UUID) -> None:
        """A graph run stops for a person; its end follows."""
        run = self._runs.get(graph)
        if run is not None:
            run.interrupted = True

    def _begin_root(self, run_id: UUID, program: Program) -> Run:
        position = self._here.position.get()
        strand = program.begin(self._here.owner(), self._here.outer())
        run = Run(run_id, None, program, None, strand)
        run.root, run.position = True, position
        self._here.stand_on(strand)
        return run

    def _begin_task(self, run: Run, graph: Run, place: TaskPlace) -> None:
        if graph.steps is None:
            graph.steps = Supersteps(graph.strand)
        task = graph.steps.begin(place.id, place.step, run.node, place.triggers)
        task.strand = Strand(
            self._here.owner(), run.program, entry=task.entry, parent=graph.steps.strand, task=task
        )
        run.task, run.strand = task, task.strand
        run.position = self._here.position.get()
        self._here.stand_on(task.strand)

    def _ambient(self, program: Program) -> Ambient | None:
        ambient = self._here.open_ambient()
        return ambient if ambient is not None and ambient.program is program else None

    def _abandon(self, run: Run, *, everything: bool) -> None:
        """Abort the calls below a run that ends while they are open."""
        if not run.children:
            return
        with self._lock:
            lost = run.leftovers(everything=everything)
        for child in lost:
            if child.kind is not None:
                self._end_call(child, "aborted")
            elif self._runs.pop(child.id, None) is not None:
                with self._lock:
                    child.close_scope()

    # -- threads ------------------------------------------------------------------------------

    def place_of(self, run_id: UUID) -> tuple[str, bool] | None:
        """The program of an open run, and whether the run is a turn of it; None if not known."""
        run = self._runs.get(run_id)
        return None if run is None else (run.program.id, run.root)

    def start_from(self, run_id: UUID, earlier: frozenset[str] | None, *, anew: bool) -> None:
        """What the next calls of a graph run that has loaded a checkpoint depend on.

        Args:
            earlier: ids that the observer knows; None leaves it as it is.
            anew: on nothing else; without, on what they depended on before as well. The first
                thread of a program follows what the program did before in any case.
        """
        with self._lock:
            run = self._runs.get(run_id)
            if run is None:
                return
            strand, program = run.strand, run.program
            first, program.loaded = not program.loaded, True
            if earlier is None:
                return
            if anew and not (first and strand.made):
                strand.replace(strand.pinned(), earlier)
                if not strand.made:
                    strand.entry = earlier
                if run.root and program.turns == 1:
                    program.frontier = earlier
            else:
                strand.replace(EMPTY, earlier)
            self._here.stand_again(strand)

    # -- calls --------------------------------------------------------------------------------

    def start_call(
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
    ) -> None:
        """An LLM or tool call begins.

        Args:
            heartbeat: tells whoever waits for the call that it is alive; see :meth:`beat`.
            outside: no callback announced it and none will end it.
            beside: it stands where this open call stands, not where the running code does.
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
            run = Run(run_id, parent, program, self._ambient(program), strand, node)
            run.kind, run.call = kind, str(run_id)
            run.outside = run.claimed = outside
            run.deps = strand.start(run, tool=kind == "tool")
            self._runs[run_id] = program.calls[run_id] = run
            if heartbeat is not None:
                self._heartbeats[run_id] = heartbeat
            task = strand.task
            start = CallStart(
                program=program.id,
                call=run.call,
                kind=kind,
                name=name,
                node=run.node or (task.node if task is not None else None),
                parents=tuple(
                    Parent(id=dep, kind="order" if task is None else task.kind(dep))
                    for dep in sorted(run.deps)
                ),
            )
        if first:
            self._tell(self._observer.program_started, MAIN, MAIN)
        self._tell(self._observer.call_started, start)
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

    def end_call(
        self, run_id: UUID, status: CallEnd, error: str | None = None, *, outside: bool = False
    ) -> None:
        """A call is over; who told its beginning tells its end, others are not heard."""
        run = self._runs.get(run_id)
        if run is not None and run.kind is not None and run.outside == outside:
            self._end_call(run, status, error)

    def _end_call(self, run: Run, status: CallEnd, error: str | None = None) -> None:
        if run.program.calls.pop(run.id, None) is None:
            return  # aborted before
        self._heartbeats.pop(run.id, None)
        self._abandon(run, everything=status != "done")
        # Told before it enters a frontier: an observer hears of a call after all its parents.
        self._tell(self._observer.call_ended, run.call, status, error)
        with self._lock:
            self._runs.pop(run.id, None)
            run.strand.end(run, tool=run.kind == "tool")
            run.close_scope()

    def _task_done(self, strand: Strand, task: asyncio.Task[Any]) -> None:
        """A cancelled asyncio task tells nobody that its calls are over."""
        if task.cancelled():
            for run in list(strand.open):
                self._end_call(run, "aborted")

    # -- fork points --------------------------------------------------------------------------

    def pin(self) -> None:
        """Pin the running strand's frontier in this context."""
        if not self._here.is_pinned():
            with self._lock:
                self._here.pin()

    def branch(self, *, whole: bool) -> Callable[..., Any]:
        """A runner for work that is about to go to another thread."""
        with self._lock:
            return self._here.runner(self._here.branch(whole=whole))
