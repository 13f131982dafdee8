"""The checkpointers that ``autellix run --checkpointer`` provides.

They serve any thread and any event loop: the savers are the blocking ones of LangGraph, and their
async methods run in threads of their own, so that no event loop is ever blocked.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from autellix.errors import SettingsError
from autellix.wal import switch_to_wal

from .checkpoint_threads import in_thread

_FORMS = "memory, sqlite:PATH or postgres:URL, for example sqlite:threads.db"
_TWINS = ("get_tuple", "put", "put_writes", "delete_thread", "prune", "get_delta_channel_history")
_PATIENCE_S = 30.0  # how long a write waits for another process
_CONNECTIONS = 4


def provided_saver(spec: str) -> AbstractContextManager[BaseCheckpointSaver[Any]]:
    """Open a checkpointer, set up and ready; left, it is closed.

    Args:
        spec: ``memory``, ``sqlite:PATH`` or ``postgres:URL``.

    Raises:
        SettingsError: it has none of these forms, what it needs is not installed, or the store
            cannot be opened.
    """
    kind, colon, where = spec.partition(":")
    if kind == "memory" and not colon:
        return _memory()
    if kind == "sqlite" and where:
        return _sqlite(where)
    if kind in ("postgres", "postgresql") and where:
        return _postgres(f"postgresql:{where}" if where.startswith("//") else where)
    raise SettingsError(f"There is no checkpointer {spec!r}; write {_FORMS}.")


@contextmanager
def _memory() -> Iterator[BaseCheckpointSaver[Any]]:
    from langgraph.checkpoint.memory import InMemorySaver

    yield InMemorySaver()


@contextmanager
def _sqlite(path: str) -> Iterator[BaseCheckpointSaver[Any]]:
    with _installed("sqlite"):
        from langgraph.checkpoint.sqlite import SqliteSaver
    try:
        connection = sqlite3.connect(path, check_same_thread=False, timeout=_PATIENCE_S)
        switch_to_wal(connection, _PATIENCE_S)
        saver = _with_async(SqliteSaver)(connection)
        saver.setup()
    except sqlite3.Error as cause:
        raise SettingsError(
            f"The checkpointer sqlite:{path} cannot be opened: {cause}. Name a database in a "
            "folder that exists and can be written to."
        ) from cause
    with closing(connection):
        yield saver


@contextmanager
def _postgres(url: str) -> Iterator[BaseCheckpointSaver[Any]]:
    with _installed("postgres"):
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool
    how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.Error as cause:
        raise SettingsError(
            f"The checkpointer postgres:{_without_password(url)} cannot be opened: "
            f"{str(cause).strip()}. Check address, database, user and password."
        ) from cause
    with ConnectionPool(url, min_size=1, max_size=_CONNECTIONS, kwargs=how, open=True) as pool:
        saver = _with_async(PostgresSaver)(pool)
        saver.setup()
        yield saver


def _without_password(url: str) -> str:
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        said = conninfo_to_dict(url)
    except Exception:
        return "..."
    said.pop("password", None)
    return make_conninfo("", **said)


@contextmanager
def _installed(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as cause:
        raise SettingsError(
            f"The {extra} checkpointer is not installed ({cause}). Install it: "
            f"pip install 'autellix[{extra}]'."
        ) from cause


@functools.cache
def _with_async(kind: type) -> Any:
    """A class of blocking savers whose async methods are the blocking ones, run in threads."""

    def twin(name: str) -> Callable[..., Any]:
        async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await in_thread(getattr(self, name), *args, **kwargs)

        return run

    async def alist(self: Any, config: Any, **how: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await in_thread(lambda: list(self.list(config, **how))):
            yield found

    methods: dict[str, Any] = {"alist": alist}
    for name in _TWINS:
        own = getattr(kind, name, None)
        if own is not None and own is not getattr(BaseCheckpointSaver, name, None):
            methods[f"a{name}"] = functools.wraps(own)(twin(name))
    return type(kind.__name__, (kind,), methods)
