"""The conditions under which an engine's processes start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autellix.runtime.engine_start import new_log

_SCRIPT = """
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, resource_tracker

from autellix.runtime.engine_start import EngineProcesses

if __name__ == "__main__":
    processes = EngineProcesses(debug={debug})
    with processes.starting(), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        print(pool.submit(os.readlink, "/proc/self/fd/0").result())
        print(os.readlink(f"/proc/{{resource_tracker._resource_tracker._pid}}/fd/0"))
    processes.close()
"""


@pytest.mark.parametrize("debug", [False, True])
def test_what_is_typed_reaches_none_of_the_engines_processes(debug: bool) -> None:
    command = [sys.executable, "-c", _SCRIPT.format(debug=debug)]
    done = subprocess.run(
        command, stdin=subprocess.PIPE, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["/dev/null", "/dev/null"], done.stderr


def test_of_old_logs_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "autellix"
    folder.mkdir()
    for number in range(60):
        log = folder / f"engine-{number}.log"
        log.touch()
        os.utime(log, (number, number))
    (folder / "journal.sqlite").touch()
    new_log().touch()
    left = sorted(int(log.stem.partition("-")[2]) for log in folder.glob("engine-??.log"))
    assert left == list(range(11, 60))
    assert len(list(folder.glob("engine-*.log"))) == 50
    assert (folder / "journal.sqlite").exists()
