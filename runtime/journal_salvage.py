"""Saves what is whole of a damaged journal.

The damaged file is kept beside the new one, under a name that says so. Rows are read one by one in
the order of their ids; a page that cannot be read costs the rows on it and no others.
"""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_COLUMNS = "id, store, thread, call, body, checksum"
_GIVE_UP_AFTER = 100_000  # unreadable ids in a row


def salvage(
    path: Path, cause: sqlite3.DatabaseError, opened: Callable[[Path], sqlite3.Connection]
) -> str | None:
    """Put a damaged journal aside and begin a new one with its whole entries.

    Processes that meet the damage at the same time do this once: the others find a whole file.

    Args:
        path: the journal; no connection of the caller's is open on it.
        cause: what SQLite said.
        opened: opens a journal, and raises where it is damaged.

    Returns:
        For people, what was kept and what was dropped; None where another process did it all.
    """
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            opened(path).close()
            return None
        except sqlite3.DatabaseError:
            pass
        aside = _name_aside(path)
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        reader = _Reader(aside)
        fresh = opened(path)
        fresh.execute("BEGIN IMMEDIATE")
        insert = f"INSERT OR IGNORE INTO entries ({_COLUMNS}) VALUES (?,?,?,?,?,?)"
        kept = sum(fresh.execute(insert, row).rowcount for row in reader.rows())
        fresh.execute("COMMIT")
        fresh.close()
    return (
        f"The journal {path} was damaged ({cause}). {kept} whole entries were kept; "
        f"{reader.dropped()}. Those calls no longer count, unless a checkpoint's snapshot has "
        f"them. The damaged file is kept as {aside}."
    )


def _name_aside(path: Path) -> Path:
    stem = f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}"
    names = (stem if n == 0 else f"{stem}-{n}" for n in range(1_000_000))
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())


class _Reader:
    """Reads the rows of a damaged file, as far as they are whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unreadable = 0
        self._broken = 0
        self._nothing = False
        self._open_end = False

    def dropped(self) -> str:
        """What was dropped, for people."""
        if self._nothing:
            return "nothing in it could be read, so all others were dropped"
        lost = [
            f"{self._broken} with a wrong checksum" if self._broken else "",
            f"{self._unreadable} ids that could not be read" if self._unreadable else "",
            "everything after them" if self._open_end else "",
        ]
        text = " and ".join(part for part in lost if part)
        return f"dropped: {text}" if text else "none had to be dropped"

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The whole rows."""
        from .journal import is_whole

        try:
            database = sqlite3.connect(self._path, isolation_level=None)
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            database.execute("SELECT 1 FROM entries LIMIT 1").fetchone()
        except sqlite3.DatabaseError:
            # The first page may be whole where the first row is not.
            if not self._has_table():
                self._nothing = True
                return
            database = sqlite3.connect(self._path, isolation_level=None)
        try:
            for row in self._walk(database):
                if is_whole(row[1:]):
                    yield row
                else:
                    self._broken += 1
        finally:
            database.close()

    def _has_table(self) -> bool:
        try:
            database = sqlite3.connect(self._path)
            try:
                query = "SELECT 1 FROM sqlite_master WHERE name = 'entries'"
                return database.execute(query).fetchone() is not None
            finally:
                database.close()
        except sqlite3.DatabaseError:
            return False

    def _walk(self, database: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
        last, end = 0, _last_id(database)
        while True:
            try:
                query = f"SELECT {_COLUMNS} FROM entries WHERE id > ? ORDER BY id"
                for row in database.execute(query, (last,)):
                    yield row
                    last = row[0]
                return
            except sqlite3.DatabaseError:
                found = self._next_readable(database, last, end)
                if found is None:
                    return
                yield found
                last = found[0]

    def _next_readable(
        self, database: sqlite3.Connection, last: int, end: int | None
    ) -> tuple[Any, ...] | None:
        query = f"SELECT {_COLUMNS} FROM entries WHERE id = ?"
        stop = last + _GIVE_UP_AFTER if end is None else end
        for id in range(last + 1, stop + 1):
            try:
                row = database.execute(query, (id,)).fetchone()
            except sqlite3.DatabaseError:
                self._unreadable += 1
                continue
            if row is not None:
                return row
        self._open_end = end is None
        return None


def _last_id(database: sqlite3.Connection) -> int | None:
    try:
        return database.execute("SELECT max(id) FROM entries").fetchone()[0] or 0
    except sqlite3.DatabaseError:
        return None
