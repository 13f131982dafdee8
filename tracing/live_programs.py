"""The table of programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .live_lines import Line, clean, fit
from .notation import STYLES, count_text, label, percent_text, seconds_text
from .snapshot import ProgramRow

_MARK = 2  # cells before the name
_LONGEST_NAME = 40
_GAP = 1
SELECTED = "reverse"
BLANK = "-"
_BRIEF = {"interrupted": "interr.", "cancelled": "cancel."}


@dataclass(frozen=True, slots=True)
class _Column:
    """One column: its head, width in cells, the least width of the table that shows it, its text.

    A negative ``from_width`` is the width from which on another column takes its place.
    """

    head: str
    width: int
    from_width: int
    text: Callable[[ProgramRow], str]
    style: str = ""
    left: bool = False


def _or_blank(count: int) -> str:
    return count_text(count) if count else BLANK


_COLUMNS = (
    _Column("state", 11, 112, lambda r: r.state, left=True),
    _Column("state", 7, -112, lambda r: _BRIEF.get(r.state, r.state), left=True),
    _Column("lv", 2, 0, lambda r: str(r.level or BLANK)),
    _Column("done", 4, 0, lambda r: _or_blank(r.calls_done)),
    _Column("run", 3, 0, lambda r: _or_blank(r.calls_running), "green"),
    _Column("que", 3, 0, lambda r: _or_blank(r.calls_waiting), "yellow"),
    _Column("tools", 5, 112, lambda r: _or_blank(r.tools)),
    _Column("tokens", 6, 112, lambda r: count_text(r.tokens)),
    _Column("tok/s", 5, 0, lambda r: _rate(r.tokens_per_s)),
    _Column("served", 6, 0, lambda r: seconds_text(r.attained_s)),
    _Column("path s", 6, 96, lambda r: seconds_text(r.critical_path_s)),
    _Column("path", 4, 0, lambda r: percent_text(r.path_share)),
    _Column("waited", 6, 0, lambda r: seconds_text(r.wait_s)),
    _Column("resp.", 6, 96, lambda r: seconds_text(r.response_s)),
)
_LEAST_WORDS = 15


def programs_lines(
    rows: Sequence[ProgramRow],
    width: int,
    height: int,
    *,
    focus: str | None = None,
    selected: bool = False,
    hidden: int = 0,
) -> list[Line]:
    """A line of heads and one for each program, in at most ``height`` lines of ``width`` cells.

    Args:
        rows: in the order in which they are shown.
        width, height: cells, lines.
        focus: id of the program whose DAG is shown; it is always among those shown.
        selected: whether a person has selected it.
        hidden: how many programs there are beside these.
    """
    columns = [c for c in _COLUMNS if width >= c.from_width and not 0 < -c.from_width <= width]
    fixed = sum(column.width + _GAP for column in columns)
    first, last = _window(rows, focus, height - 1, bool(hidden))
    shown = rows[first:last]
    names = [label(clean(row.name), clean(row.id), _LONGEST_NAME) for row in shown]
    room = max(6, width - _MARK - fixed - _GAP - _LEAST_WORDS)
    name_width = min(room, max([len("program"), *map(len, names)], default=0))
    words_width = width - _MARK - name_width - fixed - _GAP
    lines = [_heads(columns, name_width, words_width).cut(width)]
    for row in shown:
        mark = "▸ " if row.id == focus else "  "
        line = Line((mark, "bold"))
        name = label(clean(row.name), clean(row.id), name_width)
        line.add(fit(name, name_width), "bold" if row.is_live else "dim")
        for column in columns:
            text = column.text(row)
            style = column.style if text != BLANK and row.is_live else "dim"
            style = STYLES[row.state] if column.head == "state" else style
            line.add(" ").add(fit(text, column.width, right=not column.left), style)
        if words_width > 0:
            line.add("  ").add(fit(clean(row.waits_for), max(0, words_width - 1)))
        if selected and row.id == focus:
            line = Line((line.cut(width).text, SELECTED))
        lines.append(line.cut(width))
    left_out = [*rows[:first], *rows[last:]]
    if (left_out or hidden) and height > 2:
        lines.append(_left_out(left_out, hidden).cut(width))
    return lines


def _heads(columns: Sequence[_Column], name_width: int, words_width: int) -> Line:
    line = Line((" " * _MARK, ""), (fit("program", name_width), "bold"))
    for column in columns:
        line.add(" ").add(fit(column.head, column.width, right=not column.left), "bold")
    if words_width > 2:
        line.add("  ").add(fit("waits for", words_width - 1), "bold")
    return line


def _window(
    rows: Sequence[ProgramRow], focus: str | None, room: int, more: bool
) -> tuple[int, int]:
    """Which rows fit, the focused one among them; a line is kept for what is left out."""
    if len(rows) + more <= room:
        return 0, len(rows)
    room = max(1, room - 1)
    at = next((place for place, row in enumerate(rows) if row.id == focus), 0)
    first = max(0, at - room + 1)
    return first, first + room


def _rate(tokens_per_s: float | None) -> str:
    return (
        BLANK
        if not tokens_per_s
        else f"{tokens_per_s:.1f}"
        if tokens_per_s < 99.95
        else (count_text(round(tokens_per_s)))
    )


def _left_out(rows: Sequence[ProgramRow], hidden: int) -> Line:
    states = Counter(
        "active" if r.is_live else "failed" if r.state == "failed" else "ended" for r in rows
    )
    states["ended"] += hidden
    parts = ", ".join(f"{count} {group}" for group, count in sorted(states.items()) if count)
    return Line((f"  {len(rows) + hidden} more: {parts}", "dim"))
