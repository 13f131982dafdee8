"""The threads of a session: whom they belong to, what they begin with, and that they are let go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autellix.errors import JournalError
from autellix.runtime.journal import ThreadRef
from autellix.runtime.journal_threads import ThreadAccounts
from autellix.runtime.protocols import ThreadLoad
from autellix.scheduler.tickets import Receipt

STORE = "sqlite:/threads.db"
REF = ThreadRef(STORE, "t")


def loaded(thread: str = "t", checkpoint: str | None = None, **more: Any) -> ThreadLoad:
    values = {"store": STORE, "thread": thread, "checkpoint": checkpoint, "snapshot": None, **more}
    return ThreadLoad(**values)


def receipt(call: str, service_s: float = 1.0) -> Receipt:
    return Receipt(
        program="p", call=call, service_s=service_s, wait_s=0.0, levels=(1,), preemptions=0
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def threads(path: Path) -> Iterator[ThreadAccounts]:
    threads = ThreadAccounts(path)
    yield threads
    threads.close()


def test_a_program_runs_as_the_first_thread_that_it_loads(threads: ThreadAccounts) -> None:
    assert threads.load("p", loaded("t"))
    assert threads.load("p", loaded("other")) is None
    threads.call_finished("p", receipt("a"), 1.0)
    assert threads.snapshot("p", STORE, "other") is None
    account = threads.snapshot("p", STORE, "t")
    assert account is not None
    assert account["calls"] == 1


def test_a_receipt_that_comes_after_the_end_still_counts(threads: ThreadAccounts) -> None:
    threads.load("p", loaded())
    threads.end_turn("p", "cancelled")
    threads.call_finished("p", receipt("late", 2.0), 2.0)
    bound = threads.load("p", loaded())
    assert bound is not None
    assert (bound.account.service_s, bound.account.turns) == (2.0, 1)


def test_calls_of_programs_without_a_thread_are_not_kept(
    threads: ThreadAccounts, path: Path
) -> None:
    threads.call_finished("p", receipt("a"), 1.0)
    threads.end_turn("p", "done")
    assert not path.exists()


def test_a_thread_that_was_killed_before_its_first_checkpoint_goes_on(
    threads: ThreadAccounts, path: Path
) -> None:
    threads.load("p", loaded())
    threads.call_finished("p", receipt("a"), 1.0)
    later = ThreadAccounts(path)
    bound = later.load("p", loaded())
    assert bound is not None
    assert (bound.account.calls, bound.branch_s) == (1, 1.0)
    later.close()


def test_a_thread_that_has_lost_its_checkpoints_is_a_new_one(threads: ThreadAccounts) -> None:
    threads.load("p", loaded())
    threads.call_finished("p", receipt("a"), 1.0)
    threads.saved(REF)
    threads.end_turn("p", "done")
    for _ in range(2):
        bound = threads.load("p", loaded())
        assert bound is not None
        assert bound.account.calls == 0
        threads.end_turn("p", "done")


def test_a_checkpoint_that_was_asked_for_in_vain_loses_nothing(threads: ThreadAccounts) -> None:
    threads.load("p", loaded())
    threads.call_finished("p", receipt("a"), 1.0)
    threads.saved(REF)
    threads.end_turn("p", "done")
    bound = threads.load("p", loaded(addressed=True))
    assert bound is not None
    assert bound.account.calls == 1


def test_two_turns_of_a_thread_at_once_share_its_account(threads: ThreadAccounts) -> None:
    threads.load("t", loaded())
    threads.call_finished("t", receipt("a"), 1.0)
    threads.load("t", loaded())
    threads.end_turn("t", "done")
    threads.call_finished("t", receipt("b"), 2.0)
    account = threads.snapshot("t", STORE, "t")
    assert account is not None
    assert (account["calls"], account["critical_path_s"]) == (2, 2.0)
    threads.end_turn("t", "done")
    assert threads.snapshot("t", STORE, "t") is None


def test_a_journal_that_cannot_be_used_binds_nothing(tmp_path: Path) -> None:
    threads = ThreadAccounts(tmp_path)  # a folder
    with pytest.raises(JournalError):
        threads.load("p", loaded())
    threads.call_finished("p", receipt("a"), 1.0)  # the call itself is not harmed
    threads.end_turn("p", "done")


def test_of_ten_thousand_threads_none_is_held_after_its_end(path: Path) -> None:
    threads = ThreadAccounts(path)
    for number in range(10_000):
        thread = f"t{number}"
        threads.load(thread, loaded(thread))
        threads.call_finished(thread, receipt("a", float(number)), float(number))
        threads.end_turn(thread, "done")
    assert not threads._bound
    threads.close()
    threads = ThreadAccounts(path)
    for number in (0, 5_000, 9_999):
        bound = threads.load(f"t{number}", loaded(f"t{number}"))
        assert bound is not None
        assert bound.account.service_s == number
    threads.close()
