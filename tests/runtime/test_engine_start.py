"""Where the processes of replicas start: what they get, and that nothing of them stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autellix.errors import EngineStartError
from autellix.runtime import engine_host as hosts
from autellix.runtime.engine_host import EngineHost, engine_processes
from autellix.runtime.engine_start import EngineProcesses, new_log
from autellix.runtime.process_tree import descendants
from autellix.runtime.settings import Settings

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


def test_a_process_of_a_start_that_was_given_up_ends_with_the_place() -> None:
    place = EngineProcesses(debug=False)
    with place.starting(compiling=False):
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        process.start()
    assert process.pid is not None
    while not process.is_alive():
        time.sleep(0.01)
    place.close()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_processes_of_others_live_on() -> None:
    first, second = EngineProcesses(debug=False), EngineProcesses(debug=False)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with second.starting(compiling=False):
            process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
            process.start()
        first.close()
        assert process.is_alive()
        assert other.poll() is None
        second.close()
        process.join(60)
        assert other.pid in descendants([multiprocessing.current_process().pid or 0])
    finally:
        other.kill()
        other.wait()


def test_a_start_that_fails_ends_no_other_engine(
    engine_host: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*given: object) -> None:
        raise EngineStartError("no room")

    before = engine_processes()
    assert before
    monkeypatch.setattr(hosts, "_start", fails)
    with pytest.raises(EngineStartError, match="no room"):
        EngineHost.start(Settings(quiet=True))
    assert engine_processes() == before
    assert all(process.is_alive() for process in before)
