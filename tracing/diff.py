"""``autellix trace diff``: the same programs in two traces, e.g. under two policies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .notation import clip, seconds_text
from .summary import percentile
from .trace import Trace, TracedProgram

MOST_PROGRAMS = 40
_NOTICEABLE = 0.02  # what differs by less is called the same


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One of the two runs, over the programs that both have.

    Attributes:
        mean_response_s, p95_response_s: of the programs, seconds.
        mean_token_latency_s: program token latency, s/token; None where nothing was generated.
        makespan_s: from the first start to the last end, seconds.
    """

    policy: str
    replicas: int
    programs: int
    calls: int
    mean_response_s: float
    p95_response_s: float
    mean_token_latency_s: float | None
    makespan_s: float
    wait_s: float
    service_s: float
    preemptions: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramDiff:
    """One program in both.

    Attributes:
        ratio: response time in the second over that in the first; None without the first.
    """

    program: str
    other: str
    a_response_s: float
    b_response_s: float
    a_wait_s: float
    b_wait_s: float
    a_calls: int
    b_calls: int
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDiff:
    """What differs.

    Attributes:
        only_a, only_b: programs that only one of them has.
        differing_work: programs whose calls or tokens are not the same in both, so that their times
            differ for that reason too.
        unfinished: programs that did not come to their end in one of the two.
    """

    a: RunFigures
    b: RunFigures
    programs: tuple[ProgramDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differing_work: tuple[str, ...]
    unfinished: tuple[str, ...]

    @property
    def faster(self) -> int:
        """How many programs the second serves noticeably sooner."""
        return sum(p.ratio is not None and p.ratio < 1 - _NOTICEABLE for p in self.programs)

    @property
    def slower(self) -> int:
        """How many programs the second serves noticeably later."""
        return sum(p.ratio is not None and p.ratio > 1 + _NOTICEABLE for p in self.programs)


def diff(a: Trace, b: Trace) -> TraceDiff:
    """Compare two traces of the same programs.

    Programs are matched by id; those that are left by name, in the order in which they began
    (``plain`` ids are new in every run).
    """
    pairs, only_a, only_b = _matched(a.programs, b.programs)
    return TraceDiff(
        a=_figures(a, [one for one, _ in pairs]),
        b=_figures(b, [other for _, other in pairs]),
        programs=tuple(_program(one, other) for one, other in pairs),
        only_a=tuple(program.id for program in only_a),
        only_b=tuple(program.id for program in only_b),
        differing_work=tuple(one.id for one, other in pairs if _work(one) != _work(other)),
        unfinished=tuple(
            one.id for one, other in pairs if one.status != "done" or other.status != "done"
        ),
    )


def _matched(
    a: Sequence[TracedProgram], b: Sequence[TracedProgram]
) -> tuple[list[tuple[TracedProgram, TracedProgram]], list[TracedProgram], list[TracedProgram]]:
    by_id = {program.id: program for program in b}
    pairs = [(program, by_id.pop(program.id)) for program in a if program.id in by_id]
    left_a = [program for program in a if all(program is not one for one, _ in pairs)]
    left_b = list(by_id.values())
    seen: Counter[str] = Counter()
    by_turn: dict[tuple[str, int], TracedProgram] = {}
    for program in sorted(left_b, key=lambda p: p.start_s):
        by_turn[program.name, seen[program.name]] = program
        seen[program.name] += 1
    seen.clear()
    only_a: list[TracedProgram] = []
    for program in sorted(left_a, key=lambda p: p.start_s):
        other = by_turn.pop((program.name, seen[program.name]), None)
        seen[program.name] += 1
        if other is None:
            only_a.append(program)
        else:
            pairs.append((program, other))
    return pairs, only_a, list(by_turn.values())


def _work(program: TracedProgram) -> tuple[int, int]:
    return len(program.calls), program.output_tokens


def _program(a: TracedProgram, b: TracedProgram) -> ProgramDiff:
    return ProgramDiff(
        program=a.id,
        other=b.id,
        a_response_s=a.response_s,
        b_response_s=b.response_s,
        a_wait_s=a.wait_s,
        b_wait_s=b.wait_s,
        a_calls=len(a.calls),
        b_calls=len(b.calls),
        ratio=b.response_s / a.response_s if a.response_s > 0 else None,
    )


def _figures(trace: Trace, programs: Sequence[TracedProgram]) -> RunFigures:
    responses = sorted(program.response_s for program in programs)
    latencies = [p.token_latency_s for p in programs if p.token_latency_s is not None]
    calls = [call for program in programs for call in program.calls if call.kind == "llm"]
    span = max((p.last_s for p in programs), default=0.0) - min(
        (p.start_s for p in programs), default=0.0
    )
    return RunFigures(
        policy=trace.policy,
        replicas=trace.engine.replicas,
        programs=len(programs),
        calls=len(calls),
        mean_response_s=math.fsum(responses) / len(responses) if responses else 0.0,
        p95_response_s=percentile(responses, 0.95) if responses else 0.0,
        mean_token_latency_s=math.fsum(latencies) / len(latencies) if latencies else None,
        makespan_s=span,
        wait_s=math.fsum(program.wait_s for program in programs),
        service_s=math.fsum(program.service_s for program in programs),
        preemptions=sum(call.preemptions for call in calls),
        output_tokens=sum(program.output_tokens for program in programs),
    )


def diff_json(found: TraceDiff) -> dict[str, Any]:
    """The comparison as plain JSON types."""
    return {**asdict(found), "faster": found.faster, "slower": found.slower}


_ROWS: tuple[tuple[str, Callable[[RunFigures], float | None]], ...] = (
    ("mean response s", lambda run: run.mean_response_s),
    ("P95 response s", lambda run: run.p95_response_s),
    ("mean s/token", lambda run: run.mean_token_latency_s),
    ("makespan s", lambda run: run.makespan_s),
    ("waited s", lambda run: run.wait_s),
    ("service s", lambda run: run.service_s),
    ("preemptions", lambda run: run.preemptions),
    ("LLM calls", lambda run: run.calls),
    ("output tokens", lambda run: run.output_tokens),
)


def render(found: TraceDiff, names: tuple[str, str], width: int) -> RenderableType:
    """The comparison for a terminal.

    Args:
        names: of the two traces, for the heads of their columns.
        width: cells to fill at most.
    """
    head_width = max(12, (width - 34) // 2)
    totals = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    totals.add_column(f"programs in both: {len(found.programs)}")
    for name, run in zip(names, (found.a, found.b), strict=True):
        head = Text(f"{clip(name, head_width)}\n{run.policy}")
        totals.add_column(head, justify="right")
    totals.add_column("change", justify="right")
    for title, value in _ROWS:
        a, b = value(found.a), value(found.b)
        totals.add_row(title, _figure(a), _figure(b), _change(a, b))
    parts: list[RenderableType] = [totals, Text(), _by_program(found, width)]
    parts.append(Text(f"programs sooner: {found.faster}, later: {found.slower} (by 2 % or more)"))
    if found.differing_work:
        parts.append(
            Text(
                f"{len(found.differing_work)} of {len(found.programs)} programs made other calls "
                "or tokens in the second run: their times differ for that reason too",
                "yellow",
            )
        )
    if found.unfinished:
        parts.append(
            Text(
                f"{len(found.unfinished)} of {len(found.programs)} programs did not come to their "
                "end in both runs: their times say little",
                "yellow",
            )
        )
    for name, only in zip(names, (found.only_a, found.only_b), strict=True):
        if only:
            parts.append(Text(f"programs only in {name}: {len(only)}", "yellow"))
    return Group(*parts)


def _by_program(found: TraceDiff, width: int) -> RenderableType:
    ordered = sorted(found.programs, key=lambda p: p.b_response_s - p.a_response_s)
    left_out = len(ordered) - MOST_PROGRAMS
    if left_out > 0:  # those that gain most and those that lose most
        half = MOST_PROGRAMS // 2
        ordered = [*ordered[:half], *ordered[-half:]]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("program", max_width=max(10, width - 56), no_wrap=True, overflow="ellipsis")
    for head in ("response s", "", "change", "wait s", ""):
        table.add_column(head, justify="right")
    for program in ordered:
        table.add_row(
            Text(program.program),
            seconds_text(program.a_response_s),
            seconds_text(program.b_response_s),
            _change(program.a_response_s, program.b_response_s),
            seconds_text(program.a_wait_s),
            seconds_text(program.b_wait_s),
        )
    if left_out > 0:
        return Group(table, Text(f"{left_out} more programs in between", "dim"))
    return table


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _change(a: float | None, b: float | None) -> Text:
    if a is None or b is None or a <= 0:
        return Text("-" if a != b else "=", "dim")
    ratio = b / a - 1
    if abs(ratio) < 0.0005:
        return Text("=", "dim")
    return Text(f"{ratio:+.1%}", "green" if ratio < -_NOTICEABLE else "red" * (ratio > _NOTICEABLE))
