"""Terminals for the tests of the views: an emulated one, and one that a real process runs on."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pyte
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent.parent
WITHIN_S = 30.0


class Emulated:
    """A console on an emulated terminal."""

    def __init__(self, width: int = 80, height: int = 24, **console: Any) -> None:
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.Stream(self.screen)
        self.raw = ""
        self.console = Console(
            file=_Into(self.feed), force_terminal=True, _environ={"TERM": "xterm"}, **console
        )
        self.resize(width, height)

    def feed(self, text: str) -> None:
        """What is written to the terminal; its line discipline adds the returns."""
        self.raw += text
        self._stream.feed(text.replace("\n", "\r\n"))

    def resize(self, width: int, height: int) -> None:
        """The terminal has another size."""
        self.screen.resize(height, width)
        self.console.size = (width, height)  # type: ignore[assignment]

    @property
    def lines(self) -> list[str]:
        """What can be seen."""
        return [line.rstrip() for line in self.screen.display]


class _Into(io.StringIO):
    def __init__(self, feed: Any) -> None:
        super().__init__()
        self._feed = feed

    def write(self, text: str) -> int:
        self._feed(text)
        return len(text)


def _with_ctrl_c() -> None:
    """What a shell starts in the background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Process:
    """A process on a terminal of its own, seen through an emulated one."""

    def __init__(self, code: str, *, width: int = 80, height: int = 24, **environment: str) -> None:
        self.screen = pyte.HistoryScreen(width, height, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self.child = pexpect.spawn(
            sys.executable,
            ["-c", code],
            cwd=str(ROOT),
            env={**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment},
            dimensions=(height, width),
            timeout=WITHIN_S,
            preexec_fn=_with_ctrl_c,
        )

    def until(self, said: str) -> None:
        """Wait until something can be seen on the screen."""
        self.until_it_holds(lambda: said in self.text, said)

    def until_it_holds(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds of what can be seen."""
        while not holds():
            try:
                self._stream.feed(self.child.read_nonblocking(65536, timeout=WITHIN_S))
            except pexpect.EOF:
                assert holds(), self.text
            except pexpect.TIMEOUT:
                raise AssertionError(f"{what!r} was not shown:\n{self.text}") from None

    def to_the_end(self) -> int | None:
        """Read until it has ended; its exit code, or the signal that ended it, negative."""
        last = time.monotonic() + 2 * WITHIN_S  # a view that is drawn for ever is no progress
        while True:
            assert time.monotonic() < last, f"it does not end:\n{self.text}"
            try:
                self._stream.feed(self.child.read_nonblocking(65536, timeout=WITHIN_S))
            except pexpect.EOF:
                break
        self.child.close()
        code = self.child.exitstatus
        return code if code is not None else -(self.child.signalstatus or 0)

    def resize(self, width: int, height: int) -> None:
        """The terminal has another size."""
        self.child.setwinsize(height, width)
        self.screen.resize(height, width)

    @property
    def lines(self) -> list[str]:
        """What can be seen."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    @property
    def region(self) -> Any:
        """The scrolling region; None for all of the screen."""
        return self.screen.margins
