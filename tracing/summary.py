"""What is said at a run's end: a table of programs and the run's totals, or the same as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .notation import STYLES, count_text, label, percent_text, seconds_text

MOST_ROWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSummary:
    """One program in short.

    Attributes:
        calls, tools: LLM and tool calls.
        critical_path_share: part of the response time that is service along the critical path;
            None without response time.
        token_latency_s: response time per output token, s/token; None without output.
    """

    id: str
    name: str
    status: str
    calls: int
    tools: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    response_s: float
    wait_s: float
    service_s: float
    tool_s: float
    critical_path_s: float
    critical_path_share: float | None
    token_latency_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """All programs together.

    Attributes:
        statuses: how many programs ended in each way.
        makespan_s: from the first program's start to the last one's end, seconds.
        mean_token_latency_s, p95_token_latency_s: program token latency over the programs that
            generated tokens, s/token; None where none did.
    """

    programs: int
    statuses: dict[str, int]
    calls: int
    tools: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    wait_s: float
    service_s: float
    makespan_s: float
    mean_token_latency_s: float | None
    p95_token_latency_s: float | None


def program_summaries(document: Mapping[str, Any]) -> list[ProgramSummary]:
    """The programs of a trace document, in its order."""
    return [_program(program) for program in document["programs"]]


def run_totals(document: Mapping[str, Any]) -> RunTotals:
    """The totals of a trace document."""
    rows = program_summaries(document)
    latencies = sorted(row.token_latency_s for row in rows if row.token_latency_s is not None)
    starts = [program["start_s"] for program in document["programs"]]
    ends = [_last_s(program) for program in document["programs"]]
    return RunTotals(
        programs=len(rows),
        statuses=dict(Counter(row.status for row in rows)),
        calls=sum(row.calls for row in rows),
        tools=sum(row.tools for row in rows),
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        cached_tokens=sum(row.cached_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        wait_s=math.fsum(row.wait_s for row in rows),
        service_s=math.fsum(row.service_s for row in rows),
        makespan_s=max(ends) - min(starts) if rows else 0.0,
        mean_token_latency_s=math.fsum(latencies) / len(latencies) if latencies else None,
        p95_token_latency_s=percentile(latencies, 0.95) if latencies else None,
    )


def summary_json(document: Mapping[str, Any]) -> dict[str, Any]:
    """The summary as plain JSON types: ``{"programs": [...], "totals": {...}}``."""
    return {
        "programs": [asdict(row) for row in program_summaries(document)],
        "totals": asdict(run_totals(document)),
    }


def summary_table(
    document: Mapping[str, Any], width: int = 80, *, most_rows: int = MOST_ROWS
) -> RenderableType:
    """The table shown at a run's end, ``width`` cells wide (from 80).

    Args:
        document: the trace document.
        width: cells to fill at most.
        most_rows: with more programs than this, failed ones and the longest are shown and the
            others counted.
    """
    rows = program_summaries(document)
    totals = run_totals(document)
    shown = rows if len(rows) <= most_rows else sorted(rows, key=_worst_first)[:most_rows]
    parts: list[RenderableType] = [_table(shown, totals, width)]
    if len(shown) < len(rows):
        left_out = Counter(row.status for row in rows) - Counter(row.status for row in shown)
        text = f"{len(rows) - len(shown)} more programs: {_counted(left_out)}"
        parts.append(Text(f"{text} (failed and longest are shown)", style="dim"))
    parts.append(_totals_line(totals))
    return Group(*parts)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of sorted values lie, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _program(program: Mapping[str, Any]) -> ProgramSummary:
    calls = [call for call in program["calls"] if call["kind"] == "llm"]
    response_s, path_s = program["response_s"], program["critical_path_s"]
    # A program that was resumed goes on from paths of earlier runs; its response is this one's.
    earlier_s = max((one["critical_path_s"] for one in program.get("earlier") or ()), default=0.0)
    output = sum(call["output_tokens"] for call in calls)
    return ProgramSummary(
        id=program["id"],
        name=program["name"],
        status=program["status"],
        calls=len(calls),
        tools=len(program["calls"]) - len(calls),
        prompt_tokens=sum(call["prompt_tokens"] for call in calls),
        cached_tokens=sum(call["cached_tokens"] for call in calls),
        output_tokens=output,
        response_s=response_s,
        wait_s=program["wait_s"],
        service_s=program["service_s"],
        tool_s=program["tool_s"],
        critical_path_s=path_s,
        critical_path_share=(path_s - earlier_s) / response_s if response_s > 0 else None,
        token_latency_s=response_s / output if output else None,
    )


def _last_s(program: Mapping[str, Any]) -> float:
    """When a program ended; for one that still runs, the last thing known of it."""
    if program["end_s"] is not None:
        return program["end_s"]
    times = [call["end_s"] or call["start_s"] for call in program["calls"]]
    return max(times, default=program["start_s"])


def _worst_first(row: ProgramSummary) -> tuple[bool, float]:
    return row.status == "done", -row.response_s


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of figures: its head on a wide and on a narrow screen, its texts.

    Attributes:
        spare: where it is too narrow for all, the column with the largest goes first; 0 stays.
    """

    head: str
    narrow_head: str
    text: Callable[[ProgramSummary], str]
    total: Callable[[RunTotals], str] = lambda totals: ""
    spare: int = 0


_COLUMNS = (
    _Column("\ncalls", "\ncalls", lambda r: count_text(r.calls), lambda t: count_text(t.calls)),
    _Column(
        "\ntools",
        "\ntools",
        lambda r: count_text(r.tools),
        lambda t: count_text(t.tools),
        spare=1,
    ),
    _Column(
        "prompt\ntokens",
        "prompt\ntokens",
        lambda r: count_text(r.prompt_tokens),
        lambda t: count_text(t.prompt_tokens),
    ),
    _Column(
        "cached\ntokens",
        "\ncached",
        lambda r: count_text(r.cached_tokens),
        lambda t: count_text(t.cached_tokens),
        spare=2,
    ),
    _Column(
        "output\ntokens",
        "\noutput",
        lambda r: count_text(r.output_tokens),
        lambda t: count_text(t.output_tokens),
    ),
    _Column("response\ns", "resp.\ns", lambda r: seconds_text(r.response_s)),
    _Column(
        "wait\ns",
        "wait\ns",
        lambda r: seconds_text(r.wait_s),
        lambda t: seconds_text(t.wait_s),
    ),
    _Column(
        "service\ns",
        "serv.\ns",
        lambda r: seconds_text(r.service_s),
        lambda t: seconds_text(t.service_s),
    ),
    _Column("critical\npath s", "crit.\npath s", lambda r: seconds_text(r.critical_path_s)),
    _Column("share of\nresponse", "its\n%", lambda r: percent_text(r.critical_path_share), spare=3),
)
_WIDE = 100
_NAME_WIDTH = 12  # for names of at least this length, before any column of figures


def _table(rows: Sequence[ProgramSummary], totals: RunTotals, width: int) -> Table:
    status_width = max(len("status"), max((len(row.status) for row in rows), default=0))
    longest_name = max((len(label(row.name, row.id, width)) for row in rows), default=0)
    needed = status_width + 1 + max(len("program"), min(longest_name, _NAME_WIDTH))
    columns = _columns(rows, totals, width, needed)
    room = width - status_width - 1 - sum(column.width + 1 for column in columns)
    name_width = max(len("program"), min(room, longest_name))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nprogram", width=name_width, no_wrap=True)
    table.add_column("\nstatus", width=status_width, no_wrap=True)
    for column in columns:
        table.add_column(column.head, width=column.width, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        name, status = Text(label(row.name, row.id, name_width)), STYLES[row.status]
        figures = [column.texts[number] for column in columns]
        table.add_row(name, Text(row.status, status), *figures)
    table.add_row("total", "", *[column.total for column in columns], style="bold")
    return table


class _Filled(NamedTuple):
    """A column as it is shown."""

    head: str
    texts: list[str]
    total: str
    width: int
    spare: int


def _columns(
    rows: Sequence[ProgramSummary], totals: RunTotals, width: int, needed: int
) -> list[_Filled]:
    """The columns of figures that fit beside ``needed`` cells of names and statuses."""
    columns = []
    for column in _COLUMNS:
        head = column.head if width >= _WIDE else column.narrow_head
        texts, total = [column.text(row) for row in rows], column.total(totals)
        widest = max(map(len, [*head.split("\n"), *texts, total]))
        columns.append(_Filled(head, texts, total, widest, column.spare))
    while needed + sum(column.width + 1 for column in columns) > width:
        least = max(columns, key=lambda column: column.spare)
        if not least.spare:
            break
        columns.remove(least)
    return columns


def _totals_line(totals: RunTotals) -> Text:
    text = f"{totals.programs} programs ({_counted(totals.statuses)})"
    text += f"\nmakespan {totals.makespan_s:,.1f} s"
    if totals.mean_token_latency_s is not None and totals.p95_token_latency_s is not None:
        text += (
            f" · program token latency: mean {totals.mean_token_latency_s:.3g}, "
            f"P95 {totals.p95_token_latency_s:.3g} s/token"
        )
    return Text(text)


def _counted(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{statuses[s]} {s}" for s in STYLES if statuses.get(s)) or "none"
