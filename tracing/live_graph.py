"""The DAG of one program as it grows: supersteps below each other, branches side by side.

    1 ◆ plan 0.42s
      ┣━━━━━━━━━━━━━━━━┯━━━━━━━━━━━━━━━┑
    2 ◆ expand 1.21s   ● expand 0.92s   ◐ expand 0.7s

Calls are coloured by state. The critical path has heavy strokes and filled diamonds. A line of
connections is drawn only where a chain does not simply go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from .live_box import DOWN, HEAVY, LIGHT, UP, Strip
from .live_layout import Layer, Slot, layers_of
from .live_lines import Line, clean, fit
from .notation import brief_seconds, count_text
from .snapshot import CallNode, NodeState, ProgramGraph

_GUTTER = 4
_WIDEST_COLUMN = 30
_NARROWEST_NAMED = 9  # cells of a column in which a call is named
_SUMMARY = 30
_MOST_TRACKS = 3
CRITICAL = "bold magenta"

_STYLES: dict[NodeState, str] = {
    "running": "bold green",
    "waiting": "yellow",
    "done": "",
    "failed": "bold red",
    "aborted": "red",
}
_LLM: dict[NodeState, str] = {
    "running": "◐",
    "waiting": "○",
    "done": "●",
    "failed": "✗",
    "aborted": "✗",
}
_TOOL: dict[NodeState, str] = {**_LLM, "running": "□", "done": "■"}


class GraphDrawing:
    """The newest layers of a DAG, drawn once in a width, to be shown in any height up to ``most``.

    Attributes:
        height: how many lines show all of it, ``most`` at most.
    """

    def __init__(self, graph: ProgramGraph, width: int, most: int) -> None:
        self._graph = graph
        self._width = width
        self._layers = layers_of(graph.nodes)
        self._blocks: list[list[Line]] = []  # from the last layer upwards
        lines = 0
        if self._layers and most > 0:
            page = _Page(graph.nodes, width - _GUTTER, self._layers[-most:])
            for layer, above in pairwise([*reversed(self._layers), None]):
                assert layer is not None
                self._blocks.append([*page.connections(above, layer), page.row(layer)])
                lines += len(self._blocks[-1])
                if lines >= most:
                    break
        self.height = min(most, lines + bool(graph.hidden))

    def lines(self, height: int) -> list[Line]:
        """The newest layers that fit; what is above them is counted in the first line."""
        kept: list[Line] = []
        layers = 0
        for block in self._blocks:
            if len(kept) + len(block) > height:
                break
            kept[:0] = block
            layers += 1
        if self._blocks and not layers:
            kept, layers = self._blocks[0][-1:], 1
        above = self._layers[: len(self._layers) - layers]
        if above or self._graph.hidden:
            # The note takes the place of a line where there is none left.
            over = len(kept) + 1 - height
            kept = [self._note(above), *kept[max(0, over) :]] if height > 1 else kept
        return [line.cut(self._width) for line in kept[:height]]

    def _note(self, above: Sequence[Layer]) -> Line:
        hidden = sum(slot.node is not None for layer in above for slot in layer.slots)
        return Line((f"  ⋮ {count_text(self._graph.hidden + hidden)} earlier calls", "dim"))


class _Page:
    """Columns of a width for the layers that may be seen, and what is drawn in them."""

    def __init__(self, nodes: Sequence[CallNode], width: int, seen: Sequence[Layer]) -> None:
        self._nodes = nodes
        self._width = max(1, width)
        columns = max(slot.column for layer in seen for slot in layer.slots) + 1
        self._pitch = min(_WIDEST_COLUMN, self._width // columns)

    def xs(self, layer: Layer) -> list[int]:
        """Where the slots stand; columns too narrow for names give way to marks close together."""
        if self._pitch >= _NARROWEST_NAMED:
            return [slot.column * self._pitch for slot in layer.slots]
        places, width = len(layer.slots), self._width
        pitch = min(_WIDEST_COLUMN, width // places)
        if pitch < _NARROWEST_NAMED:
            width = max(1, width - min(_SUMMARY, width // 2))
            pitch = 2 if 2 * places <= width else 1
        return [min(width - 1, place * pitch) for place in range(places)]

    # ── connections ──────────────────────────────────────────────────────────────────────────

    def connections(self, above: Layer | None, layer: Layer) -> list[Line]:
        """The lines between two layers; none where all goes straight down."""
        if above is None:
            return []
        xs = dict(zip(map(id, above.slots), self.xs(above), strict=True))
        edges = {
            (xs[id(parent)], x, HEAVY if critical else LIGHT)
            for x, slot in zip(self.xs(layer), layer.slots, strict=True)
            for parent, critical in slot.parents
        }
        if all(parent == child for parent, child, _ in edges):
            return []
        tracks = _tracks(_groups(edges))
        return [self._strip(tracks, track) for track in range(len(tracks))]

    def _strip(self, tracks: Sequence[Sequence[_Group]], track: int) -> Line:
        strip = Strip(self._width)
        for number, groups in enumerate(tracks):
            for group in groups:
                if number == track:
                    strip.across(*_span(group), LIGHT)
                for parent, child, weight in group:
                    if number == track:
                        strip.stroke(parent, UP, weight)
                        strip.stroke(child, DOWN, weight)
                        if weight == HEAVY:
                            strip.across(parent, child, HEAVY)
                    else:
                        # Parents come down to their own line, children go on down from it.
                        strip.down(parent if track < number else child, weight)
        line = Line((" " * _GUTTER, ""))
        for text, heavy in strip.pieces():
            line.add(text, CRITICAL if heavy else "dim")
        return line

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    def row(self, layer: Layer) -> Line:
        """The line of a layer."""
        number = str(layer.superstep) if layer.is_first else ""
        line = Line((fit(number, _GUTTER - 1, right=True) + " ", "dim"))
        places = list(zip(self.xs(layer), layer.slots, strict=True))
        gaps = [after - x for (x, _), (after, _) in pairwise(places)]
        pitch = min(gaps, default=self._width)
        for x, slot in places:
            if x + _GUTTER < line.cells:
                line.pieces[-1] = ("…", "dim")  # no place for the rest; the summary counts it
                break
            line.pad(x + _GUTTER)
            self._add(line, slot, min(pitch, self._width - x) if pitch >= _NARROWEST_NAMED else 1)
        if pitch < _NARROWEST_NAMED:
            calls = [self._nodes[slot.node] for slot in layer.slots if slot.node is not None]
            line.add("  ").add_line(_summary(calls))
        return line

    def _add(self, line: Line, slot: Slot, room: int) -> None:
        if slot.node is None:
            heavy = any(critical for _, critical in slot.parents)
            line.add("┃" if heavy else "│", CRITICAL if heavy else "dim")
            return
        node = self._nodes[slot.node]
        glyph, style = _mark(node)
        line.add(glyph, style)
        if room > 2:
            text = _caption(node, room - 3)
            plain = node.state == "done" and not node.is_critical
            line.add(f" {text}", "dim" if plain else style)


def _mark(node: CallNode) -> tuple[str, str]:
    if node.kind == "earlier":
        return "◇", CRITICAL if node.is_critical else "dim"
    if node.kind == "tool":
        style = "cyan" if node.state == "running" else _STYLES[node.state]
        if node.is_critical and node.state == "done":
            style = CRITICAL
        return _TOOL[node.state], style
    if node.is_critical and node.state == "done":
        return "◆", CRITICAL
    return _LLM[node.state], _STYLES[node.state]


def _caption(node: CallNode, room: int) -> str:
    """Name, time and, as far as there is room, what else is known."""
    name, time = clean(node.label), brief_seconds(node.took_s)
    if node.state == "waiting":
        time = f"{time} queued"
    if node.state in ("failed", "aborted"):
        time = f"{node.state} {time}"
    head = f"{name} {time}"
    if len(head) > room:
        least = room - len(time) - 1
        return f"{fit(name, least)} {time}" if least >= 3 else fit(name, room).rstrip()
    for more in _details(node):
        if len(head) + len(more) + 2 > room:
            break
        head = f"{head}  {more}"
    return head


def _details(node: CallNode) -> Iterable[str]:
    if node.tokens:
        yield f"{count_text(node.tokens)} tok"
    if node.level is not None:
        yield f"L{node.level}"
    if node.wait_s >= 0.05:
        yield f"waited {brief_seconds(node.wait_s)}"


def _summary(calls: Sequence[CallNode]) -> Line:
    """A layer whose calls are too many to be named: ``condense x64  41 done, 8 running``."""
    names = Counter(clean(node.label) for node in calls)
    (name, many), *others = names.most_common()
    line = Line((f"{name[:12]}{' …' if others else ''} x{len(calls) if others else many}", ""))
    states = Counter(node.state for node in calls)
    for state in ("failed", "running", "waiting"):
        if states[state]:
            line.add(f" {states[state]} {state}", _STYLES[state])
    return line


_Edge = tuple[int, int, int]
_Group = list[_Edge]


def _groups(edges: Iterable[_Edge]) -> list[_Group]:
    """Edges that hang together, by the places that they share above or below."""
    root: dict[tuple[str, int], tuple[str, int]] = {}

    def find(end: tuple[str, int]) -> tuple[str, int]:
        while root.setdefault(end, end) != end:
            root[end] = end = root[root[end]]
        return end

    kept = list(edges)
    for parent, child, _ in kept:
        root[find(("above", parent))] = find(("below", child))
    groups: dict[tuple[str, int], _Group] = {}
    for edge in kept:
        groups.setdefault(find(("below", edge[1])), []).append(edge)
    return list(groups.values())


def _tracks(groups: Sequence[_Group]) -> list[list[_Group]]:
    """Groups on lines of their own where they would lie over each other on one."""
    tracks: list[list[_Group]] = []
    ends: list[int] = []
    for group in sorted(groups, key=_span):
        low, high = _span(group)
        track = next((n for n, end in enumerate(ends) if end < low), len(tracks))
        track = min(track, _MOST_TRACKS - 1)
        if track == len(tracks):
            tracks.append([])
            ends.append(-1)
        tracks[track].append(group)
        ends[track] = max(ends[track], high)
    return tracks


def _span(group: _Group) -> tuple[int, int]:
    """The cells between which the edges of a group lie; they hang together, so all are covered."""
    return min(min(edge[:2]) for edge in group), max(max(edge[:2]) for edge in group)
