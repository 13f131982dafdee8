"""Processes below a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from autellix.runtime.process_tree import descendants, kill_all

# A child with a child of its own, which is stopped and so cannot end by itself.
PARENT = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
child.wait()
"""


def test_children_of_children_are_found_and_end_even_when_they_are_stopped() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    found = descendants([os.getpid()])
    assert {parent.pid, child} <= set(found)
    assert descendants([parent.pid]) == [child]
    kill_all([child])
    assert parent.wait(60) == 0
    assert parent.pid not in descendants([os.getpid()])


def test_one_that_has_ended_is_left_alone() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    kill_all([ended.pid])
    assert ended.returncode != -signal.SIGKILL
