"""The journal: nothing is lost or counted twice, whatever happens to the process or the file."""

from __future__ import annotations

import logging
import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from autellix.errors import JournalError
from autellix.runtime.journal import FOLD_AT, VERSION, Journal, ThreadRef
from autellix.runtime.journal_account import SAVED, Account, Entry, call_entry, tool_entry
from autellix.scheduler.tickets import Receipt

T = ThreadRef("sqlite:/threads.db", "t")


def entry(service_s: float = 1.0, through_s: float = 1.0) -> Entry:
    receipt = Receipt(
        program="t", call="c", service_s=service_s, wait_s=0.5, levels=(1, 2), preemptions=1
    )
    return call_entry(receipt, through_s)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.sqlite"


def account(journal: Journal, ref: ThreadRef = T) -> Account:
    history = journal.history(ref)
    assert history is not None
    return history.account


def rows(path: Path) -> int:
    database = sqlite3.connect(path)
    try:
        return database.execute("SELECT count(*) FROM entries").fetchone()[0]
    finally:
        database.close()


# ── writing and reading ──────────────────────────────────────────────────────────────────────


def test_what_is_appended_is_there_for_the_next_process(path: Path) -> None:
    journal = Journal(path)
    journal.append(T, "a", entry(1.0, 1.0))
    journal.append(T, "b", entry(2.0, 3.0))
    journal.append(T, "x", tool_entry("search", 0.25))
    journal.append(T, "saved", SAVED)
    later = Journal(path)  # the first one has not been closed: its process was killed
    history = later.history(T)
    assert history is not None
    assert history.saved
    found = history.account
    assert (found.service_s, found.wait_s, found.critical_path_s) == (3.0, 1.0, 3.0)
    assert (found.calls, found.tools, found.preemptions) == (2, 1, 2)
    assert len(found.tool_times["search"]) == 1
    for one in (journal, later):
        one.close()


def test_a_call_that_is_told_twice_counts_once(path: Path) -> None:
    for _ in range(2):
        journal = Journal(path)
        journal.append(T, "a", entry())
        journal.append(T, "a", entry())
        assert account(journal).calls == 1
        journal.close()


def test_threads_and_stores_are_told_apart(path: Path) -> None:
    journal = Journal(path)
    other = ThreadRef("postgres:db", "t")
    journal.append(T, "a", entry())
    assert journal.history(other) is None
    journal.append(other, "a", entry(5.0))
    assert (account(journal).service_s, account(journal, other).service_s) == (1.0, 5.0)
    assert sorted(journal.threads()) == sorted([T, other])
    journal.close()


def test_a_thread_costs_a_bounded_number_of_rows_and_keeps_its_totals(path: Path) -> None:
    journal = Journal(path)
    calls = 5 * FOLD_AT
    for number in range(calls):
        journal.append(T, f"c{number}", entry(1.0, float(number)))
    assert rows(path) <= FOLD_AT + 1
    found = account(journal)
    assert (found.calls, found.service_s) == (calls, float(calls))
    assert found.critical_path_s == calls - 1
    journal.close()
    assert rows(path) < FOLD_AT


def test_compaction_changes_nothing(path: Path) -> None:
    journal = Journal(path)
    for number in range(20):
        journal.append(T, f"c{number}", entry(0.1 * number, float(number % 7)))
        journal.append(T, f"x{number}", tool_entry(f"tool {number % 3}", 0.01 * number))
    journal.append(T, "saved", SAVED)
    before = journal.history(T)
    journal.compact(T)
    after = journal.history(T)
    assert before is not None
    assert after is not None
    assert after[:2] == before[:2]
    assert after.entries == 1
    journal.close()


def test_threads_can_be_deleted_and_copied(path: Path) -> None:
    journal = Journal(path)
    copy = ThreadRef(T.store, "copy")
    journal.append(T, "a", entry(2.0))
    journal.append(copy, "old", entry(9.0))
    journal.copy(T, copy)
    assert account(journal, copy) == account(journal)
    journal.append(copy, "a", entry(1.0))  # the copy's own call of that name
    assert (account(journal).service_s, account(journal, copy).service_s) == (2.0, 3.0)
    journal.delete(T)
    assert journal.history(T) is None
    assert account(journal, copy).calls == 2
    journal.close()


def test_ten_thousand_threads(path: Path) -> None:
    journal = Journal(path)
    for number in range(10_000):
        journal.append(ThreadRef("s", f"t{number}"), "a", entry(float(number)))
    journal.close()
    journal = Journal(path)
    assert len(journal.threads()) == 10_000
    for number in (0, 5_000, 9_999):
        assert account(journal, ThreadRef("s", f"t{number}")).service_s == number
    journal.close()
    assert path.stat().st_size < 8_000_000


# ── several processes ────────────────────────────────────────────────────────────────────────


def _write(path: Path, name: str, count: int) -> None:
    journal = Journal(path)
    for number in range(count):
        journal.append(T, f"{name}{number}", entry())
        if number % 50 == 0:
            journal.compact(ThreadRef(T.store, "nothing"))
    journal.close()


def test_processes_write_to_one_thread_at_once_and_nothing_is_lost(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, name, 60)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    journal = Journal(path)
    assert account(journal).calls == 3 * 60
    journal.close()


def test_a_locked_file_delays_the_entry_not_the_call(path: Path) -> None:
    journal = Journal(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    journal.append(T, "a", entry(1.0))
    assert account(journal).calls == 1  # known here, although not yet written
    other.execute("COMMIT")
    other.close()
    assert rows(path) == 0
    journal.append(T, "b", entry(2.0))
    assert rows(path) == 2
    journal.close()


# ── versions and damage ──────────────────────────────────────────────────────────────────────


def test_a_newer_version_is_refused_by_name(path: Path) -> None:
    Journal(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {VERSION + 6}")
    database.close()
    with pytest.raises(JournalError, match=f"version {VERSION + 6}.*up to {VERSION}"):
        Journal(path)
    assert path.exists()


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="another program"):
        Journal(path)
    assert path.read_bytes()[100:] == before[100:]


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="AUTELLIX_JOURNAL"):
        Journal(tmp_path / "file" / "journal.sqlite")


def filled(path: Path, count: int = 2_000) -> None:
    journal = Journal(path)
    for number in range(count):
        journal.append(ThreadRef("s", f"t{number}"), "c", tool_entry("x", 0.1))
    journal.close()


def total(journal: Journal) -> int:
    return sum(account(journal, ref).tools for ref in journal.threads())


@pytest.mark.parametrize("pages", [(5,), (9,), (3, 12, 20)])
def test_of_a_damaged_file_the_whole_entries_are_kept_and_the_rest_is_told(
    path: Path, pages: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    filled(path)
    image = bytearray(path.read_bytes())
    for page in pages:
        image[page * 4096 : page * 4096 + 300] = b"\xa5" * 300
    path.write_bytes(image)
    with caplog.at_level(logging.WARNING, "autellix"):
        journal = Journal(path)
    kept = total(journal)
    assert 0 < kept <= 2_000
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"{kept} whole entries were kept" in said
    assert "dropped" in said
    if kept < 2_000:
        assert f"{2_000 - kept} ids that could not be read" in said
    aside = list(path.parent.glob("*.damaged-*"))
    assert aside
    assert str(aside[0]) in said
    journal.append(T, "new", entry())
    journal.close()
    Journal(path).close()  # whole again


def test_a_file_that_is_no_database_is_put_aside(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(path, 10)
    path.write_bytes(b"not a database at all " * 500)
    with caplog.at_level(logging.WARNING, "autellix"):
        journal = Journal(path)
    assert journal.threads() == []
    assert "nothing in it could be read" in caplog.text
    journal.close()


def test_a_changed_entry_is_left_out_and_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(path)
    journal.append(T, "a", entry(1.0))
    journal.append(T, "b", entry(2.0))
    database = sqlite3.connect(path)
    database.execute("UPDATE entries SET body = replace(body, '1.0', '7.0') WHERE call = 'a'")
    database.commit()
    database.close()
    assert account(journal).service_s == 2.0
    assert "call a" in caplog.text
    journal.close()


def test_damage_that_comes_up_while_the_file_is_open_is_mended(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(path)
    journal = Journal(path)
    image = bytearray(path.read_bytes())
    for page in range(4, len(image) // 4096):
        image[page * 4096 : page * 4096 + 300] = b"\xa5" * 300
    path.write_bytes(image)
    journal._database.execute("PRAGMA shrink_memory")  # read the file again, not the cache
    with caplog.at_level(logging.WARNING, "autellix"):
        journal.append(ThreadRef("s", "t3"), "new", entry(4.0))
        assert account(journal, ThreadRef("s", "t3")).service_s == 4.0
    assert "was damaged" in caplog.text
    journal.close()


# ── accounts ─────────────────────────────────────────────────────────────────────────────────


def test_an_account_survives_its_snapshot() -> None:
    made = Account()
    for body in (entry(1.5, 2.0), tool_entry("a", 0.1), tool_entry("b", 5.0)):
        made.book(body)
    assert Account.from_wire(made.to_wire()) == made
    assert Account.from_wire({**made.to_wire(), "of a later release": 1}) == made


def test_of_journal_and_snapshot_the_larger_counts() -> None:
    journal, snapshot = Account(), Account()
    for number in range(3):
        journal.book(entry(1.0, float(number)))
    snapshot.book({**entry(9.0, 9.0), "replica": 5})
    snapshot.book(tool_entry("a", 1.0))
    journal.at_least(snapshot)
    assert (journal.service_s, journal.calls, journal.tools) == (9.0, 3, 1)
    assert journal.replica == 0  # of the one that knows more calls
    assert len(journal.tool_times["a"]) == 1


def test_a_promotion_pays_the_wait_that_was_owed() -> None:
    made = Account()
    made.book(entry())
    assert made.owed_wait_s == 0.5
    promoted: dict[str, Any] = {**entry(), "promoted": True}
    made.book(promoted)
    assert (made.owed_wait_s, made.wait_s) == (0.0, 1.0)
