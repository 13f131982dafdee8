"""The run's progress in one line."""

from __future__ import annotations

from rich.text import Text

from .notation import Part, count_text, duration_text, joined
from .snapshot import RunSnapshot


def progress_text(snapshot: RunSnapshot, width: int = 80) -> Text:
    """One line: programs running and done, calls, tokens per second, elapsed time.

    What matters least is left out first where ``width`` cells do not hold it all.
    """
    parts: list[Part] = [
        (f"{snapshot.programs_running} running", "green"),
        (f"{snapshot.programs_done}/{snapshot.programs_total} done", ""),
    ]
    if snapshot.programs_failed:
        parts.append((f"{snapshot.programs_failed} failed", "bold red"))
    parts += [
        (f"{count_text(snapshot.calls_done)} calls", ""),
        (f"{snapshot.tokens_per_s:,.0f} tokens/s", ""),
        (duration_text(snapshot.elapsed_s), "dim"),
    ]
    return joined(parts, width, prefix="programs: ")
