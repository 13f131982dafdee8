"""The live view: programs, occupancy of the levels, totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .levels import levels_panel
from .notation import STYLES, count_text, label, percent_text, seconds_text
from .progress import progress_text
from .snapshot import ProgramRow, RunSnapshot
from .view import TerminalView

_LONGEST_NAME = 60
_LIVE = ("running", "waiting", "in tool")
_RANK = {"failed": 1, "interrupted": 2, "cancelled": 3, "done": 4}


@dataclass(frozen=True, slots=True)
class _Column:
    """One column: its head, width in cells, the least screen width that shows it, its text."""

    head: str
    width: int
    from_width: int
    text: Callable[[ProgramRow], str]
    left: bool = False


def _path_share(row: ProgramRow) -> float | None:
    return row.critical_path_s / row.response_s if row.response_s > 0 else None


_COLUMNS = (
    _Column("\nstate", 11, 0, lambda row: row.state, left=True),
    _Column("\nlevel", 5, 0, lambda row: str(row.level or "")),
    _Column("calls\ndone", 5, 0, lambda row: count_text(row.calls_done)),
    _Column("\nrun", 3, 0, lambda row: count_text(row.calls_running) if row.calls_running else ""),
    _Column("\nwait", 4, 0, lambda row: count_text(row.calls_waiting) if row.calls_waiting else ""),
    _Column("\ntools", 5, 110, lambda row: count_text(row.tools)),
    _Column("output\ntokens", 6, 110, lambda row: count_text(row.tokens)),
    _Column("attained\ns", 8, 0, lambda row: seconds_text(row.attained_s)),
    _Column("critical\npath s", 8, 0, lambda row: seconds_text(row.critical_path_s)),
    _Column("its\nshare", 5, 0, lambda row: percent_text(_path_share(row))),
    _Column("wait\ns", 6, 0, lambda row: seconds_text(row.wait_s)),
    _Column("response\ns", 8, 110, lambda row: seconds_text(row.response_s)),
    _Column("\nwaits for", 18, 100, lambda row: row.waits_for, left=True),
)


class LiveView(TerminalView):
    """Programs, levels and totals, redrawn in place; plain progress lines without a terminal."""

    def render(self, snapshot: RunSnapshot, width: int, height: int) -> RenderableType:
        """The picture of a snapshot."""
        return live_picture(snapshot, width, height)


def live_picture(snapshot: RunSnapshot, width: int, height: int) -> RenderableType:
    """The run in at most ``height`` lines of ``width`` cells.

    The levels get what they need, up to a third of the height, programs the rest; at least one
    program is shown.
    """
    totals = progress_text(snapshot, width)
    totals.end = "\n"
    depth = max((len(row.running_by_level) for row in snapshot.replicas), default=0)
    levels_height = min(depth + 3, max(2, height // 3)) if snapshot.replicas else 1
    programs_height = max(4, height - levels_height - 1)
    return Group(
        totals,
        levels_panel(snapshot.replicas, width, levels_height),
        programs_panel(snapshot.programs, width, programs_height),
    )


def programs_panel(programs: Sequence[ProgramRow], width: int, height: int) -> RenderableType:
    """The table of programs in at most ``height`` lines; the most interesting ones come first."""
    ordered = sorted(programs, key=_interest)
    room = max(1, height - 2)
    shown = ordered if len(ordered) <= room else ordered[: max(1, room - 1)]
    hidden = ordered[len(shown) :]
    columns = [column for column in _COLUMNS if width >= column.from_width]
    left = width - sum(column.width + 1 for column in columns)
    name_width = min(_LONGEST_NAME, max(8, left))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nprogram", width=name_width, no_wrap=True)
    for column in columns:
        table.add_column(
            column.head,
            width=column.width,
            justify="left" if column.left else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in shown:
        cells = [Text(column.text(row)) for column in columns]
        cells[0].stylize(STYLES[row.state])
        table.add_row(Text(label(row.name, row.id, name_width)), *cells)
    return Group(table, _hidden_line(hidden)) if hidden else table


def _interest(row: ProgramRow) -> tuple[int, float]:
    """What runs comes before what ended, the longest first."""
    return (0 if row.state in _LIVE else _RANK[row.state]), -row.response_s


def _hidden_line(hidden: Sequence[ProgramRow]) -> Text:
    groups = Counter(
        "active" if row.state in _LIVE else "failed" if row.state == "failed" else "ended"
        for row in hidden
    )
    parts = ", ".join(f"{count} {group}" for group, count in sorted(groups.items()))
    text = f"{len(hidden)} more programs: {parts}"
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")
