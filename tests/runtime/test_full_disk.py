"""A disk that is full: the journal keeps what it cannot write, and says so once."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autellix.runtime.journal import Journal, ThreadRef
from autellix.runtime.journal_account import call_entry
from autellix.scheduler.tickets import Receipt

THREADS = [ThreadRef("sqlite:/threads.db", f"t{number}") for number in range(40)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave not a byte free; the file that takes it all."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        block = 65536
        while block:
            try:
                file.write(b"x" * block)
            except OSError:
                block //= 2
    return path


def entry(number: int) -> tuple[str, object]:
    receipt = Receipt(
        program="p", call=str(number), service_s=1.0, wait_s=0.5, levels=(1,), preemptions=0
    )
    return str(number), call_entry(receipt, 1.0)


def append(journal: Journal, numbers: range) -> None:
    for number in numbers:
        call, made = entry(number)
        journal.append(THREADS[number % len(THREADS)], call, made)  # type: ignore[arg-type]


def calls(journal: Journal) -> int:
    found = [journal.history(thread) for thread in THREADS]
    return sum(history.account.calls for history in found if history is not None)


def test_entries_wait_for_room_on_the_disk_and_none_is_lost(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    journal = Journal(small_disk / "journal.sqlite")
    append(journal, range(40))
    filler = fill(small_disk)
    append(journal, range(40, 640))
    assert sum("cannot be written" in record.message for record in caplog.records) == 1
    assert calls(journal) == 640
    on_disk = Journal(small_disk / "journal.sqlite")
    assert calls(on_disk) < 640
    on_disk.close()
    os.truncate(filler, 0)
    append(journal, range(640, 641))
    journal.close()
    later = Journal(small_disk / "journal.sqlite")
    assert calls(later) == 641
    later.close()
