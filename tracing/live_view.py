"""The live view: programs, queues and one program's DAG, redrawn as the run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from .live import live_picture
from .live_keys import Keys
from .live_lines import Picture
from .live_rates import Rates
from .live_screen import LowerPart, Screen, WholeScreen
from .live_state import Choice
from .snapshot import ProgramGraph, RunSnapshot
from .view import PLAIN_EVERY_S, REFRESH_S, RunSource, TerminalView

_LEAST_LINES = 3


class LiveView(TerminalView):
    """The view of a run beside the run itself, in the lower part of its terminal.

    ``q`` closes it; the run goes on with plain lines.
    """

    quit_word = "close"
    _shares_terminal = True

    def __init__(
        self,
        source: RunSource,
        *,
        console: Console | None = None,
        refresh_s: float = REFRESH_S,
        plain_every_s: float = PLAIN_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            source,
            console=console,
            refresh_s=refresh_s,
            plain_every_s=plain_every_s,
            clock=clock,
        )
        self.choice = Choice()
        self._rates = Rates()
        self._keys = Keys(self._pressed, lend=self._shares_terminal)
        self._has_keys = False
        self._last: tuple[RunSnapshot, ProgramGraph | None] | None = None

    def _place(self) -> Screen:
        return LowerPart(self._console)

    def picture(self, width: int, height: int) -> Picture:
        """The picture of this moment; while it is paused, that of an earlier one."""
        if self._last is None or not self.choice.paused:
            snapshot = self._source.snapshot()
            self._rates.take(snapshot)
        else:
            snapshot = self._last[0]
        if height < _LEAST_LINES:  # the totals alone
            self._last = (snapshot, None)
            return Picture(live_picture(snapshot, width, 2, rates=self._rates).lines[-height:])
        graph = self._graph(snapshot)
        self._last = (snapshot, graph)
        return live_picture(
            snapshot,
            width,
            height,
            graph=graph,
            choice=self.choice,
            rates=self._rates,
            quit_word=self.quit_word if self._has_keys else "",
        )

    def _graph(self, snapshot: RunSnapshot) -> ProgramGraph | None:
        program = self.choice.focus(snapshot.programs, snapshot.elapsed_s)
        if program is None:
            return None
        shown = self._last[1] if self._last is not None else None
        if self.choice.paused and shown is not None and shown.program == program:
            return shown
        return self._source.graph(program)

    @property
    def last(self) -> RunSnapshot | None:
        """The snapshot that was shown last."""
        return self._last[0] if self._last is not None else None

    def show(self) -> None:
        """Take the place on the terminal, and its keys."""
        super().show()
        self._has_keys = self._keys.begin()

    def hide(self) -> None:
        """Give both back."""
        self._keys.end()
        super().hide()

    def _pressed(self, key: str) -> None:
        if key == "q":
            self.quit()
        else:
            rows = self._last[0].programs if self._last else ()
            self.choice.press(key, rows)
        self.wake()

    def quit(self) -> None:
        """What ``q`` does."""
        self.be_plain()


class TopView(LiveView):
    """The view of a run of another process, on the whole screen; ``q`` ends it."""

    quit_word = "quit"
    _shares_terminal = False

    def _place(self) -> Screen:
        return WholeScreen(self._console)

    def quit(self) -> None:
        """End the view."""
        self._ended.set()
        self.wake()
