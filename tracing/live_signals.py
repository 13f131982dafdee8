"""Signals that concern a view on a terminal: its size changed, the process is suspended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from threading import current_thread, main_thread
from types import FrameType
from typing import Protocol


class OnTerminal(Protocol):
    """A view on a terminal."""

    def show(self) -> None:
        """Take the place on the terminal."""
        ...

    def hide(self) -> None:
        """Give it back for a while."""
        ...

    def wake(self) -> None:
        """Draw soon."""
        ...


def watch_terminal(view: OnTerminal) -> Callable[[], None]:
    """Have a view follow its terminal; outside of the main thread, where none can, it does not.

    Returns:
        What ends it.
    """
    if current_thread() is not main_thread():
        return _nothing
    before = {}

    def resized(number: int, frame: FrameType | None) -> None:
        view.wake()
        handler = before[signal.SIGWINCH]
        if callable(handler):
            handler(number, frame)

    def suspended(number: int, frame: FrameType | None) -> None:
        view.hide()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it goes on again.
        signal.signal(signal.SIGTSTP, suspended)
        view.show()
        view.wake()

    before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, resized)
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:  # else it is the program's own affair
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, suspended)

    def end() -> None:
        for number, handler in before.items():
            ours = signal.getsignal(number) in (resized, suspended)
            if ours and current_thread() is main_thread():
                signal.signal(number, handler)

    return end


def _nothing() -> None:
    pass
