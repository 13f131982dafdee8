"""The folder of a replica's temporary files: it goes with its owner, however that ends."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autellix.runtime.scratch import Scratch

ROOT = Path(__file__).resolve().parents[2]
OWNER = """
from autellix.runtime.scratch import Scratch
scratch = Scratch()
print(scratch.name, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Short: a longer one is left for /tmp, since sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="s-") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short)


def owner(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env={"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_goes_when_it_is_removed_or_forgotten(folder: Path) -> None:
    scratch = Scratch()
    (Path(scratch.name) / "socket").touch()
    scratch.cleanup()
    scratch.cleanup()
    assert list(folder.iterdir()) == []
    process, _ = owner(folder)
    process.communicate("end\n")
    assert list(folder.iterdir()) == []


def test_the_next_one_removes_what_killed_owners_left_and_nothing_else(folder: Path) -> None:
    living, theirs = owner(folder)
    killed, left = owner(folder)
    (left / "deep").mkdir()
    killed.kill()
    killed.communicate()
    foreign = folder / "autellix-of-somebody-else"
    foreign.mkdir()
    scratch = Scratch()
    assert set(folder.iterdir()) == {theirs, foreign, Path(scratch.name)}
    living.communicate("end\n")
    scratch.cleanup()
    assert list(folder.iterdir()) == [foreign]
