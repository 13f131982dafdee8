"""How long tools took in earlier runs, kept in a file beside the journal.

A run begins with what the file holds, so that the engine knows from the first call on how long a
program is likely to be away. At its end it adds what it has seen itself to what the file holds by
then: other runs may have written meanwhile. The file can be deleted at any time; one that cannot be
read is left out, with one line of warning, and replaced by the next run that has seen a tool.
"""

from __future__ import annotations

import fcntl
import json
import logging
from pathlib import Path

from ..scheduler.tool_times import ToolTimes

log = logging.getLogger("autellix")


def tool_lessons_beside(journal: Path) -> Path:
    """Where the tool times of the runs with this journal lie."""
    return journal.parent / f"{journal.stem}.tools.json"


class KeptToolTimes(ToolTimes):
    """Tool times that know what has been added to them since they were read.

    Attributes:
        seen: what this run has added.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = ToolTimes()

    def add(self, name: str, seconds: float) -> None:
        """A tool has taken so long."""
        super().add(name, seconds)
        self.seen.add(name, seconds)


class ToolLessons:
    """What one run knows of tools, and adds to.

    Args:
        path: the file; there need be none.

    Attributes:
        times: what the run knows; it learns by being told.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.times = KeptToolTimes()
        self.times.add_all(_read(path).to_wire())
        self.times.seen = ToolTimes()

    def keep(self) -> None:
        """Add what this run has seen to the file; safe to call again.

        A file that cannot be written is said in a line, and what was seen is lost.
        """
        seen, self.times.seen = self.times.seen.to_wire(), ToolTimes()
        if not seen:
            return
        try:
            _add(self._path, seen)
        except OSError as cause:
            log.warning("How long this run's tools took was not kept: %s", cause)


def _read(path: Path) -> ToolTimes:
    try:
        return ToolTimes.from_wire(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        pass
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as cause:
        log.warning("How long tools took in earlier runs (%s) is left out: %s", path, cause)
    return ToolTimes()


def _add(path: Path, seen: dict[str, list[float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        times = _read(path)
        times.add_all(seen)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(times.to_wire(), separators=(",", ":")), encoding="utf-8")
        fresh.replace(path)
