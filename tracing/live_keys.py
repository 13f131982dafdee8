"""Keys of the person who watches, from a terminal whose input belongs to the program.

Keys are read one by one and without echo only while nobody else reads the terminal. Whoever does is
given it back as it was, and what is typed then is theirs:

- ``input()`` and reads of ``sys.stdin`` borrow it (:mod:`.live_stdin`);
- a child process that has the terminal as its input holds it until it ends;
- whoever sets the terminal's modes (an editor, ``getpass``) holds it until they are set back;
- a program that takes ``sys.stdin``'s file descriptor to read by itself has it for good;
- in the background nobody reads.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any

from .live_stdin import lend_stdin

_LOOK_S = 0.25
_MOST = 64  # bytes at a time
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
    b"\x1b": "escape",
}


class Keys:
    """Reads keys in a thread of its own and tells of each.

    Args:
        on_key: called with a character, or "up", "down", "home", "end", "escape".
        lend: whether the program may read the same terminal; False where it is ours alone.
    """

    def __init__(self, on_key: Callable[[str], None], *, lend: bool = True) -> None:
        self._on_key = on_key
        self._lend = lend
        self._fd: int | None = None
        self._opened = False
        self._lock = RLock()
        self._borrowers = 0
        self._ours: list[Any] | None = None  # the terminal's modes while it is ours
        self._theirs: list[Any] | None = None  # as they were before
        self._ended = Event()
        self._thread: Thread | None = None
        self._undo = contextlib.ExitStack()

    def begin(self) -> bool:
        """Start to read; False where there is no terminal to read from."""
        self._fd, self._opened = _terminal()
        if self._fd is None:
            return False
        if self._lend and not self._opened:
            self._undo.enter_context(lend_stdin(self.lent, self.give_up))
        self._ended.clear()
        self._thread = Thread(target=self._loop, name="autellix-keys", daemon=True)
        self._thread.start()
        return True

    def end(self) -> None:
        """Read no more; the terminal gets back its modes. Safe to call twice."""
        self._ended.set()
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # ended by a key, in that thread itself
                self._thread.join()
        self._undo.close()
        with self._lock:
            self._give_back()
            if self._opened and self._fd is not None:
                os.close(self._fd)
            self._fd, self._opened = None, False

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Inside, the terminal's input is the program's."""
        with self._lock:
            self._borrowers += 1
            self._give_back()
        try:
            yield
        finally:
            with self._lock:
                self._borrowers -= 1

    def give_up(self) -> None:
        """The program reads by itself from now on: no more keys."""
        self._ended.set()
        with self._lock:
            self._give_back()

    # ── the thread ───────────────────────────────────────────────────────────────────────────

    def _loop(self) -> None:
        while not self._ended.is_set():
            fd = self._fd
            if fd is None:
                return
            if not self._take(fd):
                self._ended.wait(_LOOK_S)
                continue
            with contextlib.suppress(OSError, ValueError):
                select.select([fd], [], [], _LOOK_S)
            for key in self._read(fd):
                self._on_key(key)

    def _take(self, fd: int) -> bool:
        """Whether the terminal is ours to read from now; sets its modes where it has become so."""
        with self._lock:
            try:
                if self._borrowers or self._ended.is_set() or os.tcgetpgrp(fd) != os.getpgrp():
                    return False
                if self._lend and _held_by_child(fd):
                    self._give_back()
                    return False
                modes = termios.tcgetattr(fd)
                if self._ours is not None:
                    return modes == self._ours
                self._theirs = modes
                modes = termios.tcgetattr(fd)
                modes[3] &= ~(termios.ICANON | termios.ECHO)
                modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
                termios.tcsetattr(fd, termios.TCSADRAIN, modes)
                self._ours = termios.tcgetattr(fd)
            except (OSError, termios.error):
                return False
            return True

    def _read(self, fd: int) -> list[str]:
        with self._lock:
            try:
                if self._ours is None or termios.tcgetattr(fd) != self._ours:
                    return []
                if not select.select([fd], [], [], 0)[0]:
                    return []
                pressed = os.read(fd, _MOST)
            except (OSError, termios.error):
                return []
        if not pressed:  # the terminal is gone
            self._ended.set()
        return list(_keys(pressed))

    def _give_back(self) -> None:
        """Set the modes that the terminal had, unless somebody has set others meanwhile."""
        if self._fd is None or self._ours is None or self._theirs is None:
            return
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(self._fd) == os.getpgrp():
                if termios.tcgetattr(self._fd) == self._ours:
                    termios.tcsetattr(self._fd, termios.TCSADRAIN, self._theirs)
                self._ours = None


def _terminal() -> tuple[int | None, bool]:
    """The terminal that people type at, and whether it was opened for this."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        if os.isatty(sys.stdin.fileno()):
            return sys.stdin.fileno(), False
    try:
        return os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY), True
    except OSError:
        return None, False


def _held_by_child(fd: int) -> bool:
    """Whether a child process has the terminal as its standard input."""
    terminal = os.ttyname(fd)
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                with contextlib.suppress(OSError):
                    if str(Path(f"/proc/{child}/fd/0").readlink()) == terminal:
                        return True
    return False


def _keys(pressed: bytes) -> Iterator[str]:
    """What was pressed: known sequences by name, characters as they are, other sequences not."""
    while pressed:
        for sequence, name in _SEQUENCES.items():
            if pressed.startswith(sequence) and (name != "escape" or pressed == sequence):
                yield name
                pressed = pressed[len(sequence) :]
                break
        else:
            if pressed.startswith(b"\x1b"):
                return
            character = pressed[:1].decode("ascii", "replace")
            pressed = pressed[1:]
            if character.isprintable():
                yield character
