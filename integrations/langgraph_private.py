"""The private names of LangGraph and langchain-core that the recorder stands on, all of them.

Tested with LangGraph 1.2 and langchain-core 1.8. What is taken:

- ``PregelLoop.put_writes``: which channels a task wrote, for the kind of an edge;
- ``PregelLoop._suppress_interrupt``: the graph stops for a person (callbacks do not say so);
- ``PregelLoop._first`` and ``._put_checkpoint``: the moments at which a graph run has loaded its
  checkpoint, and makes one (its store hears of it later, in the background); ``.step``,
  ``.checkpoint_pending_writes`` and ``._reapplies_pending_writes``: where it stands then;
- ``SyncPregelLoop.__init__``, ``AsyncPregelLoop.__init__`` and, where there is one (LangGraph 1.2),
  ``Pregel._resolve_checkpointer``: which saver a graph is about to use;
- ``var_child_runnable_config``: the run that encloses the running code;
- ``_configure_hooks``: to take a handler out again;
- the tag ``graph:step:N`` and the metadata of a node task or function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from autellix.errors import VersionError

_TESTED = "LangGraph 1.2 and langchain-core 1.8"

try:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.runnables.config import var_child_runnable_config
    from langchain_core.tracers.context import _configure_hooks, register_configure_hook
    from langgraph import errors as _errors
    from langgraph.errors import GraphBubbleUp, GraphInterrupt
    from langgraph.pregel import Pregel
    from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop, SyncPregelLoop

    _LOOPS = (SyncPregelLoop, AsyncPregelLoop)
    for _owner, _name in (
        (PregelLoop, "put_writes"),
        (PregelLoop, "_suppress_interrupt"),
        (PregelLoop, "_first"),
        (PregelLoop, "_put_checkpoint"),
    ):
        if not callable(getattr(_owner, _name, None)):
            raise ImportError(f"{_owner.__name__}.{_name} is gone")
    _fields = PregelLoop.__annotations__
    if not {"step", "checkpoint_pending_writes"} <= _fields.keys():
        raise ImportError("PregelLoop no longer says which tasks have ended")
    if not hasattr(PregelLoop, "_reapplies_pending_writes") and "skip_done_tasks" not in _fields:
        raise ImportError("PregelLoop no longer says whether it runs ended tasks again")
    if not all(issubclass(loop, PregelLoop) for loop in _LOOPS):
        raise ImportError("the loops no longer share PregelLoop")
    if not isinstance(_configure_hooks, list):
        raise ImportError("langchain-core's configure hooks are no longer a list")
except ImportError as _cause:
    raise VersionError(
        f"The installed LangGraph or langchain-core cannot be recorded: {_cause}. This release was "
        f"tested with {_TESTED}; install those, e.g. pip install 'langgraph==1.2.*' "
        "'langchain-core==1.8.*'."
    ) from _cause

_DRAINED: tuple[type[BaseException], ...] = tuple(
    kind for kind in (getattr(_errors, "GraphDrained", None),) if kind is not None
)
_STEP_TAG = "graph:step:"
_SEND_TASKS, _SEND_TRIGGER = "__pregel_tasks", "__pregel_push"
_STOPPED = {"__interrupt__", "__error__", "__resume__"}
RETURN = "__return__"  # the channel of a function's result
_GIVEN_UP = (GeneratorExit, KeyboardInterrupt, TimeoutError)
_LENT = "__pregel_checkpointer"
_RUNTIME = "__pregel_runtime"
_NEVER_STEPPED = -2  # the step of a thread without a checkpoint

Undo = Callable[[], None]


def heartbeat_of_node() -> Callable[[], None] | None:
    """What tells the running node's idle timeout that the node is alive; None where there is none.

    LangGraph before 1.2 has no idle timeouts.
    """
    config = var_child_runnable_config.get() or {}
    runtime = config.get("configurable", {}).get(_RUNTIME)
    beat = getattr(runtime, "heartbeat", None)
    # Without an idle timeout LangGraph puts in a function that does nothing.
    return None if getattr(beat, "__name__", "").startswith("_no_op") else beat


def is_control_flow(error: BaseException) -> bool:
    """Whether an exception is how LangGraph hands control over (interrupt, command)."""
    return isinstance(error, GraphBubbleUp)


def is_interrupt(error: BaseException) -> bool:
    """Whether a graph stopped so that it can be resumed: for a person, or drained."""
    return isinstance(error, (GraphInterrupt, *_DRAINED))


def is_drained(error: BaseException) -> bool:
    """Whether a graph stopped between two supersteps because it was asked to."""
    return isinstance(error, _DRAINED)


def is_node_task(tags: Sequence[str] | None) -> bool:
    """Whether a chain run is a node task of a graph (and not a step inside one)."""
    return bool(tags) and any(tag.startswith(_STEP_TAG) for tag in tags)


def task_id(metadata: Mapping[str, Any]) -> str:
    """The id of a node task: the same for each attempt."""
    return metadata["langgraph_checkpoint_ns"].rpartition(":")[2]


def tasks_in(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of the tasks around a run, functions of the functional API among them."""
    place: str = metadata.get("langgraph_checkpoint_ns", "")
    return tuple(part.rpartition(":")[2] for part in place.split("|") if ":" in part)


def tasks_around() -> tuple[str, ...]:
    """The same for the running code."""
    config = var_child_runnable_config.get() or {}
    return tasks_in(config.get("metadata") or {})


def enclosing_run() -> UUID | None:
    """The run whose code is running, as langchain-core knows it in this context."""
    config = var_child_runnable_config.get()
    if not config:
        return None
    return getattr(config.get("callbacks"), "parent_run_id", None)


def add_handler_everywhere(handler: BaseCallbackHandler) -> Undo:
    """Give a callback handler to every run of the process; returns how to take it out."""
    # A default, not a value: contexts that know nothing of us (raw threads) see it as well.
    variable: ContextVar[Any] = ContextVar("autellix_handler", default=handler)
    register_configure_hook(variable, inheritable=True)
    entry = _configure_hooks[-1]

    def undo() -> None:
        _configure_hooks[:] = [hook for hook in _configure_hooks if hook is not entry]

    return undo


def watch_loops(
    wrote: Callable[[UUID, str, Iterable[str]], None],
    stopped: Callable[[UUID], None],
    given_up: Callable[[UUID], None],
) -> Undo:
    """Hear from every graph run of the process.

    Args:
        wrote: called with a graph's run id, a task id and the channels that the task wrote; a
            channel of ``Send`` goes by the name of the trigger it pulls.
        stopped: called with a graph's run id when it stops for a person.
        given_up: called with a graph's run id when nobody waits for it any more (its stream was
            closed, it was interrupted, it has timed out), before it waits for its nodes' threads.

    Returns:
        How to stop it.
    """

    def put_writes(original: Any) -> Any:
        def hooked(self: Any, task: str, writes: Any, *args: Any, **kwargs: Any) -> Any:
            run = getattr(self.manager, "run_id", None)
            if run is not None:
                names = (write[0] for write in writes)
                wrote(run, task, [_SEND_TRIGGER if n == _SEND_TASKS else n for n in names])
            return original(self, task, writes, *args, **kwargs)

        return hooked

    def suppress_interrupt(original: Any) -> Any:
        def hooked(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
            run = getattr(self.manager, "run_id", None)
            if run is not None and isinstance(exc_value, GraphInterrupt) and not self.is_nested:
                stopped(run)
            elif run is not None and isinstance(exc_value, _GIVEN_UP):
                given_up(run)
            return original(self, exc_type, exc_value, traceback)

        return hooked

    # Both loop classes end in the base class's method, so one hook there hears each write once.
    return _in_turn(
        _around(PregelLoop, "put_writes", put_writes),
        _around(PregelLoop, "_suppress_interrupt", suppress_interrupt),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """A graph run that has a checkpointer, as it stands.

    Attributes:
        run_id: the graph's run.
        saver: its checkpointer.
        thread: its thread_id.
        checkpoint: id of the checkpoint it stands on; None before the first.
        metadata: that checkpoint's, or that of the one it is about to make.
        addressed: it was asked to begin from a checkpoint that is not the thread's latest.
        nested: it runs inside a node of another graph.
        control: takes ``request_drain()``; None where LangGraph is too old for it.
        step: number of the superstep that comes next.
    """

    run_id: UUID
    saver: Any
    thread: str
    checkpoint: str | None
    metadata: dict[str, Any]
    addressed: bool
    nested: bool
    control: Any
    step: int


def watch_checkpoints(
    loaded: Callable[[LoopState], None],
    making: Callable[[LoopState], None],
    made: Callable[[LoopState], None],
    goes_on: Callable[[LoopState, Mapping[str, set[str]]], None],
) -> Undo:
    """Hear of the checkpoints of every graph run of the process that has a checkpointer.

    Args:
        loaded: a run has loaded its checkpoint, or found none; before it does anything else.
        making: it makes one, whose metadata can be added to.
        made: that one has its id, and is about to be stored.
        goes_on: a run that has loaded its checkpoint goes on in the middle of a superstep. Gets the
            tasks that have ended and are not run again, with the channels that they wrote.

    Returns:
        How to stop it.
    """

    def first(original: Any) -> Any:
        def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
            metadata = self.checkpoint_metadata
            state = _state(self, metadata, metadata.get("step") != _NEVER_STEPPED)
            if state is None:
                return original(self, *args, **kwargs)
            ended = _ended(self.checkpoint_pending_writes)
            loaded(state)
            result = original(self, *args, **kwargs)
            # Another input, or a fork, has made a checkpoint by now, and runs all tasks.
            if ended and self.checkpoint["id"] == state.checkpoint and _takes_up_writes(self):
                goes_on(state, ended)
            return result

        return hooked

    def put_checkpoint(original: Any) -> Any:
        def hooked(self: Any, metadata: Any) -> Any:
            # At the run's end the last metadata comes again, which stands for an earlier moment.
            fresh = metadata is not self.checkpoint_metadata
            state = _state(self, metadata, True) if fresh else None
            if state is not None:
                making(state)
            result = original(self, metadata)
            state = _state(self, metadata, True)
            if state is not None:
                made(state)
            return result

        return hooked

    return _in_turn(
        _around(PregelLoop, "_first", first),
        _around(PregelLoop, "_put_checkpoint", put_checkpoint),
    )


def _state(loop: Any, metadata: Any, exists: bool) -> LoopState | None:
    run_id = getattr(loop.manager, "run_id", None)
    asked = loop.config.get("configurable", {})
    if run_id is None or loop.checkpointer is None or asked.get("thread_id") is None:
        return None
    return LoopState(
        run_id=run_id,
        saver=loop.checkpointer,
        thread=str(asked["thread_id"]),
        checkpoint=loop.checkpoint["id"] if exists else None,
        metadata=metadata,
        addressed=bool(asked.get("checkpoint_id")),
        nested=bool(loop.is_nested),
        control=getattr(loop, "control", None),
        step=loop.step,
    )


def _ended(writes: Iterable[tuple[str, str, Any]]) -> dict[str, set[str]]:
    """The tasks that have ended, by pending writes; not those that were stopped or have failed."""
    found: dict[str, set[str]] = {}
    for task, channel, _ in writes:
        found.setdefault(task, set()).add(_SEND_TRIGGER if channel == _SEND_TASKS else channel)
    return {task: channels for task, channels in found.items() if not channels & _STOPPED}


def _takes_up_writes(loop: Any) -> bool:
    """Whether a run leaves tasks alone whose writes are there already."""
    older = getattr(loop, "skip_done_tasks", False)  # LangGraph 1.0
    return bool(getattr(loop, "_reapplies_pending_writes", older))


def replace_savers(replacement: Callable[[Any, Mapping[str, Any]], Any]) -> Undo:
    """Give every graph of the process another checkpointer than its own.

    Args:
        replacement: gets the saver (None where a graph has none, and may) and the run's
            ``configurable``; returns the one to use.

    Returns:
        How to stop it.
    """
    resolves = "_resolve_checkpointer" in Pregel.__dict__

    def resolve(original: Any) -> Any:
        def hooked(self: Any, config: Any) -> Any:
            saver = original(self, config)
            if saver is None and self.checkpointer is False:
                return None
            return replacement(saver, config.get("configurable", {}))

        return hooked

    def begin(original: Any) -> Any:
        def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
            saver = kwargs.get("checkpointer")
            if saver is not None or not resolves:
                asked = (kwargs.get("config") or {}).get("configurable", {})
                kwargs["checkpointer"] = replacement(saver, asked)
            original(self, *args, **kwargs)

        return hooked

    hooks = [_around(loop, "__init__", begin) for loop in _LOOPS]
    if resolves:
        hooks.append(_around(Pregel, "_resolve_checkpointer", resolve))
    return _in_turn(*hooks)


def is_lent(configurable: Mapping[str, Any]) -> bool:
    """Whether the graph runs inside another one, which lends it its checkpointer, if any."""
    return _LENT in configurable


def _around(owner: type, name: str, around: Callable[[Any], Any]) -> Undo:
    before = owner.__dict__[name]
    after = around(before)
    setattr(owner, name, after)

    def restore() -> None:
        if owner.__dict__.get(name) is after:
            setattr(owner, name, before)

    return restore


def _in_turn(*undo: Undo) -> Undo:
    def undo_all() -> None:
        for one in undo:
            one()

    return undo_all
