"""How the views write figures, names and states."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

STYLES = {
    "running": "green",
    "waiting": "yellow",
    "in tool": "cyan",
    "interrupted": "magenta",
    "done": "dim",
    "failed": "bold red",
    "cancelled": "red",
}

_ASCII = {
    ord(character): plain
    for characters, plain in (
        ("█", "#"),
        ("░", "."),
        ("·", "|"),
        ("…", "~"),
        ("─━", "-="),
        ("│┃", "||"),
        ("▁▂▃▄▅▆▇", "__..==#"),
        ("●◐○✗◆◇■□", "o@.x*<#%"),
        ("▸↑↓⋮", ">^v:"),
    )
    for character, plain in zip(characters, plain, strict=True)
}
_BOX = range(0x2500, 0x2580)

Part = tuple[str, str]


def duration_text(seconds: float) -> str:
    """A duration for people: ``4.2 s``, ``3:07``, ``1:02:07``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def brief_seconds(seconds: float) -> str:
    """A duration in running text, in at most five characters up to an hour: ``4.2s``, ``3:07``."""
    return f"{seconds:.1f}s" if seconds < 59.95 else duration_text(seconds)


def count_text(count: int) -> str:
    """A count in at most five characters up to a billion: ``950``, ``12.3k``, ``4.5M``."""
    if count < 1_000:
        return str(count)
    # The bounds are where rounding would reach the next form.
    for unit, name in ((1_000, "k"), (1_000_000, "M"), (1_000_000_000, "G")):
        value = count / unit
        if value < 99.95:
            return f"{value:.1f}{name}"
        if value < 999.5:
            return f"{value:.0f}{name}"
    return f"{count / 1e9:.0f}G"


def seconds_text(seconds: float) -> str:
    """Seconds for a column whose head names the unit, in five characters."""
    if seconds < 9.995:
        return f"{seconds:.2f}"
    if seconds < 999.95:
        return f"{seconds:.1f}"
    return f"{seconds:,.0f}" if seconds < 9_999.5 else count_text(round(seconds))


def percent_text(share: float | None) -> str:
    """A share (0 to 1) in per cent; empty for None."""
    return "" if share is None else f"{share:.0%}"


def short_id(program: str) -> str:
    """A program's id for a narrow column: the first part of a UUID, else all of it."""
    head, _, rest = program.partition("-")
    is_uuid = len(program) == 36 and len(head) == 8 and rest.count("-") == 3
    return head if is_uuid else program


def label(name: str, program: str, width: int) -> str:
    """Name and id of a program in ``width`` cells; the name gives way first.

    An id that is too long keeps its end: "react_agent-1" and "react_agent-2" differ there.
    """
    name, ident = " ".join(name.split()), " ".join(short_id(program).split())
    room = width - len(ident) - 1
    if room >= 3 and name and not ident.startswith(name):
        return f"{clip(name, room)} {ident}"
    return ident if len(ident) <= width else "…" + ident[len(ident) - width + 1 :]


def clip(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def joined(parts: Sequence[Part], width: int, *, prefix: str = "") -> Text:
    """Parts (text, style) in one line; the last ones are left out where it is too narrow."""
    kept = list(parts)
    while len(kept) > 1 and len(prefix) + len(" · ".join(part for part, _ in kept)) > width:
        kept.pop()
    line = Text(prefix, no_wrap=True, overflow="ellipsis", end="")
    for index, (part, style) in enumerate(kept):
        line.append(" · " if index else "")
        line.append(part, style)
    return line


def ascii_text(text: str) -> str:
    """The same picture for a terminal without UTF-8, cell for cell."""
    return text if text.isascii() else "".join(map(_ascii_character, text))


def _ascii_character(character: str) -> str:
    if character.isascii():
        return character
    plain = _ASCII.get(ord(character))
    if plain is None:
        plain = "+" if ord(character) in _BOX else "?" * cell_len(character)
    return plain
