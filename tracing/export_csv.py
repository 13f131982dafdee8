"""The calls of a trace as CSV, a row each."""

from __future__ import annotations

import csv
import io

from .phases import phases_of
from .trace import Trace, TracedCall, TracedProgram
from .waiting import CAUSES, Waiting

_FIELDS = (
    "program",
    "program_name",
    "number",
    "call",
    "kind",
    "name",
    "node",
    "status",
    "start_s",
    "first_token_s",
    "end_s",
    "service_s",
    "wait_s",
    "attained_s",
    "replica",
    "levels",
    "preemptions",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "critical",
    "parents",
)


def csv_text(trace: Trace) -> str:
    """A row for each call, tools too; what is not known is empty.

    Beside the fields of the trace there are the seconds waited for each cause (``wait_better`` and
    so on) and the seconds between program and engine (``way_s``).
    """
    waiting = Waiting(trace)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_FIELDS, *(f"wait_{cause}" for cause in CAUSES), "way_s"])
    for program in trace.programs:
        critical = frozenset(program.critical_path)
        for call in program.calls:
            causes = waiting.causes(call)
            way_s = sum(p.lasts_s for p in phases_of(call, trace.end_s) if p.kind == "on its way")
            writer.writerow(
                [
                    *_row(program, call, call.id in critical),
                    *(round(causes[cause], 9) for cause in CAUSES),
                    round(way_s, 9),
                ]
            )
    return out.getvalue()


def _row(program: TracedProgram, call: TracedCall, is_critical: bool) -> list[object]:
    return [
        program.id,
        program.name,
        call.number,
        call.id,
        call.kind,
        call.name,
        call.node,
        call.status,
        call.start_s,
        call.first_token_s,
        call.end_s,
        call.service_s,
        call.wait_s,
        call.attained_s,
        call.replica,
        " ".join(map(str, call.levels)),
        call.preemptions,
        call.prompt_tokens,
        call.cached_tokens,
        call.output_tokens,
        int(is_critical),
        " ".join(f"{parent.kind}:{parent.id}" for parent in call.parents),
    ]
