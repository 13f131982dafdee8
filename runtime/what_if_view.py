"""How predictions are shown: beside the recording, as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..tracing.notation import seconds_text
from .what_if import Prediction, WhatIf

MOST_PROGRAMS = 20
# Beyond this error the predictions are not to be relied on, and the view says so.
_TRUSTED = 0.15


def render(found: WhatIf, width: int) -> RenderableType:
    """The predictions for a terminal, ``width`` cells wide."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("response s", no_wrap=True)
    for head in ("replicas", "mean", "", "P95", "s/token", "makespan s", "preempt."):
        table.add_column(head, justify="right")
    table.add_row(
        Text(f"{found.trace.policy} (recorded)"),
        str(found.trace.engine.replicas),
        seconds_text(found.recorded_mean_s),
        "",
        seconds_text(found.recorded_p95_s),
        f"{_recorded_latency(found):.3g}",
        seconds_text(found.recorded_makespan_s),
        str(sum(call.preemptions for call in found.trace.calls())),
        style="bold",
    )
    rows = list(found.predictions)
    if found.baseline not in rows:
        rows.insert(0, found.baseline)
    for prediction in rows:
        table.add_row(*_row(found, prediction))
    return Group(table, Text(), _programs(found, rows, width), Text(), *_notes(found))


def _row(found: WhatIf, prediction: Prediction) -> list[str | Text]:
    ratio = prediction.mean_s / found.baseline.mean_s - 1
    change = Text("" if prediction is found.baseline else f"{ratio:+.0%}")
    change.stylize("green" if ratio < -0.02 else "red" if ratio > 0.02 else "dim")
    return [
        prediction.policy,
        str(prediction.replicas),
        seconds_text(prediction.mean_s),
        change,
        seconds_text(prediction.p95_s),
        f"{prediction.mean_token_latency_s:.3g}",
        seconds_text(prediction.makespan_s),
        str(prediction.preemptions),
    ]


def _recorded_latency(found: WhatIf) -> float:
    programs = [found.trace.program(id) for id in found.recorded_s]
    latencies = [p.token_latency_s for p in programs if p.token_latency_s is not None]
    return sum(latencies) / len(latencies) if latencies else 0.0


def _programs(found: WhatIf, rows: list[Prediction], width: int) -> RenderableType:
    """Response times of single programs, as many predictions beside them as fit."""
    shown = rows[: max(1, (width - 34) // 12)]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("response s of", no_wrap=True, overflow="ellipsis", max_width=22)
    table.add_column("recorded", justify="right")
    for prediction in shown:
        table.add_column(f"{prediction.policy} x{prediction.replicas}", justify="right")
    ordered = sorted(found.recorded_s.items(), key=lambda item: -item[1])
    for program, recorded_s in ordered[:MOST_PROGRAMS]:
        predicted = [seconds_text(p.responses_s[program]) for p in shown]
        table.add_row(Text(program), seconds_text(recorded_s), *predicted)
    more = len(ordered) - MOST_PROGRAMS
    return Group(table, Text(f"{more} more programs", "dim")) if more > 0 else table


def _notes(found: WhatIf) -> list[RenderableType]:
    baseline, model = found.baseline, found.model
    trusted = abs(found.error) <= _TRUSTED
    notes: list[RenderableType] = [
        Text(
            f"The recorded policy is predicted {abs(found.error):.1%} "
            f"{'above' if found.error > 0 else 'below'} what was recorded (mean response time), "
            f"single programs within {found.program_error:.0%} (median)."
            + ("" if trusted else " That is too much to rely on: was the machine busy otherwise?"),
            "" if trusted else "yellow",
        )
    ]
    if baseline.policy != found.trace.policy:
        notes.append(
            Text(f"{found.trace.policy} cannot be replayed; {baseline.policy} stands for it.")
        )
    step = model.engine.step
    how = f"fitted to {model.calls} calls" if model.calls else model.engine.name
    notes.append(
        Text(
            f"Engine ({how}): a step takes {step.a * 1e3:.3g} ms, {step.b * 1e3:.3g} ms a prompt "
            f"token, {step.c * 1e3:.3g} ms a call, {step.d * 1e3:.3g} ms a token of KV; "
            f"{model.engine.seats} seats, {model.engine.kv_tokens:,} tokens of KV."
        )
    )
    if model.assumed:
        notes.append(Text(f"Not in the trace, so assumed: {'; '.join(model.assumed)}.", "dim"))
    if found.replayed.live is not None:
        notes.append(Text(f"{found.replayed.live} programs at a time, as recorded.", "dim"))
    if found.replayed.left_out:
        left_out = len(found.replayed.left_out)
        notes.append(Text(f"{left_out} programs made no call that was served: left out.", "dim"))
    return notes


def what_if_json(found: WhatIf) -> dict[str, Any]:
    """The predictions as plain JSON types."""
    return {
        "recorded": {
            "policy": found.trace.policy,
            "replicas": found.trace.engine.replicas,
            "mean_s": found.recorded_mean_s,
            "p95_s": found.recorded_p95_s,
            "makespan_s": found.recorded_makespan_s,
            "responses_s": dict(found.recorded_s),
        },
        "model": {
            "engine": found.model.engine.to_dict(),
            "calls": found.model.calls,
            "median_error": found.model.median_error if found.model.calls else None,
            "assumed": list(found.model.assumed),
        },
        "programs_at_a_time": found.replayed.live,
        "left_out": list(found.replayed.left_out),
        "baseline": asdict(found.baseline),
        "error": found.error,
        "program_error": found.program_error,
        "predictions": [asdict(prediction) for prediction in found.predictions],
    }
