"""The recorder: which programs run, which calls they make, and what each call depends on.

One callback handler, visible in every context, turns langchain-core's runs into programs and calls
and tells an observer. The DAG's rules are numbered in ``strands.py`` (inside a task) and
``supersteps.py`` (between the tasks of a graph).

Who is the program of a run? The first that applies:

1. the innermost ``enter_program`` scope inside the enclosing run, or that no run encloses;
2. the program of the enclosing run (by parent id, else by the context's run, else by the run that
   forked this thread);
3. of a chain without any: a program of its own, id = the thread_id where it has one, else the run
   id. A thread's next turn follows the calls of the one before;
4. of a bare call without any: the program "main", until ``close_main``.

``enter_program`` inside a program is part of that program, unless it names another id.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from ..runtime.protocols import CallEnd, CallKind, CallStart, Parent, ProgramEnd, ProgramObserver
from . import langgraph_private as private
from .forks import ForkHooks
from .here import Here, ThreadWork
from .runs import Ambient, Program, Run
from .strands import Strand
from .supersteps import Supersteps

log = logging.getLogger("autellix")
F = TypeVar("F", bound=Callable[..., Any])
MAIN = "main"
_KEPT_THREADS = 10_000  # frontiers of threads that have no turn open; the oldest go first
_CANCELLED = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
_active: Recorder | None = None


def _guarded(method: F) -> F:
    """Let no fault of the recorder reach the user's program; the first is logged."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as fault:
            self._report(fault)
            return None

    return guarded  # type: ignore[return-value]


class Recorder(BaseCallbackHandler):
    """Records every LangGraph, LangChain and plain Python program of the process.

    Args:
        observer: is told of programs and calls, inline, from any thread. A call that outlives its
            program (work left running in the background) is reported after the program's end.
    """

    run_inline = True  # async managers then call in the caller's task: context variables stick

    def __init__(self, observer: ProgramObserver) -> None:
        self._observer = observer
        self._lock = threading.RLock()
        self._call: ContextVar[UUID | None] = ContextVar("autellix_call", default=None)
        self._runs: dict[UUID, Run] = {}
        self._programs: dict[str, Program] = {}
        self._here = Here(self._runs, Program(MAIN, lasting=True))
        self._hooks = ForkHooks(self)
        self._undo: list[Callable[[], None]] = []
        self._faulty = False

    # -- life ---------------------------------------------------------------------------------

    def install(self) -> None:
        """Begin to record; takes the place of another recorder. Safe to call twice."""
        global _active
        if _active is self:
            return
        if _active is not None:
            _active.uninstall()
        _active = self
        self._undo = [
            private.add_handler_everywhere(self),
            private.watch_loops(self._wrote, self._stopped),
        ]
        self._hooks.install()

    def uninstall(self) -> None:
        """Stop recording and put every hook back as it was. Safe to call twice."""
        global _active
        if _active is self:
            _active = None
        self._hooks.uninstall()
        while self._undo:
            self._undo.pop()()

    def tables(self) -> dict[str, int]:
        """How many runs, open calls and programs are kept now."""
        with self._lock:
            programs = [self._here.main, *self._programs.values()]
            return {
                "runs": len(self._runs),
                "calls": sum(len(program.calls) for program in programs),
                "programs": len(self._programs),
            }

    # -- programs -----------------------------------------------------------------------------

    def enter_program(self, program_id: str | None = None, name: str = "") -> Ambient:
        """Make what follows in this context a program; returns what ``exit_program`` takes.

        Args:
            program_id: a lasting identity (its next turn follows this one), None for a fresh one.
                Inside a program None or that program's own id join it.
            name: for people; the id where it is empty.
        """
        with self._lock:
            self._hooks.hook_uvloop()
            program, run = self._here.member(None)
            outer = self._here.open_ambient()
            position = self._here.position.get()
            if program is not None and program_id in (None, program.id):
                return Ambient(program, outer=outer)
            id = program_id or str(uuid.uuid4())
            own = self._program(id, lasting=program_id is not None)
            enclosing = self._here.strand(program or self._here.main, run)
            strand = own.begin(self._here.owner(), enclosing)
            ambient = Ambient(own, outer=outer, strand=strand, position=position)
            self._here.ambient.set(ambient)
            self._here.stand_on(strand)
        self._tell(self._observer.program_started, own.id, name or id)
        return ambient

    def exit_program(
        self, token: Ambient, status: ProgramEnd = "done", error: str | None = None
    ) -> None:
        """End the scope; with another status than "done" its open calls are aborted."""
        if token.joined or token.strand is None or token.closed:
            return
        with self._lock:
            owner, program = token.strand.owner, token.program
            lost = [
                run
                for run in program.calls.values()
                if program.turns == 1 and (status != "done" or _cannot_go_on(run, owner))
            ]
        for run in lost:
            self._end_call(run, "aborted")
        with self._lock:
            token.closed = True
            if self._here.ambient.get() is token:
                self._here.ambient.set(token.outer)
            self._here.step_back(token.strand, token.position)
            program.finish(token.strand)
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

    def current_call(self) -> str | None:
        """The id of the LLM call that this context is in the middle of, None outside of one."""
        run_id = self._call.get()
        return str(run_id) if run_id is not None and run_id in self._runs else None

    # -- chains: roots, graphs, node tasks, plain runnables -----------------------------------

    @_guarded
    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """A root, a graph, a node task or a plain runnable begins."""
        metadata = metadata or {}
        with self._lock:
            program, parent = self._here.member(parent_run_id)
            root = program is None
            if program is None:
                self._hooks.hook_uvloop()
                thread = metadata.get("thread_id")
                id = str(run_id if thread is None else thread)
                name = name or (serialized or {}).get("name") or id
                program = self._program(id, lasting=thread is not None)
                run = self._begin_root(run_id, program)
            else:
                node = metadata.get("langgraph_node")
                ambient = self._ambient(program)
                if parent is not None and private.is_node_task(tags):
                    run = Run(run_id, parent, program, ambient, parent.strand, node)
                    self._begin_task(run, parent, metadata)
                else:
                    strand = self._here.strand(program, parent)
                    run = Run(run_id, parent, program, ambient, strand, node)
            self._runs[run_id] = run
        if root:
            self._tell(self._observer.program_started, program.id, name)

    @_guarded
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A chain ends."""
        self._end_chain(run_id, None)

    @_guarded
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A chain fails, is cancelled, or hands control over."""
        self._end_chain(run_id, error)

    def _begin_root(self, run_id: UUID, program: Program) -> Run:
        position = self._here.position.get()
        strand = program.begin(self._here.owner(), self._here.outer())
        run = Run(run_id, None, program, None, strand)
        run.root, run.position = True, position
        self._here.stand_on(strand)
        return run

    def _begin_task(self, run: Run, graph: Run, metadata: dict[str, Any]) -> None:
        if graph.steps is None:
            graph.steps = Supersteps(graph.strand)
        task = graph.steps.begin(
            private.task_id(metadata),
            metadata["langgraph_step"],
            run.node,
            metadata.get("langgraph_triggers", ()),
        )
        task.strand = Strand(
            self._here.owner(), run.program, entry=task.entry, parent=graph.steps.strand, task=task
        )
        run.task, run.strand = task, task.strand
        run.position = self._here.position.get()
        self._here.stand_on(task.strand)

    def _end_chain(self, run_id: UUID, error: BaseException | None) -> None:
        run = self._runs.get(run_id)
        if run is None:
            return
        failed = error is not None and not private.is_control_flow(error)
        self._abandon(run, everything=failed)
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
            status, text = _outcome(error, run.interrupted)
            self._tell(self._observer.program_ended, run.program.id, status, text)

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

    @_guarded
    def _wrote(self, graph: UUID, task: str, channels: Iterable[str]) -> None:
        run = self._runs.get(graph)
        if run is not None and run.steps is not None:
            with self._lock:
                run.steps.wrote(task, channels)

    @_guarded
    def _stopped(self, graph: UUID) -> None:
        run = self._runs.get(graph)
        if run is not None:
            run.interrupted = True

    # -- calls --------------------------------------------------------------------------------

    @_guarded
    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any
    ) -> None:
        """An LLM call begins."""
        self._call.set(run_id)
        self._start_call("llm", serialized, run_id, **kwargs)

    @_guarded
    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """An LLM call of a completion model begins."""
        self._call.set(run_id)
        self._start_call("llm", serialized, run_id, **kwargs)

    @_guarded
    def on_tool_start(
        self, serialized: Any, input_str: Any, *, run_id: UUID, **kwargs: Any
    ) -> None:
        """A tool begins."""
        self._start_call("tool", serialized, run_id, **kwargs)

    @_guarded
    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """An LLM call has its answer."""
        self._end_by_id(run_id, None)

    @_guarded
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """An LLM call fails or is cancelled."""
        self._end_by_id(run_id, error)

    @_guarded
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool has its result."""
        self._end_by_id(run_id, None)

    @_guarded
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool fails, is cancelled, or asks a person (which is no failure)."""
        self._end_by_id(run_id, error)

    def _start_call(
        self,
        kind: CallKind,
        serialized: dict[str, Any] | None,
        run_id: UUID,
        *,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        metadata = metadata or {}
        given = name or (serialized or {}).get("name") or kind
        with self._lock:
            self._hooks.hook_uvloop()
            program, parent = self._here.member(parent_run_id)
            first = program is None and not self._here.main.turns
            if program is None:
                program = self._here.main
                program.turns = 1
            strand = self._here.strand(program, parent)
            node = metadata.get("langgraph_node")
            run = Run(run_id, parent, program, self._ambient(program), strand, node)
            run.kind, run.call = kind, str(run_id)
            run.deps = strand.start(run, tool=kind == "tool")
            self._runs[run_id] = program.calls[run_id] = run
            task = strand.task
            start = CallStart(
                program=program.id,
                call=run.call,
                kind=kind,
                name=given if kind == "tool" else metadata.get("ls_model_name") or given,
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

    def _end_by_id(self, run_id: UUID, error: BaseException | None) -> None:
        run = self._runs.get(run_id)
        if run is None or run.kind is None:
            return
        if error is None or private.is_control_flow(error):
            self._end_call(run, "done")
        elif isinstance(error, _CANCELLED):
            self._end_call(run, "aborted")
        else:
            self._end_call(run, "failed", _text(error))

    def _end_call(self, run: Run, status: CallEnd, error: str | None = None) -> None:
        if run.program.calls.pop(run.id, None) is None:
            return  # aborted before
        self._abandon(run, everything=status != "done")
        # Told before it enters a frontier: an observer hears of a call after all its parents.
        self._tell(self._observer.call_ended, run.call, status, error)
        with self._lock:
            self._runs.pop(run.id, None)
            run.strand.end(run, tool=run.kind == "tool")
            run.close_scope()

    @_guarded
    def _task_done(self, strand: Strand, task: asyncio.Task[Any]) -> None:
        """A cancelled asyncio task tells nobody that its calls are over."""
        if task.cancelled():
            for run in list(strand.open):
                self._end_call(run, "aborted")

    # -- fork points ------------------------------------------------------------------------

    def pin(self) -> None:
        """Pin the running strand's frontier in this context."""
        try:
            if not self._here.is_pinned():
                with self._lock:
                    self._here.pin()
        except Exception as fault:
            self._report(fault)

    def branch(self) -> Callable[..., Any]:
        """A runner for work that is about to go to another thread."""
        try:
            with self._lock:
                work = self._here.branch()
        except Exception as fault:
            self._report(fault)
            work = ThreadWork()
        return self._here.runner(work)

    def _ambient(self, program: Program) -> Ambient | None:
        ambient = self._here.open_ambient()
        return ambient if ambient is not None and ambient.program is program else None

    # -- bookkeeping --------------------------------------------------------------------------

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

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        try:
            what(*args)
        except Exception as fault:
            self._report(fault)

    def _report(self, fault: Exception) -> None:
        if not self._faulty:
            self._faulty = True
            log.warning(
                "The recorder met a fault (%s: %s); programs go on, but their DAG may have gaps. "
                "Further faults are logged at debug level only.",
                type(fault).__name__,
                fault,
            )
        log.debug("Fault in the recorder", exc_info=fault)


def _cannot_go_on(run: Run, owner: Any) -> bool:
    own = run.strand.owner
    return own is None or own is owner or own.done()


def _outcome(error: BaseException | None, interrupted: bool) -> tuple[ProgramEnd, str | None]:
    if error is None:
        return ("interrupted" if interrupted else "done"), None
    if private.is_interrupt(error) or private.is_control_flow(error):
        return "interrupted", None
    if isinstance(error, _CANCELLED):
        return "cancelled", None
    return "failed", _text(error)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
