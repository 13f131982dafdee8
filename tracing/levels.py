"""Occupancy of the levels: a bar per level and replica, running and waiting calls."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from .notation import Part, joined
from .snapshot import ReplicaRow

_LABEL = 11
_GAP = 2
_NARROWEST = 23
_COUNTS = 9


def levels_panel(replicas: Sequence[ReplicaRow], width: int, height: int) -> RenderableType:
    """Replicas side by side, levels below each other, in at most ``height`` lines.

    A bar's solid part are running calls, its light part waiting ones; all bars share one scale.
    Levels that do not fit are summed in the last line, replicas that do not fit in a line below.
    """
    if not replicas:
        return Text("no replica is up yet", style="dim", no_wrap=True)
    beside = max(1, (width - _LABEL) // (_NARROWEST + _GAP))
    shown, hidden = replicas[:beside], replicas[beside:]
    cell = (width - _LABEL) // len(shown) - _GAP
    lines = [_line("", [joined(_seats(row), cell) for row in shown], cell)]
    spare = height - 1 - bool(hidden)
    levels = max((_depth(row) for row in replicas), default=0)
    if spare > levels and any(_counters(row) for row in shown):
        lines.append(_line("", [joined(_counters(row), cell) for row in shown], cell))
        spare -= 1
    ranges = _ranges(levels, max(1, spare))
    largest = max((sum(_at(row, span)) for row in shown for span in ranges), default=0)
    for span in ranges:
        bars = [_bar(*_at(row, span), largest=largest, width=cell) for row in shown]
        lines.append(_line(_name(span), bars, cell))
    if hidden:
        running, waiting = sum(r.running for r in hidden), sum(r.waiting for r in hidden)
        text = f"{len(hidden)} more replicas: {running} running, {waiting} waiting"
        lines.append(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _line(name: str, cells: Sequence[Text], width: int) -> Text:
    line = Text(name.ljust(_LABEL), no_wrap=True, overflow="ellipsis")
    for cell in cells:
        cell.truncate(width, overflow="ellipsis", pad=True)
        line.append_text(cell)
        line.append(" " * _GAP)
    line.rstrip()
    return line


def _seats(row: ReplicaRow) -> list[Part]:
    seats = f"{row.running}/{row.seats} seats" if row.seats else f"{row.running} running"
    return [
        (f"replica {row.index}", "bold"),
        (seats, ""),
        (f"{row.waiting} waiting", "yellow" if row.waiting else ""),
        (f"KV {row.kv_usage:.0%}", "red" if row.kv_usage > 0.95 else ""),
        (f"step {row.step_s * 1000:.0f} ms", "dim"),
    ]


def _counters(row: ReplicaRow) -> list[Part]:
    counts = (
        ("preempted", row.preemptions),
        ("promoted", row.promotions),
        ("demoted", row.demotions),
    )
    return [(f"{word} {count}", "dim") for word, count in counts if count]


def _depth(row: ReplicaRow) -> int:
    return max(len(row.running_by_level), len(row.waiting_by_level))


def _ranges(levels: int, lines: int) -> list[range]:
    """Levels (from 1) in at most ``lines`` groups; only the last holds several."""
    if levels <= lines:
        return [range(level, level + 1) for level in range(1, levels + 1)]
    single = [range(level, level + 1) for level in range(1, lines)]
    return [*single, range(lines, levels + 1)]


def _name(span: range) -> str:
    last = span.stop - 1
    return f"level {span.start}" if last == span.start else f"level {span.start}-{last}"


def _at(row: ReplicaRow, span: range) -> tuple[int, int]:
    """Running and waiting calls of a replica in a range of levels."""
    cut = slice(span.start - 1, span.stop - 1)
    return sum(row.running_by_level[cut]), sum(row.waiting_by_level[cut])


def _bar(running: int, waiting: int, *, largest: int, width: int) -> Text:
    """``█████░░░ 5+3``: one cell a call where that fits, else in proportion."""
    room = max(1, width - _COUNTS)
    scale = min(1.0, room / largest) if largest else 1.0
    solid, light = round(running * scale), round(waiting * scale)
    text = Text(no_wrap=True, end="")
    text.append("█" * (solid or (running > 0)), "green")
    text.append("░" * (light or (waiting > 0)), "yellow")
    counts = f"{running}+{waiting}" if waiting else str(running)
    text.append(f" {counts}" if text.plain else counts, "" if running or waiting else "dim")
    return text
