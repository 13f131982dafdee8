"""How a view gets to the terminal: a thread asks for a snapshot and draws it on stderr.

stdout stays the program's own. On a terminal the view is redrawn in place and what the program
prints scrolls by above it; elsewhere it becomes a plain progress line now and then.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.text import Text

from .notation import ascii_text
from .progress import progress_text
from .snapshot import RunSnapshot

_log = logging.getLogger("autellix")

PLAIN_EVERY_S = 10.0


class View(Protocol):
    """Something that shows a run while it lasts."""

    def start(self) -> None:
        """Begin to show; called once."""
        ...

    def stop(self) -> None:
        """Take the view off the terminal; safe to call twice."""
        ...


class TerminalView:
    """A view that draws ``render(snapshot, width, height)`` at a steady rate.

    The terminal's size is asked at each drawing, so a resize is followed.
    """

    def __init__(
        self,
        source: Callable[[], RunSnapshot],
        *,
        console: Console | None = None,
        refresh_per_second: float = 1.0,
        plain_every_s: float = PLAIN_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the view; nothing is shown before :meth:`start`.

        Args:
            source: gives the run's present state; called from the view's own thread.
            console: where to draw; stderr by default.
            refresh_per_second: drawings per second on a terminal.
            plain_every_s: least time between two lines where there is no terminal, seconds.
            clock: monotonic time, seconds.
        """
        self._source = source
        self._console = console or Console(stderr=True)
        self._plain = not self._console.is_terminal or self._console.is_dumb_terminal
        self._ascii = self._console.options.ascii_only
        self._every_s = plain_every_s if self._plain else 1.0 / refresh_per_second
        self._clock = clock
        self._drawn_s: float | None = None
        self._drawing = Lock()
        self._ended = Event()
        self._thread = Thread(target=self._loop, name="autellix-view", daemon=True)
        self._live: Live | None = None

    def render(self, snapshot: RunSnapshot, width: int, height: int) -> RenderableType:
        """The picture of a snapshot in ``width`` x ``height`` cells; the progress line here."""
        return progress_text(snapshot, width)

    def start(self) -> None:
        """Begin to show."""
        if not self._plain:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                # A redirected stdout belongs to its file; only one that shares the terminal with
                # the view must go through it.
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start()
        self._thread.start()

    def stop(self) -> None:
        """Take the view off the terminal."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def refresh(self) -> None:
        """Draw once, now; without a terminal at most one line per ``plain_every_s``."""
        with self._drawing:
            if self._plain:
                self._print_line()
            elif self._live is not None:
                self._draw(self._live)

    def _print_line(self) -> None:
        now = self._clock()
        if self._drawn_s is not None and now - self._drawn_s < self._every_s:
            return
        snapshot = self._source()
        if not snapshot.calls_done and snapshot.elapsed_s < self._every_s:
            return  # "0 calls, 0.0 s" tells nobody anything
        self._drawn_s = now
        line = progress_text(snapshot, sys.maxsize).plain
        text = ascii_text(line) if self._ascii else line
        self._console.print(Text(text), soft_wrap=True, highlight=False)

    def _draw(self, live: Live) -> None:
        width, height = self._console.size
        # A few lines of the screen stay for what the program prints.
        picture = self.render(self._source(), width, height - height // 6)
        # Drawn to segments once: rich repeats the view after every line that the program prints.
        options = self._console.options.update(width=width, height=None)
        lines = self._console.render_lines(picture, options, pad=False, new_lines=True)
        parts = [part for line in lines for part in line]
        if self._ascii:
            parts = [Segment(ascii_text(part.text), part.style, part.control) for part in parts]
        live.update(Segments(parts), refresh=True)

    def _loop(self) -> None:
        reported = False
        while not self._ended.is_set():
            try:
                self.refresh()
            except Exception:
                # A view must never end the run it shows.
                if not reported:
                    _log.warning("the view of the run could not be drawn", exc_info=True)
                reported = True
            self._ended.wait(self._every_s)


class ProgressView(TerminalView):
    """The one-line progress of a run."""
