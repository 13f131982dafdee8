"""What the person who watches has chosen: the order, the selected program, whether time stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .snapshot import ProgramRow

_HOLD_S = 5.0  # how long a program that has ended stays in the picture unasked

_ENDED = {"failed": 1, "interrupted": 2, "cancelled": 3, "done": 4}


def _interest(row: ProgramRow) -> tuple[int, float]:
    """What runs comes before what ended, the longest first."""
    return (0 if row.is_live else _ENDED[row.state]), -row.response_s


ORDERS: dict[str, Callable[[ProgramRow], tuple]] = {
    "interest": _interest,
    "wait": lambda row: (not row.is_live, -row.wait_s),
    "service": lambda row: (not row.is_live, -row.attained_s),
    "level": lambda row: (not row.is_live, row.level or 99, -row.response_s),
    "tokens/s": lambda row: (not row.is_live, -(row.tokens_per_s or 0.0)),
    "name": lambda row: (row.name, len(row.id), row.id),
}


class Choice:
    """Order, selection and pause; changed by keys, read when the picture is made.

    Attributes:
        order: name of one of ``ORDERS``.
        selected: id of the program that was selected; None lets the view choose.
        paused: whether the picture stands still.
        helped: whether the keys are explained.
    """

    def __init__(self) -> None:
        self.order = "interest"
        self.selected: str | None = None
        self.paused = False
        self.helped = False
        self._focus: str | None = None
        self._ended_s: float | None = None

    def ordered(self, rows: Sequence[ProgramRow]) -> list[ProgramRow]:
        """The programs in the chosen order."""
        return sorted(rows, key=ORDERS[self.order])

    def focus(self, rows: Sequence[ProgramRow], now_s: float) -> str | None:
        """The program whose DAG is shown.

        Unless one is selected it is the live one with the most calls; it stays until it ends and a
        little longer, so that the picture does not jump.

        Args:
            rows: the programs.
            now_s: seconds since the run's start.
        """
        by_id = {row.id: row for row in rows}
        if self.selected in by_id:
            return self.selected
        held = by_id.get(self._focus) if self._focus else None
        if held is not None and held.is_live:
            self._ended_s = None
            return held.id
        if held is not None:
            self._ended_s = now_s if self._ended_s is None else self._ended_s
            if now_s - self._ended_s < _HOLD_S:
                return held.id
        live = [row for row in rows if row.is_live]
        if not live:
            return held.id if held else max(rows, key=_size).id if rows else None
        self._focus, self._ended_s = max(live, key=_size).id, None
        return self._focus

    def press(self, key: str, rows: Sequence[ProgramRow]) -> None:
        """A key was pressed; one without a meaning does nothing.

        Args:
            key: a character, or "up", "down", "home", "end", "escape".
            rows: the programs as shown last.
        """
        if key in ("up", "k", "down", "j", "home", "g", "end", "G"):
            self._move(key, self.ordered(rows))
        elif key == "escape":
            self.selected, self.helped = None, False
        elif key in ("s", "S"):
            names = list(ORDERS)
            self.order = names[(names.index(self.order) + (1 if key == "s" else -1)) % len(names)]
        elif key in ("p", " "):
            self.paused = not self.paused
        elif key in ("?", "h"):
            self.helped = not self.helped

    def _move(self, key: str, rows: Sequence[ProgramRow]) -> None:
        if not rows:
            return
        ids = [row.id for row in rows]
        at = ids.index(self.selected) if self.selected in ids else None
        if key in ("home", "g"):
            at = 0
        elif key in ("end", "G"):
            at = len(ids) - 1
        elif at is None:
            # The first step selects what is shown already.
            at = ids.index(self._focus) if self._focus in ids else 0
        else:
            at += -1 if key in ("up", "k") else 1
        self.selected = ids[max(0, min(at, len(ids) - 1))]


def _size(row: ProgramRow) -> tuple[int, float]:
    return row.calls_done + row.calls_running + row.calls_waiting + row.tools, row.response_s
