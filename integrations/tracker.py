"""The recorder's core: programs and runs as they come and go; ``open_calls.py`` has their calls.

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

import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..runtime.protocols import ProgramEnd, ProgramObserver
from .audience import Audience
from .here import Here
from .open_calls import MAIN, OpenCalls
from .runs import Ambient, Program, Run
from .strands import EMPTY, Strand
from .supersteps import Ended, Supersteps

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

    Attributes:
        calls: the LLM calls and tools that are open.
        audience: the observer, as it is told.
    """

    def __init__(self, observer: ProgramObserver) -> None:
        self.audience = Audience(observer)
        self._lock = threading.RLock()
        self._runs: dict[UUID, Run] = {}
        self._programs: dict[str, Program] = {}
        self._here = Here(self._runs, Program(MAIN, lasting=True))
        self.calls = OpenCalls(self._runs, self._here, self._lock, self.audience)

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
        self.audience.program_started(own.id, name or id)
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
            self.calls.abort(run)
        with self._lock:
            ambient.closed = True
            if self._here.ambient.get() is ambient:
                self._here.ambient.set(ambient.outer)
            self._here.step_back(ambient.strand, ambient.position)
            program.finish(ambient.strand)
            self._keep_or_drop(program)
        self.audience.program_ended(program.id, status, error)

    def close_main(self, status: ProgramEnd = "done", error: str | None = None) -> None:
        """End the program of bare calls, if any was made; its open calls are aborted."""
        with self._lock:
            main, self._here.main = self._here.main, Program(MAIN, lasting=True)
        self.calls.abort_all(main)
        if main.turns:
            self.audience.program_ended(MAIN, status, error)

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
            ambient = self._here.ambient_of(program) if program is not None else None
            if program is None:
                id = str(run_id) if thread is None else thread
                program = self._program(id, lasting=thread is not None)
                run = self._begin_root(run_id, program)
            elif parent is not None and place is not None:
                run = Run(run_id, parent, program, ambient, parent.strand, node)
                self._begin_task(run, parent, place)
            else:
                strand = self._here.strand(program, parent)
                run = Run(run_id, parent, program, ambient, strand, node)
            self._runs[run_id] = run
        if root:
            self.audience.program_started(program.id, name or program.id)

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
        self.calls.abandon(run, everything=give_up)
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
            self.audience.program_ended(run.program.id, status, error)

    def wrote(self, graph: UUID, task: str, channels: Iterable[str]) -> None:
        """A node task of a graph run wrote to channels."""
        run = self._runs.get(graph)
        if run is not None and run.steps is not None:
            with self._lock:
                run.steps.wrote(task, channels)

    def give_up(self, graph: UUID) -> None:
        """Nobody waits for a graph run any more: the calls below it are aborted; its end follows.

        A graph run without an event loop waits for its nodes' threads before it ends, and they for
        their calls.
        """
        run = self._runs.get(graph)
        if run is not None:
            self.calls.abandon(run, everything=True)

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
            graph.steps = Supersteps(graph.strand, graph.ended)
        task = graph.steps.begin(place.id, place.step, run.node, place.triggers)
        task.strand = Strand(
            self._here.owner(), run.program, entry=task.entry, parent=graph.steps.strand, task=task
        )
        run.task, run.strand = task, task.strand
        run.position = self._here.position.get()
        self._here.stand_on(task.strand)

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

    def go_on(self, run_id: UUID, before: frozenset[str], ended: Ended | None) -> None:
        """A graph run that has loaded a checkpoint goes on in the middle of a superstep.

        Args:
            before: what its next calls depend on besides.
            ended: the tasks of the superstep that it does not run again.
        """
        with self._lock:
            run = self._runs.get(run_id)
            if run is None:
                return
            run.ended = ended
            if before:
                run.strand.replace(EMPTY, before)
                self._here.stand_again(run.strand)

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
