"""Lines of cells: what the live view is made of.

A table of rich costs more to draw than a view may take that is redrawn every second; a line here is
a list of styled pieces, and rich only turns it into what the terminal understands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def clean(text: str) -> str:
    """``text`` in one line, without characters that a terminal would obey."""
    if text.isprintable():
        return text
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def fit(text: str, width: int, *, right: bool = False) -> str:
    """``text`` in exactly ``width`` cells: padded, or cut with an ellipsis at its end."""
    size = len(text) if text.isascii() else cell_len(text)
    if size > width:
        if width <= 0:
            return ""
        head = text[: width - 1] if text.isascii() else _head(text, width - 1)
        text, size = f"{head}…", (width if text.isascii() else cell_len(head) + 1)
    gap = " " * (width - size)
    return gap + text if right else text + gap


def _head(text: str, width: int) -> str:
    return chop_cells(text, width)[0] if width > 0 and cell_len(text[0]) <= width else ""


class Line:
    """Pieces of text with their styles, from left to right.

    Attributes:
        pieces: (text, rich style) in order.
        cells: how wide they are together.
    """

    __slots__ = ("cells", "pieces")

    def __init__(self, *pieces: tuple[str, str]) -> None:
        self.pieces: list[tuple[str, str]] = []
        self.cells = 0
        for text, style in pieces:
            self.add(text, style)

    def add(self, text: str, style: str = "") -> Line:
        """Append a piece."""
        if text:
            self.pieces.append((text, style))
            self.cells += len(text) if text.isascii() else cell_len(text)
        return self

    def add_line(self, other: Line) -> Line:
        """Append another line's pieces."""
        self.pieces += other.pieces
        self.cells += other.cells
        return self

    def pad(self, width: int, fill: str = " ", style: str = "") -> Line:
        """Fill up to ``width`` cells."""
        return self.add(fill * (width - self.cells), style)

    def cut(self, width: int) -> Line:
        """At most the first ``width`` cells, with an ellipsis where something is left out."""
        if self.cells <= width:
            return self
        short = Line()
        for text, style in self.pieces:
            room = width - short.cells
            size = len(text) if text.isascii() else cell_len(text)
            if size >= room:
                # The piece that reaches the end shows that more would follow.
                return short.add(fit(text if size > room else f"{text} ", room), style)
            short.add(text, style)
        return short

    @property
    def text(self) -> str:
        """The line without its styles."""
        return "".join(text for text, _ in self.pieces)


class Picture:
    """Lines as a renderable of rich."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self.lines:
            for text, style in line.pieces:
                yield Segment(text, Style.parse(style) if style else None)
            yield Segment.line()

    @property
    def text(self) -> str:
        """The picture as plain text."""
        return "\n".join(line.text.rstrip() for line in self.lines)


def rule(title: Sequence[tuple[str, str]], width: int, end: str = "") -> Line:
    """A section's head: ``─ title ───────── end ─`` in exactly ``width`` cells."""
    line = Line(("─ ", "dim"), *title).cut(width - 2)
    tail = f" {end} ─" if end and line.cells + len(end) + 5 <= width else "─"
    return line.add(" ").pad(width - cell_len(tail), "─", "dim").add(tail, "dim")


def joined(parts: Sequence[tuple[str, str]], width: int, gap: str = " · ") -> Line:
    """Parts in one line; the last ones are left out where they do not fit."""
    line = Line()
    for text, style in parts:
        more = cell_len(text) + (len(gap) if line.cells else 0)
        if line.cells + more > width:
            break
        if line.cells:
            line.add(gap, "dim")
        line.add(text, style)
    return line


def gauge(share: float, width: int, style: str) -> Line:
    """A share (0 to 1) as a bar of ``width`` cells; nothing but 0 looks empty."""
    share = min(1.0, max(0.0, share))
    full = min(width, max(round(share * width), int(share > 0)))
    return Line(("█" * full, style), ("░" * (width - full), "dim"))


def sparkline(values: Sequence[float], top: float) -> str:
    """One cell a value, in eighths of ``top``; nothing but 0 looks empty."""
    if top <= 0:
        return _EIGHTHS[0] * len(values)
    levels = (min(8, max(round(8 * value / top), int(value > 0))) for value in values)
    return "".join(_EIGHTHS[level] for level in levels)


def beside(left: Sequence[Line], right: Sequence[Line], left_width: int, height: int) -> list[Line]:
    """Two columns with a thin rule between them; ``height`` lines."""
    lines = []
    for row in range(height):
        line = Line()
        if row < len(left):
            line.add_line(left[row].cut(left_width))
        line.pad(left_width).add(" │ ", "dim")
        if row < len(right):
            line.add_line(right[row])
        lines.append(line)
    return lines
