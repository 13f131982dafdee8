"""Where a view is painted: the lower part of a terminal that the program writes to, or all of it.

The lower part lies outside the terminal's scrolling region. So whatever the program and its
children print, prompts and progress bars of their own included, scrolls above it by the terminal's
own means: it passes through nothing of ours, and the scrollback holds it as ever.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator, Sequence
from typing import Protocol

from rich.console import Console

from .live_guard import Guard
from .live_lines import Line, Picture
from .notation import ascii_text

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_NO_REGION = "\x1b[r"
_CLEAR_BELOW = "\x1b[J"
# Terminals that know it show what is between the two at once; others ignore it.
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"
_BLOCKED_S = 1.0
_LEAST_PART = 8  # lines that are worth more than one

LEAVE_LOWER_PART = f"{_SAVE}{_NO_REGION}{_RESTORE}{_CLEAR_BELOW}"
_ENTER_FULL, LEAVE_FULL = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


class Screen(Protocol):
    """A place for pictures."""

    @property
    def size(self) -> tuple[int, int]:
        """Cells and lines that a picture may have now."""
        ...

    def begin(self) -> None:
        """Take the place."""
        ...

    def paint(self, picture: Picture) -> None:
        """Show a picture of the present size."""
        ...

    def end(self) -> None:
        """Give the place back as it was found; safe to call twice."""
        ...


class _Terminal:
    """Ways to a console's terminal: its size, and writes that nobody else's come between."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._ascii = console.options.ascii_only
        self._fd: int | None = None
        with contextlib.suppress(OSError, AttributeError, ValueError):
            fd = console.file.fileno()
            self._fd = fd if os.isatty(fd) else None

    @property
    def fd(self) -> int | None:
        """File descriptor of the terminal; None where the console is no real one."""
        return self._fd

    @property
    def is_ours(self) -> bool:
        """Whether this process is in the terminal's foreground."""
        if self._fd is None:
            return True
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return True  # a terminal that controls no process

    @property
    def size(self) -> tuple[int, int]:
        """Cells and lines."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                cells, lines = os.get_terminal_size(self._fd)
                if cells and lines:
                    return cells, lines
        return self.console.size.width, self.console.size.height

    def write(self, text: str) -> None:
        """Write all of it in one go."""
        if self._fd is None:
            self.console.file.write(text)
            self.console.file.flush()
            return
        rest = text.encode(self.console.encoding, "replace")
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # the program has made its standard streams non-blocking
                select.select([], [self._fd], [], _BLOCKED_S)

    def frame(self, lines: Sequence[Line], width: int, top: int) -> str:
        """What paints lines from a row (counted from 1) downwards.

        Lines are filled up, so that they cover what was there: to clear it first would flicker.
        """
        shown = Picture([line.cut(width).pad(width) for line in lines])
        with self.console.capture() as capture:
            self.console.print(shown, end="", soft_wrap=True)
        texts = capture.get().split("\n")[: len(lines)]
        if self._ascii:
            texts = [ascii_text(text) for text in texts]
        rows = (f"\x1b[{top + number};1H{text}" for number, text in enumerate(texts))
        return f"{_BEGIN_FRAME}{_SAVE}{''.join(rows)}{_RESTORE}{_END_FRAME}"


class LowerPart:
    """The last lines of the terminal.

    Args:
        console: the terminal; the program may write to it at any time.
        most: lines at most; None leaves a sixth of the terminal, and 4 lines, to the program, and
            takes a single one where too few are left for a picture.
    """

    def __init__(self, console: Console, most: int | None = None) -> None:
        self._terminal = _Terminal(console)
        self._most = most
        self._held: tuple[int, int, int] | None = None
        self._guard: Guard | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Cells and lines that a picture may have now; no line where the terminal is too small."""
        cells, lines = self._terminal.size
        most = lines - max(4, lines // 6) if self._most is None else self._most
        return cells, max(0, min(most if self._most or most >= _LEAST_PART else 1, lines - 2))

    def begin(self) -> None:
        """Take the lines below the cursor's, with the first picture.

        What is on the screen moves up as far as needed. In the background nothing is shown.
        """
        if self._terminal.fd is not None:
            self._guard = Guard(self._terminal.fd, LEAVE_LOWER_PART)

    def paint(self, picture: Picture) -> None:
        """Show a picture; the place is taken anew where the terminal's size has changed."""
        if not self._terminal.is_ours:
            self._held = None
            return
        cells, height = self.size
        if self._held != (cells, self._terminal.size[1], height):
            self._settle()
        lines = picture.lines[:height]
        if lines:
            top = self._terminal.size[1] - height + 1
            self._terminal.write(self._terminal.frame(lines, cells, top))

    def end(self) -> None:
        """Give the lines back, empty."""
        if self._held is not None:
            self._held = None
            self._terminal.write(LEAVE_LOWER_PART)
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None

    def _settle(self) -> None:
        """Lift the region, clear what is below the cursor, make room there, set the region.

        The cursor stands among the program's lines, so all of the view is below it, wherever a
        change of size has moved it.
        """
        cells, height = self.size
        rows = self._terminal.size[1]
        self._held = (cells, rows, height)
        if not height:
            self._terminal.write(LEAVE_LOWER_PART)
            return
        self._terminal.write(
            f"{LEAVE_LOWER_PART}{_down(height)}\x1b[{height}A"
            f"{_SAVE}\x1b[1;{rows - height}r{_RESTORE}"
        )


class WholeScreen:
    """All of the terminal; what was on it comes back at the end."""

    def __init__(self, console: Console) -> None:
        self._terminal = _Terminal(console)
        self._begun = False
        self._cells = 0
        self._guard: Guard | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Cells and lines of the terminal."""
        return self._terminal.size

    def begin(self) -> None:
        """Take the screen."""
        if self._terminal.fd is not None:
            self._guard = Guard(self._terminal.fd, LEAVE_FULL)
        self._begun = True
        self._terminal.write(_ENTER_FULL)

    def paint(self, picture: Picture) -> None:
        """Show a picture."""
        cells, height = self.size
        self._terminal.write(self._terminal.frame(picture.lines[:height], cells, 1))

    def end(self) -> None:
        """Bring back what was there."""
        if self._begun:
            self._begun = False
            self._terminal.write(LEAVE_FULL)
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None


def _down(lines: int) -> str:
    """The cursor down by so many lines in its column; the screen scrolls at its end."""
    return "\x1bD" * lines


@contextlib.contextmanager
def taken(screen: Screen) -> Iterator[Screen]:
    """A screen for as long as the block lasts."""
    screen.begin()
    try:
        yield screen
    finally:
        screen.end()
