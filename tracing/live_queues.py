"""The queues: what each replica holds in which level, its seats and memory, what it did lately."""

from __future__ import annotations

from collections.abc import Sequence

from .live_lines import Line, beside, fit, gauge, joined, sparkline
from .live_rates import Rates, ReplicaRates
from .snapshot import ReplicaRow

_NARROWEST = 56  # cells of a replica that is drawn in full
_FULL = 0.95  # share of the KV cache from which on it is short
_COUNTS = 6  # cells for the figures after a bar
_MOST_CELLS = 4  # of a bar, for one call


def queues_lines(
    replicas: Sequence[ReplicaRow], rates: Rates, width: int, height: int
) -> list[Line]:
    """All replicas in at most ``height`` lines of ``width`` cells.

    In full where they fit beside each other, else one line each; what does not fit is summed.
    """
    if not replicas:
        return [Line(("  no replica answers yet", "dim")).cut(width)]
    beside_each_other = len(replicas) * (_NARROWEST + 3) - 3 <= width
    if len(replicas) == 1 or (beside_each_other and height >= 3):
        cell = (width - 3 * (len(replicas) - 1)) // len(replicas)
        top = _largest(replicas)
        blocks = [_block(row, rates.of(row), top, cell, height) for row in replicas]
        lines = blocks[0]
        for number, block in enumerate(blocks[1:], start=1):
            lines = beside(lines, block, number * (cell + 3) - 3, height)
        return [line.cut(width) for line in lines[:height]]
    return _table(replicas, rates, width, height)


def _largest(replicas: Sequence[ReplicaRow]) -> int:
    """The most calls that any level of any replica holds."""
    return max((sum(_at(row, i)) for row in replicas for i in range(_depth(row))), default=0)


def _depth(row: ReplicaRow) -> int:
    return max(len(row.running_by_level), len(row.waiting_by_level))


def _at(row: ReplicaRow, level: int) -> tuple[int, int]:
    """Running and waiting calls in a level, counted from 0."""

    def of(counts: Sequence[int]) -> int:
        return counts[level] if level < len(counts) else 0

    return of(row.running_by_level), of(row.waiting_by_level)


# ── one replica in full ──────────────────────────────────────────────────────────────────────────


def _block(row: ReplicaRow, rates: ReplicaRates, top: int, width: int, height: int) -> list[Line]:
    if (absent := _absent(row)) is not None:
        return [absent.cut(width)]
    lines = [_head(row, width)]
    if height >= 3:
        lines += _levels(row, top, width, height - 2)
    if height >= 2:
        lines.append(_rates(rates, row.step_s, width))
    return lines


def _absent(row: ReplicaRow) -> Line | None:
    """In place of the figures of a replica that does not serve."""
    text = {
        "lost": "lost; its calls go on elsewhere, it is being started again",
        "starting": "is being started",
        "failed": "given up: it did not come up again",
        "stopped": "stopped",
    }.get(row.state)
    return (
        None
        if text is None
        else Line((f"  replica {row.index} ", "bold"), (f" {text}", "bold red"))
    )


def _head(row: ReplicaRow, width: int) -> Line:
    """Seats, memory and queue length; gauges where there is room for them."""
    share = row.running / row.seats if row.seats else 0.0
    bar = max(0, min(16, (width - 52) // 2))
    line = Line((f"  replica {row.index} ", "bold"))
    line.add(" seats ").add_line(gauge(share, bar, "green")).add(" " if bar else "")
    line.add(f"{row.running}/{row.seats}" if row.seats else f"{row.running}")
    line.add(f"  {row.waiting} waiting", "yellow" if row.waiting else "dim")
    short = row.kv_usage >= _FULL
    line.add("  KV ").add_line(gauge(row.kv_usage, bar, "red" if short else "blue"))
    line.add(f"{' ' if bar else ''}{_share(row.kv_usage)}", "bold red" if short else "")
    if row.kv_host_usage is not None:
        line.add("  host ").add(_share(row.kv_host_usage))
    return line.cut(width)


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 or not share else "<1%"


def _levels(row: ReplicaRow, top: int, width: int, height: int) -> list[Line]:
    """A bar for each level, filled column by column."""
    depth = _depth(row)
    if not depth:
        return []
    columns = -(-depth // max(1, height))
    per_column = -(-depth // columns)
    cell = (width - 2) // columns
    lines = [Line(("  ", "")) for _ in range(per_column)]
    digits = len(str(depth))
    # Whole cells a call where that fits, by the seats, so that bars do not jump with the load.
    room = max(1, cell - digits - 3 - _COUNTS)
    scale = min(_MOST_CELLS, room // max(top, row.seats, 1)) or room / max(top, 1)
    for level in range(depth):
        line = lines[level % per_column]
        line.pad(2 + (level // per_column) * cell)
        line.add(f"L{level + 1}".ljust(digits + 1) + " ", "dim")
        line.add_line(_bar(*_at(row, level), scale))
    return lines


def _bar(running: int, waiting: int, scale: float) -> Line:
    """``█████░░░ 5+3``: so many cells a call."""
    if not running and not waiting:
        return Line(("-", "dim"))
    solid = max(round(running * scale), int(running > 0))
    light = max(round(waiting * scale), int(waiting > 0))
    line = Line(("█" * solid, "green"), ("░" * light, "yellow"), (" ", ""))
    return line.add(f"{running}+{waiting}" if waiting else str(running))


def _rates(rates: ReplicaRates, step_s: float, width: int) -> Line:
    parts = [("  per second", "dim")]
    parts += [
        (f"{word} {_rate_text(rate)}", "" if rate else "dim")
        for word, rate in (
            ("preempted", rates.preemptions),
            ("promoted", rates.promotions),
            ("demoted", rates.demotions),
            ("swapped", rates.swaps),
        )
    ]
    parts.append((f"step {step_s * 1000:.0f} ms", "dim"))
    return joined(parts, width, gap="  ")


def _rate_text(rate: float) -> str:
    return "0" if not rate else f"{rate:.1f}" if rate >= 0.05 else "<0.1"


# ── many replicas, one line each ─────────────────────────────────────────────────────────────────


def _table(replicas: Sequence[ReplicaRow], rates: Rates, width: int, height: int) -> list[Line]:
    shown = replicas if len(replicas) <= height else replicas[: max(1, height - 1)]
    hidden = replicas[len(shown) :]
    top = _largest(replicas)
    digits = len(str(replicas[-1].index))
    lines = [_row(row, rates.of(row), top, digits, width) for row in shown]
    if hidden and height > 1:
        running, waiting = sum(r.running for r in hidden), sum(r.waiting for r in hidden)
        text = f"  {len(hidden)} more replicas: {running} running, {waiting} waiting"
        lines.append(Line((text, "dim")).cut(width))
    return lines


def _row(row: ReplicaRow, rates: ReplicaRates, top: int, digits: int, width: int) -> Line:
    if (absent := _absent(row)) is not None:
        return absent.cut(width)
    bar = max(0, min(20, (width - 84) // 2))
    share = row.running / row.seats if row.seats else 0.0
    line = Line((f"  replica {row.index:<{digits}}", "bold"), (" seats ", "dim"))
    line.add_line(gauge(share, bar, "green"))
    line.add(fit(f"{row.running}/{row.seats}", 8, right=True))
    line.add(fit(f"+{row.waiting}" if row.waiting else "", 6), "yellow")
    line.add(" KV ", "dim").add_line(gauge(row.kv_usage, bar, "blue"))
    line.add(fit(_share(row.kv_usage), 5, right=True), "red" if row.kv_usage >= _FULL else "")
    line.add("  levels ", "dim")
    for level in range(_depth(row)):
        running, waiting = _at(row, level)
        line.add(sparkline([running + waiting], top), "yellow" if waiting > running else "green")
    line.add("  ")
    for word, rate in (
        ("pre", rates.preemptions),
        ("prom", rates.promotions),
        ("swap", rates.swaps),
    ):
        line.add(f"{word} ", "dim").add(fit(f"{_rate_text(rate)}/s", 7))
    return line.cut(width)
