"""Ctrl-C and SIGTERM: the first stops cleanly, a second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Self

INTERRUPTED = 130


class Interrupts:
    """Handles the signals while it is entered; from the main thread only.

    The first raises KeyboardInterrupt in the main thread, or calls ``instead`` where that is set:
    an event loop must not be torn in the middle of a step.
    """

    def __init__(self) -> None:
        self.instead: Callable[[], object] | None = None
        self._seen = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: object) -> None:
        if self._seen:
            os._exit(INTERRUPTED)  # the engine's processes end with this one
        self._seen = True
        if self.instead is None:
            raise KeyboardInterrupt
        self.instead()
