"""Which store a checkpointer writes to: the same in every process that opens it.

A thread's id is unique in its store only, so the journal keys its entries by both. Where a saver
does not say which store it has, its class and the working directory must do.
"""

from __future__ import annotations

import itertools
import os
import uuid
from pathlib import Path
from typing import Any

_NAME = "_autellix_store"  # kept on the saver, so that its shallow clones have it as well
_MEMORY = "memory:"
_numbers = itertools.count(1)


def store_of(saver: Any) -> str:
    """The identity of a saver's store; may block for a moment, the first time."""
    known = saver.__dict__.get(_NAME)
    if known is None:
        connection = getattr(saver, "conn", None)
        known = _known_kind(saver, connection) or _sqlite_store(saver, connection)
        saver.__dict__[_NAME] = known = known or _by_class(saver)
    return known


async def astore_of(saver: Any) -> str:
    """As :func:`store_of`, of a saver whose connection has to be awaited."""
    known = saver.__dict__.get(_NAME)
    if known is None:
        connection: Any = getattr(saver, "conn", None)
        if _module(connection) == "aiosqlite":
            known = _file(await (await connection.execute(_WHICH_FILE)).fetchall())
        else:
            return store_of(saver)
        saver.__dict__[_NAME] = known
    return known


_WHICH_FILE = "PRAGMA database_list"


def _known_kind(saver: Any, connection: Any) -> str | None:
    if any(base.__name__ == "InMemorySaver" for base in type(saver).__mro__):
        return _in_memory()
    if _module(connection) in ("psycopg", "psycopg_pool"):
        return _postgres_store(connection)
    return None


def _sqlite_store(saver: Any, connection: Any) -> str | None:
    if _module(connection) == "sqlite3":
        with saver.lock:
            return _file(connection.execute(_WHICH_FILE).fetchall())
    return None


def _file(rows: Any) -> str:
    path = next((row[2] for row in rows if row[1] == "main"), "")
    return f"sqlite:{Path(path).resolve()}" if path else _in_memory()


def _postgres_store(connection: Any) -> str:
    from psycopg.conninfo import conninfo_to_dict

    text = getattr(connection, "conninfo", None)
    if text is None:
        info = connection.info
        return f"postgres:{info.host}:{info.port}/{info.dbname}"
    said = conninfo_to_dict(text)
    host, port = said.get("host", ""), said.get("port", "5432")
    return f"postgres:{host}:{port}/{said.get('dbname', said.get('user', ''))}"


def _by_class(saver: Any) -> str:
    kind = type(saver)
    return f"{kind.__module__}.{kind.__qualname__}@{Path.cwd()}"


def _in_memory() -> str:
    return f"{_MEMORY}{os.getpid()}-{next(_numbers)}-{uuid.uuid4().hex[:8]}"


def _module(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]
