"""``AutellixSaver``: a checkpointer whose checkpoints carry the program's place in the schedule.

It wraps any ``BaseCheckpointSaver``. What it adds, and nothing else:

1. The metadata of a checkpoint holds, under ``autellix``, the account of its thread: the totals
   that the journal keeps, in a form that travels to other machines. A graph run puts it there at
   the moment the checkpoint stands for; a checkpoint made otherwise (``update_state``) carries on
   its parent's.
2. A node that stops for a person has no checkpoint after it: its account goes with the writes of
   the interrupt, in a channel of its own under a task id of its own, and is taken out on reading.
3. What happens to whole threads (delete, copy, prune) reaches the journal.

It works without a running session: then the accounts are carried on as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from types import FunctionType
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from ..runtime.protocols import thread_store
from .checkpoint_stores import astore_of, store_of
from .checkpoint_threads import in_thread

KEY = "autellix"  # in checkpoint metadata
CHANNEL = "__autellix__"  # in the pending writes of an interrupted node
_STOPPING = frozenset(("__interrupt__", "__error__"))
_REMEMBERED = 1024  # accounts seen in checkpoints, for checkpoints that follow them

Config = Any  # langchain-core's RunnableConfig


class AutellixSaver(BaseCheckpointSaver[Any]):
    """Wraps a checkpointer so that the threads in it keep their place in the schedule.

    The object has exactly the capabilities of the saver it wraps: a method that the inner saver
    does not implement is not implemented here, and what else the inner saver has (``setup``,
    ``conn``) is reached through it.

    Args:
        inner: any checkpointer; one that is wrapped already is returned as it is.

    Example::

        graph = builder.compile(checkpointer=AutellixSaver(InMemorySaver()))
    """

    inner: BaseCheckpointSaver[Any]

    def __new__(cls, inner: BaseCheckpointSaver[Any]) -> AutellixSaver:
        """The wrapper of a saver, of the class that fits the saver's."""
        if isinstance(inner, AutellixSaver):
            return inner
        made: Any = _wrapper_of(type(inner))
        return object.__new__(made)

    def __init__(self, inner: BaseCheckpointSaver[Any]) -> None:
        # Not the base class's: serializer and versions are the inner saver's.
        if inner is not self:
            self.inner = inner
            self._seen: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()
            self._saved: set[Any] = set()  # threads known to have a checkpoint

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"AutellixSaver({self.inner!r})"

    @property
    def serde(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner saver's serializer."""
        return self.inner.serde

    @serde.setter
    def serde(self, serde: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.inner.serde = serde

    @property
    def config_specs(self) -> list[Any]:
        """The inner saver's."""
        return self.inner.config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The inner saver's."""
        return self.inner.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> AutellixSaver:
        """The wrapped clone of the inner saver."""
        clone = self.inner.with_allowlist(extra_allowlist)
        return self if clone is self.inner else AutellixSaver(clone)

    # -- accounts in checkpoints --------------------------------------------------------------

    def _with_account(self, config: Config, metadata: Any, store: str) -> Any:
        """Metadata with the account that a new checkpoint is to carry (1)."""
        thread, before = _thread(config), config["configurable"].get("checkpoint_id")
        account = self._seen.get((thread, before)) if before else None
        account = account or thread_store().snapshot_now(store, thread)
        return metadata if account is None else {**metadata, KEY: account}

    def _read(self, found: CheckpointTuple | None, config: Config) -> CheckpointTuple | None:
        """A tuple as LangGraph is to see it, its account taken note of (2)."""
        if found is None:
            self._saved.discard(config["configurable"]["thread_id"])
            return None
        account = found.metadata.get(KEY)
        ours = [write[2] for write in found.pending_writes or () if write[1] == CHANNEL]
        if ours:
            latest = max(ours, key=lambda late: late.get("calls", 0))
            writes = [write for write in found.pending_writes or () if write[1] != CHANNEL]
            # The chain begins where the checkpoint stands: an interrupted node runs again.
            start_s = (account or {}).get("critical_path_s", 0.0)
            account = {**latest, "critical_path_s": start_s}
            metadata = cast("Any", {**found.metadata, KEY: account})
            found = found._replace(pending_writes=writes, metadata=metadata)
        if account is not None:
            key = (_thread(found.config), found.checkpoint["id"])
            self._seen[key] = account
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return found

    def _late_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, store: str
    ) -> tuple[Config, list[tuple[str, Any]], str] | None:
        """The writes that carry the account of a node that stops here (2)."""
        if _STOPPING.isdisjoint(channel for channel, _ in writes):
            return None
        account = thread_store().snapshot_now(store, _thread(config))
        if account is None:
            return None
        return config, [(CHANNEL, account)], f"{CHANNEL}:{account['calls']}:{task_id}"

    def _forget(self, thread: str) -> None:
        self._saved.discard(thread)
        for key in [key for key in self._seen if key[0] == str(thread)]:
            del self._seen[key]


# -- the methods of a wrapper, each present where the inner saver has it --------------------------


def _get_tuple(self: AutellixSaver, config: Config) -> CheckpointTuple | None:
    _read_ahead(store_of(self.inner), config)
    return self._read(self.inner.get_tuple(config), config)


async def _aget_tuple(self: AutellixSaver, config: Config) -> CheckpointTuple | None:
    store = await astore_of(self.inner)
    await in_thread(_read_ahead, store, config)
    return self._read(await self.inner.aget_tuple(config), config)


def _list(self: AutellixSaver, config: Config, **how: Any) -> Iterator[CheckpointTuple]:
    for found in self.inner.list(config, **how):
        yield cast("CheckpointTuple", self._read(found, config))


async def _alist(self: AutellixSaver, config: Config, **how: Any) -> AsyncIterator[CheckpointTuple]:
    async for found in self.inner.alist(config, **how):
        yield cast("CheckpointTuple", self._read(found, config))


def _put(self: AutellixSaver, config: Config, checkpoint: Any, metadata: Any, new: Any) -> Config:
    if KEY not in metadata:
        metadata = self._with_account(config, metadata, store_of(self.inner))
    result = self.inner.put(config, checkpoint, metadata, new)
    thread = config["configurable"]["thread_id"]
    if thread not in self._saved:
        thread_store().saved(store_of(self.inner), str(thread))
        self._saved.add(thread)
    return result


async def _aput(
    self: AutellixSaver, config: Config, checkpoint: Any, metadata: Any, new: Any
) -> Config:
    if KEY not in metadata:
        metadata = self._with_account(config, metadata, await astore_of(self.inner))
    result = await self.inner.aput(config, checkpoint, metadata, new)
    thread = config["configurable"]["thread_id"]
    if thread not in self._saved:
        store = await astore_of(self.inner)
        await in_thread(thread_store().saved, store, str(thread))
        self._saved.add(thread)
    return result


def _put_writes(
    self: AutellixSaver, config: Config, writes: Any, task_id: str, *path: Any, **named: Any
) -> None:
    self.inner.put_writes(config, writes, task_id, *path, **named)
    late = self._late_writes(config, writes, task_id, store_of(self.inner))
    if late is not None:
        self.inner.put_writes(*late)


async def _aput_writes(
    self: AutellixSaver, config: Config, writes: Any, task_id: str, *path: Any, **named: Any
) -> None:
    await self.inner.aput_writes(config, writes, task_id, *path, **named)
    late = self._late_writes(config, writes, task_id, await astore_of(self.inner))
    if late is not None:
        await self.inner.aput_writes(*late)


def _delete_thread(self: AutellixSaver, thread_id: str) -> None:
    self.inner.delete_thread(thread_id)
    self._forget(thread_id)
    thread_store().deleted(store_of(self.inner), str(thread_id))


async def _adelete_thread(self: AutellixSaver, thread_id: str) -> None:
    await self.inner.adelete_thread(thread_id)
    self._forget(thread_id)
    store = await astore_of(self.inner)
    await in_thread(thread_store().deleted, store, str(thread_id))


def _copy_thread(self: AutellixSaver, source_thread_id: str, target_thread_id: str) -> None:
    self.inner.copy_thread(source_thread_id, target_thread_id)
    store = store_of(self.inner)
    thread_store().copied(store, str(source_thread_id), str(target_thread_id))


async def _acopy_thread(self: AutellixSaver, source_thread_id: str, target_thread_id: str) -> None:
    await self.inner.acopy_thread(source_thread_id, target_thread_id)
    store, copied = await astore_of(self.inner), thread_store().copied
    await in_thread(copied, store, str(source_thread_id), str(target_thread_id))


def _prune(
    self: AutellixSaver, thread_ids: Sequence[str], *, strategy: str = "keep_latest"
) -> None:
    self.inner.prune(thread_ids, strategy=strategy)
    thread_store().pruned(store_of(self.inner), [str(id) for id in thread_ids], strategy)


async def _aprune(
    self: AutellixSaver, thread_ids: Sequence[str], *, strategy: str = "keep_latest"
) -> None:
    await self.inner.aprune(thread_ids, strategy=strategy)
    store, threads = await astore_of(self.inner), [str(id) for id in thread_ids]
    await in_thread(thread_store().pruned, store, threads, strategy)


_OURS: dict[str, Callable[..., Any]] = {
    "get_tuple": _get_tuple,
    "aget_tuple": _aget_tuple,
    "list": _list,
    "alist": _alist,
    "put": _put,
    "aput": _aput,
    "put_writes": _put_writes,
    "aput_writes": _aput_writes,
    "delete_thread": _delete_thread,
    "adelete_thread": _adelete_thread,
    "copy_thread": _copy_thread,
    "acopy_thread": _acopy_thread,
    "prune": _prune,
    "aprune": _aprune,
}
_PASSED_ON = (
    "delete_for_runs",
    "adelete_for_runs",
    "get_delta_channel_history",
    "aget_delta_channel_history",
    "__enter__",
    "__exit__",
    "__aenter__",
    "__aexit__",
)


@functools.cache
def _wrapper_of(inner: type) -> type[AutellixSaver]:
    """The class of wrappers of savers of a class, with the methods which that class implements."""
    methods: dict[str, Any] = {}
    for name in (*_OURS, *_PASSED_ON):
        method = getattr(inner, name, None)
        if method is None or method is getattr(BaseCheckpointSaver, name, None):
            continue
        made = _twin(_OURS[name]) if name in _OURS else _passing_on(name)
        methods[name] = functools.wraps(method)(made)
        # LangGraph looks at the signature to see which arguments a saver takes.
        methods[name].__signature__ = inspect.signature(method)
    made_of = {"__doc__": AutellixSaver.__doc__, "__module__": __name__, **methods}
    return type("AutellixSaver", (AutellixSaver,), made_of)


def _twin(function: Any) -> Any:
    """The same function as another object: each class's has a signature of its own."""
    return FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def _passing_on(name: str) -> Callable[..., Any]:
    if name in ("__enter__", "__aenter__"):

        def enter(self: AutellixSaver) -> Any:
            entered = getattr(self.inner, name)()
            if name == "__enter__":
                return self

            async def awaited() -> AutellixSaver:
                await entered
                return self

            return awaited()

        return enter

    def passed_on(self: AutellixSaver, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return passed_on


def _thread(config: Config) -> str:
    return str(config["configurable"]["thread_id"])


def _read_ahead(store: str, config: Config) -> None:
    if not config["configurable"].get("checkpoint_ns"):
        thread_store().read_ahead(store, _thread(config))
