"""Where the processes of replicas start: nothing of them stays when the place is closed."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time

from autellix.runtime.engine_start import EngineProcesses
from autellix.runtime.process_tree import descendants


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
