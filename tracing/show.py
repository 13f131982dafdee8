"""``autellix trace show``: a trace's programs, and the calls of one of them as a tree with bars."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .notation import STYLES, clip, count_text, label, percent_text, seconds_text
from .phases import PhaseKind
from .trace import Trace, TracedCall, TracedProgram
from .waiting import CAUSES, Cause, Waiting

MOST_CALLS = 60
MOST_PROGRAMS = 40
_WIDE = 110  # cells from which the programs' causes of waiting fit
_BARS: dict[PhaseKind, tuple[str, str]] = {
    "running": ("█", "green"),
    "waiting": ("░", "yellow"),
    "preempted": ("▒", "red"),
    "held": ("░", "magenta"),
    "in tool": ("━", "cyan"),
    "on its way": ("·", "dim"),
    "unmeasured": ("·", "dim"),
}
_PLAIN = str.maketrans("●○│├└─█░▒━·…", "*o||`-#.:=-~")


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A call's place in the picture of its program.

    Attributes:
        prefix: lines that lead to it.
        joins: how many further calls it depends on, beside the one it hangs on.
    """

    call: TracedCall
    prefix: str
    joins: int


def tree_lines(program: TracedProgram) -> list[TreeLine]:
    """A program's calls as a tree: each hangs on the parent that ended last.

    A call that alone follows another stands below it, not beside it, so a chain is a column.
    """
    ends = {call.id: call.end_s or call.start_s for call in program.calls}
    children: dict[str | None, list[TracedCall]] = defaultdict(list)
    for call in program.calls:
        known = [parent.id for parent in call.parents if parent.id in ends]
        children[max(known, key=ends.__getitem__, default=None)].append(call)
    lines: list[TreeLine] = []
    # Without recursion: a program may be thousands of calls deep.
    roots = children[None]
    todo = [(call, "", "") for call in reversed(roots)]
    if len(roots) > 1:
        todo = list(_branches(roots, ""))
    while todo:
        call, prefix, below = todo.pop()
        lines.append(TreeLine(call, prefix, max(0, len(call.parents) - 1)))
        followers = children.get(call.id, [])
        if len(followers) == 1:
            todo.append((followers[0], below, below))
        else:
            todo += _branches(followers, below)
    return lines


def _branches(calls: list[TracedCall], below: str) -> Iterator[tuple[TracedCall, str, str]]:
    """The branches from the last to the first, as a stack wants them."""
    for place in range(len(calls) - 1, -1, -1):
        is_last = place == len(calls) - 1
        yield calls[place], below + ("└ " if is_last else "├ "), below + ("  " if is_last else "│ ")


def show_json(waiting: Waiting) -> dict[str, Any]:
    """The trace in short as plain JSON types."""
    trace = waiting.trace
    return {
        "schema": trace.schema,
        "engine": {
            "kind": trace.engine.kind,
            "model": trace.engine.model,
            "replicas": trace.engine.replicas,
            "seats": trace.engine.seats or None,
        },
        "policy": trace.policy,
        "started_at": trace.started_at,
        "losses": list(trace.losses),
        "programs": [_program_json(waiting, program) for program in trace.programs],
    }


def _program_json(waiting: Waiting, program: TracedProgram) -> dict[str, Any]:
    numbers = {call.id: call.number for call in program.calls}
    return {
        "id": program.id,
        "name": program.name,
        "status": program.status,
        "calls": sum(call.kind == "llm" for call in program.calls),
        "tools": sum(call.kind == "tool" for call in program.calls),
        "response_s": program.response_s,
        "wait_s": program.wait_s,
        "service_s": program.service_s,
        "tool_s": program.tool_s,
        "critical_path_s": program.critical_path_s,
        "critical_path": list(program.critical_path),
        "token_latency_s": program.token_latency_s,
        "causes": program_causes(waiting, program),
        "tree": [
            {
                "call": line.call.id,
                "number": line.call.number,
                "title": line.call.title,
                "kind": line.call.kind,
                "status": line.call.status,
                "parents": [numbers[p.id] for p in line.call.parents if p.id in numbers],
                "start_s": line.call.start_s,
                "end_s": line.call.end_s,
                "wait_s": line.call.wait_s,
                "service_s": line.call.service_s,
                "on_critical_path": line.call.id in program.critical_path,
            }
            for line in tree_lines(program)
        ],
    }


def program_causes(waiting: Waiting, program: TracedProgram) -> dict[Cause, float]:
    """Seconds that a program's calls waited, by cause, most first."""
    total: dict[Cause, float] = defaultdict(float)
    for call in program.calls:
        for cause, seconds in waiting.causes(call).items():
            if seconds > 0:
                total[cause] += seconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def render(
    waiting: Waiting,
    console: Console,
    *,
    program: TracedProgram | None = None,
    most_calls: int | None = MOST_CALLS,
) -> RenderableType:
    """The programs and the tree of one of them, as wide as the console.

    Args:
        program: whose tree; None is the one that took longest.
        most_calls: lines of the tree; None for all.
    """
    trace = waiting.trace
    chosen = program or max(trace.programs, key=lambda p: p.response_s, default=None)
    parts: list[RenderableType] = [_head(trace), _programs(waiting, console.width)]
    parts[1:1] = [Text(line, style="red") for line in replica_lines(trace)]
    if chosen is not None and chosen.calls:
        parts += [Text(), _tree(waiting, chosen, console, most_calls)]
    return Group(*parts)


def replica_lines(trace: Trace) -> list[str]:
    """What happened to the replicas, a line each; starts and stops are not worth one."""
    lines: list[str] = []
    lost_s: dict[int, float] = {}
    for change in trace.replica_changes:
        if change.state == "lost":
            lost_s.setdefault(change.replica, change.at_s)
        elif change.state in ("serving", "failed") and change.replica in lost_s:
            since_s = lost_s.pop(change.replica)
            what = "served again" if change.state == "serving" else "was given up"
            lines.append(
                f"replica {change.replica} was lost at {since_s:.1f} s and {what} at "
                f"{change.at_s:.1f} s"
            )
    lines += [f"replica {replica} was lost at {at_s:.1f} s" for replica, at_s in lost_s.items()]
    return lines


def _head(trace: Trace) -> Text:
    engine = trace.engine
    seats = f" of {engine.seats} seats" if engine.seats else ""
    replicas = f"{engine.replicas} replica{'' if engine.replicas == 1 else 's'}{seats}"
    calls = sum(1 for _ in trace.calls())
    programs = len(trace.programs)
    return Text(
        f"{engine.kind} {engine.model}, {replicas}, policy {trace.policy}: "
        f"{programs} program{'' if programs == 1 else 's'}, "
        f"{calls} call{'' if calls == 1 else 's'}, {trace.end_s:.1f} s",
        style="bold",
    )


def _programs(waiting: Waiting, width: int) -> RenderableType:
    programs = waiting.trace.programs
    shown = programs
    if len(programs) > MOST_PROGRAMS:
        shown = tuple(sorted(programs, key=lambda p: -p.response_s)[:MOST_PROGRAMS])
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    name_width = min(max((len(label(p.name, p.id, 30)) for p in shown), default=7), width // 4)
    table.add_column("program", width=name_width, no_wrap=True)
    table.add_column("status", no_wrap=True)
    for head in ("calls", "resp. s", "wait s", "serv. s", "path s", "its %"):
        table.add_column(head, justify="right", no_wrap=True)
    if width >= _WIDE:
        table.add_column("waited most for", overflow="ellipsis", no_wrap=True)
    for program in shown:
        share = program.critical_path_s / program.response_s if program.response_s > 0 else None
        causes = [_most_for(program_causes(waiting, program), program.wait_s)]
        table.add_row(
            Text(label(program.name, program.id, name_width)),
            Text(program.status, STYLES[program.status]),
            count_text(len(program.calls)),
            seconds_text(program.response_s),
            seconds_text(program.wait_s),
            seconds_text(program.service_s),
            seconds_text(program.critical_path_s),
            percent_text(share),
            *(causes if width >= _WIDE else ()),
        )
    parts: list[RenderableType] = [table]
    if len(shown) < len(programs):
        more = f"{len(programs) - len(shown)} more programs (the longest are shown)"
        parts.append(Text(more, style="dim"))
    parts += _causes_of_all(waiting)
    return Group(*parts)


def _causes_of_all(waiting: Waiting) -> Iterator[Text]:
    total: Counter[Cause] = Counter()
    for call in waiting.trace.calls():
        total.update(waiting.causes(call))
    all_s = sum(total.values())
    if all_s < 1e-3:
        return
    parts = [
        f"{CAUSES[cause]} {s / all_s:.0%}" for cause, s in total.most_common() if s >= all_s / 200
    ]
    yield Text.assemble(("waited ", "bold"), f"{all_s:,.1f} s: " + "; ".join(parts))


def _most_for(causes: dict[Cause, float], wait_s: float) -> str:
    if not causes or wait_s < 1e-3:
        return ""
    cause, seconds = next(iter(causes.items()))
    return f"{CAUSES[cause]} ({seconds / sum(causes.values()):.0%})"


# The tree of one program.


def _tree(
    waiting: Waiting, program: TracedProgram, console: Console, most_calls: int | None
) -> RenderableType:
    lines = tree_lines(program)
    shown = lines if most_calls is None else lines[:most_calls]
    critical = frozenset(program.critical_path)
    titles = [f"{line.prefix}● {line.call.title}{_joins(line)}" for line in shown]
    title_width = min(max(len(program.id), *map(len, titles)), max(16, console.width // 3))
    bar_width = max(8, console.width - title_width - 36)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(Text(clip(program.id, title_width)), width=title_width, no_wrap=True)
    for head in ("no.", "begin s", "wait s", "serv. s"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", width=bar_width, no_wrap=True)
    utf8 = console.encoding.lower().startswith("utf")
    for line in shown:
        call = line.call
        on_path = call.id in critical
        title = f"{line.prefix}{'●' if on_path else '○'} {call.title}{_joins(line)}"
        style = STYLES["failed"] if call.status in ("failed", "aborted") else ""
        title_text = Text(_drawn(clip(title, title_width), utf8), style or ("bold" * on_path))
        table.add_row(
            title_text,
            str(call.number),
            seconds_text(call.start_s),
            seconds_text(call.wait_s) if call.kind == "llm" else "",
            seconds_text(call.service_s if call.kind == "llm" else _lasts(call)),
            _bar(waiting, program, call, bar_width, utf8),
        )
    path = (
        f"critical path: {len(critical)} calls, {program.critical_path_s:.2f} s of service "
        f"({percent_text(program.critical_path_s / program.response_s) or '-'} of the response "
        "time)"
        if program.response_s > 0
        else "critical path: no service was measured"
    )
    notes: list[RenderableType] = [table]
    if len(shown) < len(lines):
        notes.append(Text(f"{len(lines) - len(shown)} more calls: --all shows them", "dim"))
    notes.append(Text(_drawn(f"● {path}", utf8), "dim"))
    legend = "█ running  ░ waiting  ▒ lost its seat  ━ in tool  · on its way"
    notes.append(Text(_drawn(legend, utf8), "dim"))
    return Group(*notes)


def _joins(line: TreeLine) -> str:
    return f" (joins {line.joins + 1})" if line.joins else ""


def _lasts(call: TracedCall) -> float:
    return (call.end_s or call.start_s) - call.start_s


def _drawn(text: str, utf8: bool) -> str:
    return text if utf8 else text.translate(_PLAIN)


def _bar(
    waiting: Waiting, program: TracedProgram, call: TracedCall, width: int, utf8: bool
) -> Text:
    """The call's phases on its program's time."""
    start_s = program.start_s
    scale = width / max(program.last_s - start_s, 1e-9)
    cells = [(" ", "")] * width
    # A short phase must not hide a longer one in the cell that both touch.
    for phase in sorted(waiting.phases[call.id], key=lambda phase: phase.lasts_s):
        first = min(width - 1, max(0, int((phase.start_s - start_s) * scale)))
        last = min(width, max(first + 1, round((phase.end_s - start_s) * scale)))
        for cell in range(first, last):
            cells[cell] = _BARS[phase.kind]
    text = Text()
    for mark, style in cells:
        text.append(_drawn(mark, utf8), style)
    text.rstrip()
    return text
