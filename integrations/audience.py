"""Whoever listens to the recorder, at arm's length."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..runtime.protocols import CallEnd, CallStart, ProgramEnd, ProgramObserver

log = logging.getLogger("autellix")


class Audience:
    """Passes on to an observer; what it raises is reported, never passed back.

    Satisfies ``ProgramObserver``.
    """

    def __init__(self, observer: ProgramObserver) -> None:
        self._observer = observer
        self._dismissed = self._faulty = False

    def dismiss(self) -> None:
        """The run is over: threads that it left behind are heard no more."""
        self._dismissed = True

    def report(self, fault: Exception) -> None:
        """Log a fault: the first for people, every one at debug level."""
        if not self._faulty:
            self._faulty = True
            log.warning(
                "The recorder met a fault (%s: %s); programs go on, but their DAG may have gaps. "
                "Further faults are logged at debug level only.",
                type(fault).__name__,
                fault,
            )
        log.debug("Fault in the recorder", exc_info=fault)

    def program_started(self, program: str, name: str) -> None:
        """A program begins, or a further turn of it."""
        self._tell(self._observer.program_started, program, name)

    def program_ended(self, program: str, status: ProgramEnd, error: str | None) -> None:
        """A program's turn is over."""
        self._tell(self._observer.program_ended, program, status, error)

    def call_started(self, start: CallStart) -> None:
        """A call begins."""
        self._tell(self._observer.call_started, start)

    def call_ended(self, call: str, status: CallEnd, error: str | None) -> None:
        """A call is over."""
        self._tell(self._observer.call_ended, call, status, error)

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        if self._dismissed:
            return
        try:
            what(*args)
        except Exception as fault:
            self.report(fault)
