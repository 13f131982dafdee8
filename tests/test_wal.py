"""Processes that open one new database at the same moment all get it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autellix.integrations.checkpoint_provided import provided_saver
from autellix.runtime.journal import VERSION, Journal
from autellix.wal import switch_to_wal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.db"


@pytest.fixture
def holder(path: Path) -> Iterator[sqlite3.Connection]:
    """Another process about to write: SQLite asks nobody to wait who switches the log then."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("BEGIN IMMEDIATE")
    yield database
    database.close()


class LetsGo(sqlite3.Connection):
    """A connection; once it was turned away, the holder lets the file go."""

    holder: sqlite3.Connection
    turned_away = 0

    def execute(self, *args: object) -> sqlite3.Cursor:
        try:
            return super().execute(*args)  # pyright: ignore[reportArgumentType]
        except sqlite3.OperationalError:
            self.turned_away += 1
            if self.turned_away == 2:
                self.holder.execute("ROLLBACK")
            raise


def test_a_held_file_is_waited_for(path: Path, holder: sqlite3.Connection) -> None:
    database = sqlite3.connect(path, factory=LetsGo)
    database.holder = holder
    switch_to_wal(database, 30.0)
    assert database.turned_away == 2
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_patience_ends(path: Path, holder: sqlite3.Connection) -> None:
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        switch_to_wal(database, 0.05)


def test_what_is_no_lock_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "no database"
    path.write_bytes(b"words" * 1000)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        switch_to_wal(sqlite3.connect(path), 3600.0)


@pytest.mark.parametrize("store", ["checkpointer", "journal"])
def test_stores_open_while_another_process_creates_the_file(
    path: Path, holder: sqlite3.Connection, store: str
) -> None:
    release = threading.Timer(0.2, holder.execute, ["ROLLBACK"])
    release.start()
    if store == "checkpointer":
        with provided_saver(f"sqlite:{path}") as saver:
            assert list(saver.list(None)) == []
    else:
        Journal(path).close()
        assert holder.execute("PRAGMA user_version").fetchone() == (VERSION,)
    release.join()
