"""The live view of a real run, on a real terminal multiplexer."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SHOWN_WITHIN_S = 200.0


class Tmux:
    """A window of a tmux server of its own."""

    def __init__(self, width: int, height: int, command: str) -> None:
        self._name = f"autellix-{uuid.uuid4().hex[:8]}"
        size = ("-x", str(width), "-y", str(height))
        self.do("-f", "/dev/null", "new-session", "-d", *size, "-c", str(ROOT), command)
        self.do("set", "-g", "status", "off")

    def do(self, *arguments: str) -> str:
        """One command to the server; what it says."""
        done = subprocess.run(
            ["tmux", "-L", self._name, *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout

    @property
    def screen(self) -> str:
        """What can be seen."""
        return self.do("capture-pane", "-p")

    def until(self, *said: str) -> str:
        """Wait until all of it can be seen; the screen then."""
        deadline = time.monotonic() + SHOWN_WITHIN_S
        while not all(words in (screen := self.screen) for words in said):
            assert time.monotonic() < deadline, f"{said} was not shown:\n{screen}"
            time.sleep(0.1)
        return screen


@pytest.fixture
def window() -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    command = [sys.executable, "-m", "autellix", "run", "examples/tree_search.py"]
    command += ["--input", "examples/tree_search.jsonl", "--refresh", "0.2"]
    command += ["--engine-arg", "max_num_seqs=2"]
    window = Tmux(80, 24, f"{shlex.join(command)}; echo code $?; read keep")
    yield window
    window.do("kill-server")


@pytest.mark.slow
def test_a_real_run_is_seen_on_a_terminal_and_leaves_it_as_it_was(window: Tmux) -> None:
    screen = window.until("─ queues", "tree_search-1", "tree_search-2", "expand", "2/2")
    assert all(len(line) <= 80 for line in screen.splitlines())
    window.do("resize-window", "-x", "120", "-y", "40")
    screen = window.until("tools tokens", "critical path", "├")
    assert all(len(line) <= 120 for line in screen.splitlines())
    window.do("send-keys", "s")
    window.until("by wait")
    screen = window.until("makespan", "code 0")
    assert "─ queues" not in screen
    scrollback = window.do("capture-pane", "-p", "-S", "-200")
    assert scrollback.count("tree_search-1: ") == 1, "what the program printed is there once"
