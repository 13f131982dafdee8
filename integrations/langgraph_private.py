"""The private names of LangGraph and langchain-core that the recorder stands on, all of them.

Tested with LangGraph 1.2 and langchain-core 1.8. What is taken:

- ``PregelLoop.put_writes``: which channels a task wrote, for the kind of an edge;
- ``PregelLoop._suppress_interrupt``: the graph stops for a person (callbacks do not say so);
- ``var_child_runnable_config``: the run that encloses the running code;
- ``_configure_hooks``: to take a handler out again;
- the tag ``graph:step:N`` and the metadata of a node task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
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
    from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop, SyncPregelLoop

    _LOOPS = (SyncPregelLoop, AsyncPregelLoop)
    for _owner, _name in ((PregelLoop, "put_writes"), (PregelLoop, "_suppress_interrupt")):
        if not callable(getattr(_owner, _name, None)):
            raise ImportError(f"{_owner.__name__}.{_name} is gone")
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

Undo = Callable[[], None]


def is_control_flow(error: BaseException) -> bool:
    """Whether an exception is how LangGraph hands control over (interrupt, command)."""
    return isinstance(error, GraphBubbleUp)


def is_interrupt(error: BaseException) -> bool:
    """Whether a graph stopped so that it can be resumed: for a person, or drained."""
    return isinstance(error, (GraphInterrupt, *_DRAINED))


def is_node_task(tags: Sequence[str] | None) -> bool:
    """Whether a chain run is a node task of a graph (and not a step inside one)."""
    return bool(tags) and any(tag.startswith(_STEP_TAG) for tag in tags)


def task_id(metadata: Mapping[str, Any]) -> str:
    """The id of a node task: the same for each attempt."""
    return metadata["langgraph_checkpoint_ns"].rpartition(":")[2]


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
    wrote: Callable[[UUID, str, Iterable[str]], None], stopped: Callable[[UUID], None]
) -> Undo:
    """Hear from every graph run of the process.

    Args:
        wrote: called with a graph's run id, a task id and the channels that the task wrote; a
            channel of ``Send`` goes by the name of the trigger it pulls.
        stopped: called with a graph's run id when it stops for a person.

    Returns:
        How to stop it.
    """
    undo: list[Undo] = []

    def watch(owner: type, name: str, around: Callable[[Any], Any]) -> None:
        before = owner.__dict__[name]
        after = around(before)
        setattr(owner, name, after)

        def restore() -> None:
            if owner.__dict__.get(name) is after:
                setattr(owner, name, before)

        undo.append(restore)

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
            return original(self, exc_type, exc_value, traceback)

        return hooked

    # Both loop classes end in the base class's method, so one hook there hears each write once.
    watch(PregelLoop, "put_writes", put_writes)
    watch(PregelLoop, "_suppress_interrupt", suppress_interrupt)

    def restore_all() -> None:
        for restore in undo:
            restore()

    return restore_all
