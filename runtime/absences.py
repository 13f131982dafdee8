"""When programs are away from the engine: in a tool, or waiting for a person.

A program is away while tools of it are open and no LLM call is. The engine is told when that
begins, with what is known of how long it takes: of several tools at once the longest counts. It is
told again when the last of them has ended, or the person has answered, so that it may get ready for
the program's next call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..scheduler.kv_home import PERSON_S
from ..scheduler.tool_times import ToolTimes
from .protocols import CallStart


@dataclass(slots=True)
class _Open:
    """What a program has open: how many LLM calls, and tools by id with their names."""

    calls: int = 0
    tools: dict[str, str] = field(default_factory=dict)


class Absences:
    """Watches calls and tools, from any thread.

    Args:
        tell: is told of a program that is away from now on, and of quantiles of how long.
        returns: is told of a program that is about to go on.
        tool_times: how long tools have taken before; None for nothing yet.
        now: a clock, seconds.

    Attributes:
        tool_times: the same, and what this run has seen of tools since.
    """

    def __init__(
        self,
        tell: Callable[[str, Sequence[float]], None],
        returns: Callable[[str], None] | None = None,
        tool_times: ToolTimes | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tool_times = ToolTimes() if tool_times is None else tool_times
        self._tell = tell
        self._returns = returns
        self._now = now
        self._lock = threading.Lock()
        self._programs: dict[str, _Open] = {}
        self._started: dict[str, tuple[str, str, float]] = {}
        self._interrupted: set[str] = set()

    def call_started(self, start: CallStart) -> None:
        """An LLM call or a tool begins."""
        with self._lock:
            program = self._programs.setdefault(start.program, _Open())
            self._started[start.call] = (start.program, start.kind, self._now())
            if start.kind == "llm":
                program.calls += 1
                return
            program.tools[start.call] = start.name
            absence_s = self._absence_s(program)
        if absence_s is not None:
            self._tell(start.program, absence_s)

    def call_ended(self, call: str, *, done: bool) -> None:
        """It is over; the time of a tool that is not done says nothing."""
        with self._lock:
            name, kind, began_s = self._started.pop(call, ("", "", 0.0))
            program = self._programs.get(name)
            if program is None:
                return
            if kind == "llm":
                program.calls -= 1
            else:
                tool = program.tools.pop(call)
                if done:
                    self.tool_times.add(tool, self._now() - began_s)
            absence_s = self._absence_s(program) if kind == "llm" else None
            over = not program.calls and not program.tools
            if over:
                del self._programs[name]
        if absence_s is not None:
            self._tell(name, absence_s)
        elif over and kind != "llm" and self._returns is not None:
            self._returns(name)

    def interrupted(self, program: str) -> None:
        """The program has stopped for a person."""
        with self._lock:
            self._interrupted.add(program)
        self._tell(program, PERSON_S)

    def goes_on(self, program: str) -> None:
        """A run of the program begins: if it had stopped for a person, that one has answered."""
        with self._lock:
            answered = program in self._interrupted
            self._interrupted.discard(program)
        if answered and self._returns is not None:
            self._returns(program)

    def forget(self, program: str) -> None:
        """The program is over."""
        with self._lock:
            self._interrupted.discard(program)

    def _absence_s(self, program: _Open) -> Sequence[float] | None:
        """How long the program is away from now on; None where it is not."""
        if program.calls or not program.tools:
            return None
        known = [self.tool_times.deciles_s(name) for name in set(program.tools.values())]
        if not all(known):
            return ()
        return tuple(max(column) for column in zip(*known, strict=True))
