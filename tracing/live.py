"""The picture of a run: totals, queues, programs, and the DAG of one program.

Narrow screens have the sections below each other; on wide ones the DAG stands beside the others.
"""

from __future__ import annotations

from collections import Counter

from .live_graph import GraphDrawing
from .live_lines import Line, Picture, beside, clean, gauge, joined, rule, sparkline
from .live_programs import programs_lines
from .live_queues import queues_lines
from .live_rates import Rates
from .live_state import Choice
from .notation import STYLES, brief_seconds, count_text, duration_text, label, percent_text
from .snapshot import LIVE, ProgramGraph, ProgramRow, RunSnapshot

WIDE = 150
_KEYS = "↑↓ select · s sort · p pause · esc follow · q "


def live_picture(
    snapshot: RunSnapshot,
    width: int,
    height: int,
    *,
    graph: ProgramGraph | None = None,
    choice: Choice | None = None,
    rates: Rates | None = None,
    quit_word: str = "",
) -> Picture:
    """The run in exactly ``height`` lines of at most ``width`` cells.

    Args:
        snapshot: the run.
        width, height: cells, lines.
        graph: the DAG of the program that is shown, if one is.
        choice: what the person who watches has chosen.
        rates: has seen the snapshots up to this one.
        quit_word: what q does; empty where there are no keys.
    """
    choice, rates = choice or Choice(), rates or Rates()
    head = _head(snapshot, rates, width)
    foot = [_foot(choice, width, quit_word)] if quit_word and height >= 8 else []
    room = max(0, height - len(head) - len(foot))
    body = _Body(snapshot, graph, choice, rates)
    lines = body.wide(width, room) if width >= WIDE else body.narrow(width, room)
    lines = [*lines[:room], *(Line() for _ in range(room - len(lines)))]
    return Picture([line.cut(width) for line in [*head, *lines, *foot][:height]])


def _head(snapshot: RunSnapshot, rates: Rates, width: int) -> list[Line]:
    """Two lines: what runs on what since when; how far it is."""
    elapsed = duration_text(snapshot.elapsed_s)
    parts = [(f" {clean(snapshot.title) or 'autellix'}", "bold")]
    if snapshot.engine:
        facts = (snapshot.engine, snapshot.model.rsplit("/", 1)[-1], snapshot.policy)
        parts += [(clean(text), "dim") for text in facts if text]
    first = joined(parts, max(0, width - len(elapsed) - 2)).pad(width - len(elapsed) - 1)
    first.add(elapsed, "bold")
    states = Counter(row.state for row in snapshot.programs if row.is_live)
    counts = [(f"{states[state]} {state}", STYLES[state]) for state in LIVE if states[state]]
    if snapshot.programs_failed:
        counts.append((f"{snapshot.programs_failed} failed", "bold red"))
    counts += [
        (f"{rates.tokens_per_s:,.0f} tok/s", ""),
        (f"{count_text(snapshot.calls_done)} calls", ""),
        (f"served {brief_seconds(snapshot.service_s)}", ""),
        (f"waited {brief_seconds(snapshot.wait_s)}", ""),
    ]
    ended, total = _ended(snapshot), max(1, snapshot.programs_total)
    second = Line()
    if width >= 100:
        second.add(" ").add_line(gauge(ended / total, width // 12, "green"))
    second.add(f" {ended}/{snapshot.programs_total} programs", "bold").add(" · ", "dim")
    second.add_line(joined(counts, width - second.cells))
    spare = width - second.cells - 2
    if spare >= 8 and rates.history:
        points = list(rates.history)[-min(spare, 60) :]
        second.add("  ").add(sparkline(points, max(points)), "cyan")
    return [first, second]


def _ended(snapshot: RunSnapshot) -> int:
    return min(snapshot.programs_total, snapshot.programs_done + snapshot.programs_failed)


def _foot(choice: Choice, width: int, quit_word: str) -> Line:
    state = [("paused", "reverse")] if choice.paused else []
    return Line((" ", "")).add_line(joined([*state, (f"{_KEYS}{quit_word}", "dim")], width - 1))


class _Body:
    """The sections of one picture."""

    def __init__(
        self, snapshot: RunSnapshot, graph: ProgramGraph | None, choice: Choice, rates: Rates
    ) -> None:
        self._snapshot = snapshot
        self._graph = graph if graph is not None and graph.nodes else None
        self._choice = choice
        self._rates = rates
        self._rows = choice.ordered(snapshot.programs)

    def narrow(self, width: int, height: int) -> list[Line]:
        """Below each other: queues, programs, DAG."""
        queues = self._queues(width, max(5 if height >= 16 else 3, min(height // 4, 12)))
        rest = height - len(queues)
        dag = GraphDrawing(self._graph, width, rest) if self._graph else None
        programs = self._programs(width, self._programs_height(rest, dag))
        return [*queues, *programs, *self._dag(dag, width, rest - len(programs))]

    def wide(self, width: int, height: int) -> list[Line]:
        """Queues and programs on the left, the DAG on the right."""
        left_width = width * 3 // 5
        right_width = width - left_width - 3
        queues = self._queues(left_width, max(3, min(height // 4, 12)))
        programs = self._programs(left_width, height - len(queues))
        dag = GraphDrawing(self._graph, right_width, height) if self._graph else None
        right = self._dag(dag, right_width, height)
        return beside([*queues, *programs], right, left_width, height)

    def _queues(self, width: int, height: int) -> list[Line]:
        many = len(self._snapshot.replicas)
        title = "queues" if many < 2 else f"queues of {many} replicas"
        lines = queues_lines(self._snapshot.replicas, self._rates, width, height - 1)
        return [rule([(title, "bold")], width), *lines]

    def _programs_height(self, room: int, dag: GraphDrawing | None) -> int:
        """How much of the room the programs get; what neither needs stays empty."""
        if dag is None:
            return room
        wanted = len(self._rows) + 2
        return max(4, min(wanted, max(room - dag.height - 1, room // 2)))

    def _programs(self, width: int, height: int) -> list[Line]:
        if height < 2:
            return []
        started = len(self._rows)
        hidden = max(0, _started(self._snapshot) - started)
        order = self._choice.order
        title = [("programs", "bold")]
        lines = programs_lines(
            self._rows,
            width,
            height - 1,
            focus=self._graph.program if self._graph else None,
            selected=self._choice.selected is not None,
            hidden=hidden,
        )
        return [rule(title, width, f"by {order}"), *lines]

    def _dag(self, drawing: GraphDrawing | None, width: int, height: int) -> list[Line]:
        graph = self._graph
        if drawing is None or graph is None or height < 2:
            return []
        row = next((row for row in self._rows if row.id == graph.program), None)
        return [self._dag_rule(row, graph, width), *drawing.lines(height - 1)]

    def _dag_rule(self, row: ProgramRow | None, graph: ProgramGraph, width: int) -> Line:
        if row is None:
            return rule([(clean(graph.program), "bold")], width)
        title = [
            (label(clean(row.name), clean(row.id), 40), "bold"),
            (f" {row.state}", STYLES[row.state]),
        ]
        share = percent_text(row.path_share)
        path = f"critical path {brief_seconds(row.critical_path_s)}, {share} of response"
        return rule(title, width, path if row.critical_path_s else "")


def _started(snapshot: RunSnapshot) -> int:
    """Programs that have begun, as far as the totals tell."""
    return snapshot.programs_running + snapshot.programs_done + snapshot.programs_failed
