"""The conditions under which an engine's processes start."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
