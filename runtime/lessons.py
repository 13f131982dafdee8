"""What runs have learned of programs by name, kept in a file beside the journal.

1. A run begins with what the file holds (under a policy that remembers) and learns on in memory.
2. At its end it adds what it has learned itself to what the file holds by then: other runs may have
   written meanwhile. A lock keeps two from doing so at once, and the file is replaced whole.
3. Old lessons fade: a name counts for at most 1,000 programs.
4. How work is counted depends on the engine's seats, so the file holds a history for each way.
5. The file can be deleted at any time. One that cannot be read is left out, with one line of
   warning, and replaced by the next run that has learned something.
"""

from __future__ import annotations

import fcntl
import json
import logging
from copy import deepcopy
from pathlib import Path

from ..scheduler.life_table import share_of_prompts
from ..scheduler.service_history import ServiceHistory

log = logging.getLogger("autellix")

_MOST_HISTORIES = 8


def lessons_beside(journal: Path) -> Path:
    """Where the lessons of the runs with this journal lie."""
    return journal.with_suffix(".lessons.json")


class Lessons:
    """What one run knows of programs, and adds to.

    Args:
        path: the file; there need be none.
        recall: whether the run begins with what the file holds.
        seats: of the run's engine; 0 where that is not known.

    Attributes:
        history: what the run knows; it learns by being told.
    """

    def __init__(self, path: Path, *, recall: bool, seats: int = 0) -> None:
        self._path = path
        share = share_of_prompts(seats)
        held = _read(path) if recall else {}
        self._recalled = held.get(share) or ServiceHistory(share)
        self.history = deepcopy(self._recalled)

    def keep(self) -> None:
        """Add what this run has learned to the file; safe to call again.

        A file that cannot be written is said in a line, and what was learned is lost.
        """
        learned = self.history.since(self._recalled)
        if not learned.everything.told:
            return
        self._recalled = deepcopy(self.history)
        try:
            _add(self._path, learned)
        except OSError as cause:
            log.warning("What this run learned of its programs was not kept: %s", cause)


def _read(path: Path) -> dict[float, ServiceHistory]:
    """The histories of the file by what a token of a prompt counts in them, the newest last."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        wires = document.get("histories") if isinstance(document, dict) else None
        if not isinstance(wires, list):
            raise ValueError("not a file of lessons")
        histories = [ServiceHistory.from_wire(wire) for wire in wires]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as cause:
        log.warning("What earlier runs learned of programs (%s) is left out: %s", path, cause)
        return {}
    return {history.prompt_share: history for history in histories}


def _add(path: Path, learned: ServiceHistory) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        histories = _read(path)
        share = learned.prompt_share
        history = histories.pop(share, None) or ServiceHistory(share)
        history.add(learned)
        history.fade()
        kept = [*histories.values(), history][-_MOST_HISTORIES:]
        wires = [history.to_wire() for history in kept]
        fresh = path.with_suffix(".new")
        text = json.dumps({"histories": wires}, separators=(",", ":"))
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
