"""The journal of threads: an append-only file of what their calls, tools and turns cost.

One SQLite file, written by any number of processes at once (write-ahead log). An entry is keyed by
store, thread and call, so a call that is told of again counts once. What was appended outlives
``kill -9`` of the process; the last moments before a power failure may be lost, whole entries at a
time.

1. An entry is one row with a checksum; nothing ever changes a row.
2. A thread's account is the fold of its entries in their order.
3. Compaction replaces the entries of a thread by one, their total, in one transaction and in the
   place of the last of them. So a thread costs at most ``FOLD_AT`` rows, whatever it did.
4. An append that finds the file locked by another process for long is kept, and written with the
   next one: a call never waits for the journal for more than ``PATIENCE_S``.
5. A damaged file is put aside and its whole entries are taken over; see ``journal_salvage.py``.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from autellix.errors import JournalError
from autellix.wal import is_busy, switch_to_wal

from .journal_account import Account, Entry
from .journal_salvage import salvage

log = logging.getLogger("autellix")

VERSION = 1
FOLD_AT = 256  # entries of one thread
PATIENCE_S = 0.1
_KEPT = 100_000  # entries that wait to be written
_READ_PATIENCE_S = 30.0
_APPLICATION_ID = 0x41544C58  # "ATLX"

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    store TEXT NOT NULL,
    thread TEXT NOT NULL,
    call TEXT NOT NULL,
    body TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (store, thread, call)
)
"""
_APPEND = "INSERT OR IGNORE INTO entries (store, thread, call, body, checksum) VALUES (?,?,?,?,?)"
_INSERT = "INSERT INTO entries (id, store, thread, call, body, checksum) VALUES (?,?,?,?,?,?)"
_OF_THREAD = "FROM entries WHERE store = ? AND thread = ?"


class ThreadRef(NamedTuple):
    """A thread and the store that holds its checkpoints."""

    store: str
    thread: str


class ThreadHistory(NamedTuple):
    """What the journal knows of a thread.

    Attributes:
        account: its totals.
        saved: a checkpoint of it has been stored.
        entries: how many rows that took.
    """

    account: Account
    saved: bool
    entries: int


class Journal:
    """One open journal; safe from any thread.

    Args:
        path: the file, made if there is none, with its folder; None keeps everything in memory.

    Raises:
        JournalError: the file cannot be opened, or a newer release has written it.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._backlog: list[tuple[Any, ...]] = []
        self._appended: dict[ThreadRef, int] = {}
        self._database = self._open()

    # -- writing ------------------------------------------------------------------------------

    def append(self, ref: ThreadRef, call: str, entry: Entry) -> None:
        """Write an entry down; one of the same call is not written twice.

        Args:
            call: id of the call, unique in its thread.
        """
        with self._lock:
            self._backlog.append(_row(ref, call, entry))
            self._write_backlog()
            count = self._appended[ref] = self._appended.get(ref, 0) + 1
            if count >= FOLD_AT:
                self.compact(ref)
            elif len(self._appended) > _KEPT:
                self._appended.clear()  # only when to compact next depends on it

    def _write_backlog(self) -> None:
        """Write what is kept; what cannot be written now stays (rule 4)."""
        try:
            if len(self._backlog) == 1:
                self._database.execute(_APPEND, self._backlog[0])
            elif self._backlog:
                with _transaction(self._database):
                    self._database.executemany(_APPEND, self._backlog)
        except sqlite3.DatabaseError as cause:
            if _is_damage(cause) and self._mend(cause):
                self._write_backlog()
            elif not is_busy(cause):
                self._cannot_write(cause)
            return
        self._backlog.clear()

    def _cannot_write(self, cause: sqlite3.DatabaseError) -> None:
        if len(self._backlog) == 1:
            log.warning(
                "The journal %s cannot be written now (%s). Entries are kept in memory until it "
                "can: free space on the disk, or look at the file's permissions.",
                self.path,
                cause,
            )
        del self._backlog[:-_KEPT]

    # -- reading ------------------------------------------------------------------------------

    def history(self, ref: ThreadRef) -> ThreadHistory | None:
        """What is known of a thread, None if nothing is."""
        with self._lock:
            if self._backlog:
                self._write_backlog()
            rows = self._read(f"SELECT id, call, body, checksum {_OF_THREAD} ORDER BY id", ref)
            unwritten = [(0, *row[2:]) for row in self._backlog if row[:2] == ref]
        if not rows and not unwritten:
            return None
        account, saved = Account(), False
        for _, call, body, checksum in (*rows, *unwritten):
            if checksum != _checksum(ref, call, body):
                log.warning(
                    "The journal %s holds a damaged entry of thread %s (call %s); it is left out.",
                    self.path,
                    ref.thread,
                    call,
                )
                continue
            entry = json.loads(body)
            if entry["kind"] == "reset":
                account, saved = Account(), False
            account.book(entry)
            saved = saved or entry["kind"] == "saved" or entry.get("saved", False)
        return ThreadHistory(account, saved, len(rows))

    def threads(self) -> list[ThreadRef]:
        """Every thread it knows."""
        with self._lock:
            rows = self._read("SELECT DISTINCT store, thread FROM entries", ())
        return [ThreadRef(*row) for row in rows]

    def _read(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.DatabaseError as cause:
            if _is_damage(cause) and self._mend(cause):
                return self._database.execute(query, values).fetchall()
            raise JournalError(
                f"The journal {self.path} cannot be read: {cause}. Try again, or name another file "
                "in AUTELLIX_JOURNAL."
            ) from cause

    # -- whole threads ------------------------------------------------------------------------

    def delete(self, ref: ThreadRef) -> None:
        """Forget a thread."""
        with self._lock, self._patiently():
            self._backlog = [row for row in self._backlog if row[:2] != ref]
            self._appended.pop(ref, None)
            self._database.execute(f"DELETE {_OF_THREAD}", ref)

    def copy(self, source: ThreadRef, target: ThreadRef) -> None:
        """Give ``target`` the totals of ``source``, in place of its own."""
        with self._lock:
            history = self.history(source)
            self.delete(target)
            if history is not None:
                self.append(target, "total", _total(history))

    def compact(self, ref: ThreadRef) -> None:
        """Replace the entries of a thread by their total (rule 3)."""
        with self._lock:
            self._appended.pop(ref, None)
            try:
                with _transaction(self._database):
                    history = self.history(ref)
                    if history is None or history.entries < 2:
                        return
                    last = self._database.execute(f"SELECT max(id) {_OF_THREAD}", ref).fetchone()[0]
                    self._database.execute(f"DELETE {_OF_THREAD}", ref)
                    row = _row(ref, "total", _total(history))
                    self._database.execute(_INSERT, (last, *row))
            except (sqlite3.DatabaseError, JournalError) as cause:
                log.debug("The journal was not compacted", exc_info=cause)  # some other time

    def close(self) -> None:
        """Write what is left and close; safe to call twice."""
        with self._lock:
            for ref, count in list(self._appended.items()):
                if count >= FOLD_AT // 16:
                    self.compact(ref)
            if self._backlog:
                with self._patiently():
                    self._write_backlog()
            self._database.close()

    def _patiently(self) -> _Patiently:
        return _Patiently(self._database)

    # -- the file -----------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            return _in_memory()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return _opened(self.path)
            except sqlite3.DatabaseError as cause:
                if isinstance(cause, sqlite3.OperationalError):
                    raise
                self._say(salvage(self.path, cause, _opened))
                return _opened(self.path)
        except (OSError, sqlite3.OperationalError) as cause:
            raise JournalError(
                f"The journal {self.path} cannot be opened: {cause}. Name a file in a folder that "
                "can be written to: set AUTELLIX_JOURNAL."
            ) from cause

    def _mend(self, cause: sqlite3.DatabaseError) -> bool:
        """The file turned out to be damaged while it was open; whether it is whole now."""
        if self.path is None:
            return False
        self._database.close()
        try:
            self._say(salvage(self.path, cause, _opened))
            self._database = self._open()
        except (OSError, sqlite3.DatabaseError, JournalError) as failure:
            log.warning("The journal %s cannot be mended: %s", self.path, failure)
            self._database, self.path = _in_memory(), None
        return True

    def _say(self, what: str | None) -> None:
        if what is not None:
            log.warning("%s", what)


class _Patiently:
    """Waits for other processes longer than an append may."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        _wait_for_lock(self._database, _READ_PATIENCE_S)

    def __exit__(self, *error: object) -> None:
        _wait_for_lock(self._database, PATIENCE_S)


class _transaction:
    """All of it or nothing; begins as a writer, so that what is read inside stays true."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *error: object) -> None:
        self._database.execute("COMMIT" if kind is None else "ROLLBACK")


def _in_memory() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.execute(SCHEMA)
    return database


def _opened(path: Path) -> sqlite3.Connection:
    """An open, whole journal of our version.

    Raises:
        sqlite3.DatabaseError: it is damaged.
        JournalError: a newer release has written it, or it is something else.
    """
    database = sqlite3.connect(
        path, timeout=_READ_PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (application,) = database.execute("PRAGMA application_id").fetchone()
        if version > VERSION:
            raise JournalError(
                f"The journal {path} has version {version}; this release reads versions up to "
                f"{VERSION}. Install a newer Autellix, or name another file in AUTELLIX_JOURNAL."
            )
        if application not in (0, _APPLICATION_ID):
            raise JournalError(
                f"{path} is a database of another program, not a journal. Name another file in "
                "AUTELLIX_JOURNAL."
            )
        if version == 0:
            _create(database, path)
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        database.execute("PRAGMA synchronous = NORMAL")
        _wait_for_lock(database, PATIENCE_S)
    except BaseException:
        database.close()
        raise
    return database


def _create(database: sqlite3.Connection, path: Path) -> None:
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    switch_to_wal(database, _READ_PATIENCE_S)
    with _transaction(database):
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and database.execute("PRAGMA user_version").fetchone() == (0,):
            raise JournalError(
                f"{path} is a database of another program, not a journal. Name another file in "
                "AUTELLIX_JOURNAL."
            )
        database.execute(SCHEMA)
        database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {VERSION}")


def _wait_for_lock(database: sqlite3.Connection, seconds: float) -> None:
    database.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def _row(ref: ThreadRef, call: str, entry: Entry) -> tuple[Any, ...]:
    body = json.dumps(entry, separators=(",", ":"))
    return (*ref, call, body, _checksum(ref, call, body))


def _checksum(ref: Iterable[str], call: str, body: str) -> int:
    return crc32("\0".join((*ref, call, body)).encode("utf-8", "surrogatepass"))


def is_whole(row: Sequence[Any]) -> bool:
    """Whether a row (store, thread, call, body, checksum) is as it was written."""
    *ref, call, body, checksum = row
    parts = (*ref, call, body)
    return all(isinstance(part, str) for part in parts) and checksum == _checksum(ref, call, body)


def _total(history: ThreadHistory) -> Entry:
    return {"kind": "total", "account": history.account.to_wire(), "saved": history.saved}


def _is_damage(cause: sqlite3.DatabaseError) -> bool:
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
