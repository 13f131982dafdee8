"""Processes below a process, as the kernel knows them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def descendants(pids: Iterable[int]) -> list[int]:
    """Ids of the living children of these processes, their children, and so on.

    None where the kernel cannot be asked: there is no ``/proc``, or no file can be opened.
    """
    todo = list(pids)
    found: list[int] = []
    children: dict[int, list[int]] = defaultdict(list)
    try:
        entries = list(_PROC.iterdir()) if todo else []
    except OSError:
        return found
    for entry in entries:
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children[parent].append(int(entry.name))
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def environment_of(pid: int) -> list[str]:
    """Variables with which a process was started, as ``NAME=VALUE``; none of one that is gone."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _parent(entry: Path) -> int | None:
    try:
        text = (entry / "stat").read_text()
    except OSError:
        return None  # it has ended meanwhile
    # The second field is the command in brackets, and may hold anything.
    return int(text.rpartition(")")[2].split()[1])


def kill_all(pids: Iterable[int]) -> None:
    """End these processes at once; those that have ended already are left alone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
