"""SQLite's write-ahead log, switched on also where other processes do so at the same moment."""

from __future__ import annotations

import sqlite3
import time

_PAUSE_S = 0.01


def switch_to_wal(database: sqlite3.Connection, patience_s: float) -> None:
    """Let readers and one writer work at once on this database file, from now on.

    Args:
        database: an open connection without a transaction.
        patience_s: how long to wait for other processes that hold the file, in seconds.

    Raises:
        sqlite3.OperationalError: the file was held for longer, or cannot be written.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        # The connection's own timeout does not hold here: while another process has a lock
        # reserved, SQLite gives up at once.
        except sqlite3.OperationalError as cause:
            if not is_busy(cause) or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)


def is_busy(cause: sqlite3.DatabaseError) -> bool:
    """Whether an error only says that another process holds the file."""
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
