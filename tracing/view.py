"""How a view gets to people: a thread asks for snapshots and shows them on a terminal, or as lines.

stdout stays the program's own: on a terminal what it prints scrolls by above the view, elsewhere
the view is a plain line on stderr now and then.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from threading import Event, Lock, Thread, current_thread
from typing import Protocol, Self

from rich.console import Console
from rich.text import Text

from .live_lines import Line, Picture
from .live_screen import LowerPart, Screen
from .live_signals import watch_terminal
from .notation import ascii_text
from .progress import progress_text
from .snapshot import ProgramGraph, RunSnapshot

_log = logging.getLogger("autellix")

PLAIN_EVERY_S = 10.0
REFRESH_S = 1.0
_LOOK_S = 0.5


class RunSource(Protocol):
    """Where a view learns of a run; asked from the view's own thread."""

    def snapshot(self) -> RunSnapshot:
        """The run at this moment."""
        ...

    def graph(self, program: str) -> ProgramGraph | None:
        """The DAG of a program as of the last snapshot; None where it is not known."""
        ...


class RunOver(Exception):
    """What a source raises when its run has ended: there is nothing more to show."""


class View(Protocol):
    """Something that shows a run while it lasts."""

    def start(self) -> None:
        """Begin to show; called once."""
        ...

    def stop(self) -> None:
        """Take the view off the terminal; safe to call twice."""
        ...


def is_drawable(console: Console) -> bool:
    """Whether a console is a terminal that pictures can be drawn on.

    What variables such as FORCE_COLOR say of a file does not make it one.
    """
    if console.is_dumb_terminal:
        return False
    try:
        return os.isatty(console.file.fileno())
    except (OSError, ValueError, AttributeError):
        return console.is_terminal  # not a file of the system at all


class TerminalView:
    """A view of one picture after the other; plain lines where there is no terminal.

    Attributes:
        is_over: whether the run that it shows has ended.
    """

    def __init__(
        self,
        source: RunSource,
        *,
        console: Console | None = None,
        screen: Screen | None = None,
        refresh_s: float = REFRESH_S,
        plain_every_s: float = PLAIN_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the view; nothing is shown before :meth:`start`.

        Args:
            source: gives the run's present state.
            console: where to show it; stderr by default.
            screen: the place on it; the lower part by default.
            refresh_s: time between two pictures on a terminal, seconds.
            plain_every_s: least time between two lines where there is no terminal, seconds.
            clock: monotonic time, seconds.
        """
        self._source = source
        self._console = console or Console(stderr=True)
        self._plain = not is_drawable(self._console)
        self._screen: Screen = screen or self._place()
        self._ascii = self._console.options.ascii_only
        self._refresh_s = refresh_s
        self._plain_every_s = plain_every_s
        self._clock = clock
        self.is_over = False
        self._printed_s: float | None = None
        self._drawing = Lock()
        self._on_screen = False
        self._ended = Event()
        self._wake = Event()
        self._stop_watching: Callable[[], None] = _nothing
        self._thread = Thread(target=self._loop, name="autellix-view", daemon=True)

    def _place(self) -> Screen:
        """Where on the terminal the view is."""
        return LowerPart(self._console, most=1)

    def picture(self, width: int, height: int) -> Picture:
        """What to show now, in ``height`` lines of ``width`` cells; here the run in one line."""
        text = progress_text(self._source.snapshot(), width)
        return Picture([Line((text.plain, ""))])

    def start(self) -> None:
        """Begin to show."""
        if not self._plain:
            self.show()
            self._stop_watching = watch_terminal(self)
        self._thread.start()

    def stop(self) -> None:
        """Take the view off the terminal."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not current_thread():
            self._thread.join()
        self._stop_watching()
        self.hide()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def show(self) -> None:
        """Take the place on the terminal."""
        with self._drawing:
            if not self._on_screen:
                self._on_screen = True
                self._screen.begin()

    def hide(self) -> None:
        """Give it back, for a while or for good."""
        with self._drawing:
            if self._on_screen:
                self._on_screen = False
                self._screen.end()

    def wake(self) -> None:
        """Draw soon, whatever the time."""
        self._wake.set()

    def refresh(self) -> None:
        """Draw once, now; without a terminal at most one line per ``plain_every_s``."""
        with self._drawing:
            if self._on_screen:
                self._screen.paint(self.picture(*self._screen.size))
            elif self._plain:
                self._print_line()

    def wait(self) -> None:
        """Wait until the view has ended, by itself or by a key."""
        while not self._ended.wait(_LOOK_S):  # a wait without end would let no signal through
            pass

    def be_plain(self) -> None:
        """Leave the terminal for good; plain lines from now on."""
        self.hide()
        self._plain = True
        self._printed_s = self._clock()

    def _print_line(self) -> None:
        now = self._clock()
        if self._printed_s is not None and now - self._printed_s < self._plain_every_s:
            return
        snapshot = self._source.snapshot()
        if not snapshot.calls_done and snapshot.elapsed_s < self._plain_every_s:
            return  # "0 calls, 0.0 s" tells nobody anything
        self._printed_s = now
        line = progress_text(snapshot, sys.maxsize).plain
        text = ascii_text(line) if self._ascii else line
        self._console.print(Text(text), soft_wrap=True, highlight=False)

    def _loop(self) -> None:
        reported = False
        while not self._ended.is_set():
            self._wake.clear()
            try:
                self.refresh()
            except RunOver:
                self.is_over = True
                self._ended.set()
            except Exception:
                # A view must never end the run it shows.
                if not reported:
                    _log.warning("the view of the run could not be drawn", exc_info=True)
                reported = True
            self._wake.wait(self._plain_every_s if self._plain else self._refresh_s)


class ProgressView(TerminalView):
    """The one-line progress of a run."""


def _nothing() -> None:
    pass
