"""The recorder: LangGraph, LangChain and plain Python programs, seen from outside.

One callback handler, visible in every context, turns langchain-core's runs into programs and
calls; hooks at the fork points tell tasks and threads apart. ``tracker.py`` keeps the account.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from uuid import UUID, uuid4

from langchain_core.callbacks import BaseCallbackHandler

from ..runtime.protocols import CallEnd, CallKind, ProgramEnd, ProgramObserver, ThreadKeeper
from . import langgraph_private as private
from .announced import Announced
from .checkpoint_watch import CheckpointWatch
from .forks import ForkHooks
from .runs import Ambient
from .tracker import TaskPlace, Tracker

F = TypeVar("F", bound=Callable[..., Any])
_CANCELLED = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
_active: Recorder | None = None


def _guarded(method: F) -> F:
    """Let no fault of the recorder reach the user's program; the first is logged."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as fault:
            self.tracker.audience.report(fault)
            return None

    return guarded  # type: ignore[return-value]


class Recorder(BaseCallbackHandler):
    """Records every LangGraph, LangChain and plain Python program of the process.

    Args:
        observer: is told of programs and calls, inline, from any thread. A call that outlives its
            program (work left running in the background) is reported after the program's end.
        keeper: is told of the threads that graphs with a checkpointer run on.
    """

    run_inline = True  # async managers then call in the caller's task: context variables stick

    def __init__(self, observer: ProgramObserver, keeper: ThreadKeeper | None = None) -> None:
        self.tracker = Tracker(observer)
        self.checkpoints = CheckpointWatch(self.tracker, keeper) if keeper is not None else None
        self._announced = Announced()
        self._hooks = ForkHooks(self)
        self._undo: list[Callable[[], None]] = []

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
            private.watch_loops(self._wrote, self._stopped, self._given_up),
        ]
        if self.checkpoints is not None:
            self._undo.append(self.checkpoints.install())
        self._hooks.install()

    def uninstall(self) -> None:
        """Stop recording and put every hook back as it was. Safe to call twice."""
        global _active
        if _active is self:
            _active = None
        self._hooks.uninstall()
        while self._undo:
            self._undo.pop()()

    def retire(self) -> None:
        """The run is over: as ``uninstall``, and what it left behind is told to nobody."""
        self.uninstall()
        self.tracker.audience.dismiss()

    def tables(self) -> dict[str, int]:
        """How many ``runs``, open ``calls`` and ``programs`` are kept now."""
        return self.tracker.tables()

    # -- programs -----------------------------------------------------------------------------

    @_guarded
    def enter_program(
        self, program_id: str | None = None, name: str = "", *, fresh: bool = False
    ) -> Ambient | None:
        """Make what follows in this context a program.

        Inside a program the scope is part of that program, unless it names another id.

        Args:
            program_id: a lasting identity, whose next turn follows this one; None for a fresh one.
            name: for people; the id where it is empty.
            fresh: the id was made up for this scope: it counts as no id, and has no next turn.

        Returns:
            What ``exit_program`` takes.
        """
        self._hooks.hook_uvloop()
        return self.tracker.enter(program_id, name, fresh=fresh)

    @_guarded
    def exit_program(
        self, token: Ambient | None, status: ProgramEnd = "done", error: str | None = None
    ) -> None:
        """End the scope; with another status than "done" its open calls are aborted."""
        if token is not None:
            self.tracker.leave(token, status, error)

    @_guarded
    def close_main(self, status: ProgramEnd = "done", error: str | None = None) -> None:
        """End the program of bare calls, if any was made; its open calls are aborted."""
        self.tracker.close_main(status, error)

    @_guarded
    def forget(self, program: str) -> None:
        """Let go of a program: a later turn of the same id begins without parents."""
        self.tracker.forget(program)

    def current_call(self) -> str | None:
        """The id of the LLM call that this context is in the middle of, None outside of one.

        Where one ``generate`` holds several prompts, it is the last of them: there the model's
        own ``run_manager.run_id`` tells them apart.
        """
        last = self._announced.calls()[-1:]
        return str(last[0]) if last and self.tracker.is_open(last[0]) else None

    # -- calls that no callback announces -----------------------------------------------------

    @_guarded
    def begin_call(self, name: str, *, beside: str | None = None) -> str | None:
        """An LLM call that LangChain knows nothing of begins in this context.

        It belongs where the running code belongs: same program, behind the calls made before.

        Args:
            name: model or library, for people.
            beside: an open call of whose work this one is a part; it then stands where that stands.

        Returns:
            The call's id, which ``end_call`` takes.
        """
        self._hooks.hook_uvloop()
        run_id = uuid4()
        twin = _as_uuid(beside) if beside is not None else None
        self.tracker.calls.start(
            "llm",
            run_id,
            None,
            name=name,
            node=None,
            outside=True,
            beside=twin,
            heartbeat=private.heartbeat_of_node(),
            tasks=private.tasks_around(),
        )
        return str(run_id)

    @_guarded
    def end_call(self, call: str, status: CallEnd, error: str | None = None) -> None:
        """A call of ``begin_call`` is over; nothing happens where it is not known or has ended."""
        run_id = _as_uuid(call)
        if run_id is not None:
            self.tracker.calls.end(run_id, status, error, outside=True)

    @_guarded
    def claim_call(self) -> str | None:
        """The announced LLM call that this context is in the middle of, for the first who asks.

        Where one ``generate`` holds several prompts, each request gets the next of their calls. A
        model that makes more requests than that gets None: they are calls of their own.
        """
        claim = self.tracker.calls.claim
        return next((str(run_id) for run_id in self._announced.calls() if claim(run_id)), None)

    @_guarded
    def claim_beside(self, call: str) -> str | None:
        """The next call that LangChain announced together with this one, for the first who asks.

        A completion model sends the prompts of one ``generate`` in one request.
        """
        run_id = _as_uuid(call)
        beside = self.tracker.calls.claim_beside(run_id) if run_id is not None else None
        return str(beside) if beside is not None else None

    @_guarded
    def beat(self) -> None:
        """Refresh the idle timeouts of nodes that wait for an LLM call; called now and then.

        A call that waits in the engine's queue is no sign of a node that hangs.
        """
        self.tracker.calls.beat()

    def is_open(self, call: str) -> bool:
        """Whether an LLM or tool call of that id has begun and not ended."""
        run_id = _as_uuid(call)
        return run_id is not None and self.tracker.is_open(run_id)

    # -- chains -------------------------------------------------------------------------------

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
        place, thread = None, None
        if parent_run_id is None:
            self._hooks.hook_uvloop()
            thread = metadata.get("thread_id")
        elif private.is_node_task(tags):
            place = TaskPlace(
                id=private.task_id(metadata),
                step=metadata["langgraph_step"],
                triggers=tuple(metadata.get("langgraph_triggers", ())),
            )
        self.tracker.begin_chain(
            run_id,
            parent_run_id,
            name=name or (serialized or {}).get("name"),
            thread=None if thread is None else str(thread),
            node=metadata.get("langgraph_node"),
            place=place,
        )

    @_guarded
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A chain ends."""
        self.tracker.end_chain(run_id, "done", None, give_up=False)

    @_guarded
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A chain fails, is cancelled, or hands control over."""
        status, text = _outcome(error)
        give_up = not private.is_control_flow(error)
        self.tracker.end_chain(run_id, status, text, give_up=give_up)

    @_guarded
    def _wrote(self, graph: UUID, task: str, channels: Iterable[str]) -> None:
        self.tracker.wrote(graph, task, channels)

    @_guarded
    def _stopped(self, graph: UUID) -> None:
        self.tracker.stopped(graph)

    @_guarded
    def _given_up(self, graph: UUID) -> None:
        self.tracker.give_up(graph)

    # -- calls --------------------------------------------------------------------------------

    @_guarded
    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any
    ) -> None:
        """An LLM call begins."""
        self._announced.announce(run_id, kwargs.get("batch_size", 1))
        self._start_call("llm", serialized, run_id, **kwargs)

    @_guarded
    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """An LLM call of a completion model begins."""
        self._announced.announce(run_id, kwargs.get("batch_size", 1))
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
        self._end_call(run_id, None)

    @_guarded
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """An LLM call fails or is cancelled."""
        self._end_call(run_id, error)

    @_guarded
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool has its result."""
        self._end_call(run_id, None)

    @_guarded
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool fails, is cancelled, or asks a person (which is no failure)."""
        self._end_call(run_id, error)

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
        self._hooks.hook_uvloop()
        metadata = metadata or {}
        model = metadata.get("ls_model_name") if kind == "llm" else None
        self.tracker.calls.start(
            kind,
            run_id,
            parent_run_id,
            name=model or name or (serialized or {}).get("name") or kind,
            node=metadata.get("langgraph_node"),
            heartbeat=private.heartbeat_of_node() if kind == "llm" else None,
            tasks=private.tasks_in(metadata),
        )

    def _end_call(self, run_id: UUID, error: BaseException | None) -> None:
        if error is None or private.is_control_flow(error):
            self.tracker.calls.end(run_id, "done")
        elif isinstance(error, _CANCELLED):
            self.tracker.calls.end(run_id, "aborted")
        else:
            self.tracker.calls.end(run_id, "failed", _text(error))

    # -- fork points --------------------------------------------------------------------------

    @_guarded
    def pin(self) -> None:
        """Pin the running strand's frontier in this context."""
        self.tracker.pin()

    def branch(self, *, whole: bool) -> Callable[..., Any]:
        """A runner for a pool job, or a whole thread, that is about to start."""
        try:
            return self.tracker.branch(whole=whole)
        except Exception as fault:
            self.tracker.audience.report(fault)
            return _run_plainly


def _run_plainly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _outcome(error: BaseException) -> tuple[ProgramEnd, str | None]:
    if private.is_interrupt(error) or private.is_control_flow(error):
        return "interrupted", None
    if isinstance(error, _CANCELLED):
        return "cancelled", None
    return "failed", _text(error)


def _as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
