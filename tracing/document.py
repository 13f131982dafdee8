"""The trace document: one JSON object per run, as ``trace.schema.json`` describes it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..scheduler.tickets import Decision
from .dag import ProgramDag
from .events import (
    SCHEMA_VERSION,
    ContentRecorded,
    ProgramStatus,
    ReplicaChanged,
    RunStarted,
)


@cache
def load_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the trace document."""
    return json.loads(Path(__file__).with_name("trace.schema.json").read_text(encoding="utf-8"))


def run_document(
    run: RunStarted,
    programs: Iterable[dict[str, Any]],
    changes: Sequence[ReplicaChanged] = (),
) -> dict[str, Any]:
    """The whole document of a run.

    Args:
        run: the run's facts.
        programs: what :func:`program_document` made of each program.
        changes: what happened to its replicas.
    """
    return {**run_head(run, changes), "programs": list(programs)}


def run_head(run: RunStarted, changes: Sequence[ReplicaChanged] = ()) -> dict[str, Any]:
    """The document of a run without its programs."""
    engine: dict[str, Any] = {"kind": run.engine, "model": run.model, "replicas": run.replicas}
    for name in ("seats", "kv_tokens", "block_tokens", "token_budget"):
        if value := getattr(run, name):
            engine[name] = value
    head: dict[str, Any] = {"schema": SCHEMA_VERSION, "engine": engine, "policy": run.policy}
    if run.started_at is not None:
        head["started_at"] = run.started_at
    if run.scheduler is not None:
        head["scheduler"] = {name: _json_value(value) for name, value in run.scheduler.items()}
    if changes:
        head["replica_changes"] = [
            {"at_s": change.at_s, "replica": change.replica, "state": change.state}
            for change in changes
        ]
    return head


def program_document(
    dag: ProgramDag,
    *,
    name: str,
    status: ProgramStatus,
    start_s: float,
    end_s: float | None,
    error: str | None,
    origin_s: float,
    now_s: float,
    contents: Mapping[str, ContentRecorded] | None = None,
) -> dict[str, Any]:
    """One program of the document.

    Args:
        dag: the program's calls.
        name: the program's name.
        status: its state at the end of the run.
        start_s: when its first turn began, seconds since the run's start.
        end_s: when its last turn ended, None while one runs.
        error: message of a failed program.
        origin_s: the machine's monotonic clock at the run's start, seconds.
        now_s: calls that still run count up to here, seconds since the run's start.
        contents: what calls asked and were answered, by call id.
    """
    contents = contents or {}
    document: dict[str, Any] = {
        "id": dag.program,
        "name": name,
        "status": status,
        "start_s": _seconds(start_s),
        "end_s": _seconds(end_s),
        "response_s": _seconds(dag.response_s(now_s)),
        "service_s": _seconds(dag.service_s),
        "wait_s": _seconds(dag.wait_s),
        "tool_s": _seconds(dag.tool_s),
        "critical_path_s": _seconds(dag.critical_path_s),
        "critical_path": dag.critical_path(),
        "calls": [
            _call_document(dag, call, origin_s, contents.get(call))
            for call in dag.graph
            if call not in dag.earlier
        ],
    }
    if dag.earlier:
        document["earlier"] = [
            {"id": id, "critical_path_s": _seconds(length)} for id, length in dag.earlier.items()
        ]
    if error is not None:
        document["error"] = error
    return document


def _call_document(
    dag: ProgramDag, call: str, origin_s: float, content: ContentRecorded | None
) -> dict[str, Any]:
    attributes = dag.call(call)
    receipt = attributes["receipt"]
    decisions = receipt.decisions if receipt else ()
    document: dict[str, Any] = {
        "id": call,
        "kind": attributes["kind"],
        "name": attributes["name"],
        "node": attributes["node"],
        "parents": [{"id": parent, "kind": kind} for parent, kind in dag.parents(call)],
        "start_s": _seconds(attributes["start_s"]),
        "end_s": _seconds(attributes["end_s"]),
        "service_s": _seconds(attributes["service_s"]),
        "wait_s": _seconds(receipt.wait_s) if receipt else 0.0,
        "attained_s": _seconds(attributes["attained_s"]),
        "replica": receipt.replica if receipt else None,
        "levels": list(receipt.levels) if receipt else [],
        "preemptions": receipt.preemptions if receipt else 0,
        "prompt_tokens": receipt.prompt_tokens if receipt else 0,
        "cached_tokens": receipt.cached_tokens if receipt else 0,
        "output_tokens": receipt.output_tokens if receipt else 0,
        "status": attributes["status"],
        "events": [_event_document(decision, origin_s) for decision in decisions],
    }
    if attributes["attempt"] > 1:
        document["attempt"] = attributes["attempt"]
    if attributes["first_token_s"] is not None:
        document["first_token_s"] = _seconds(attributes["first_token_s"])
    if attributes["error"] is not None:
        document["error"] = attributes["error"]
    if content is not None:
        document["content"] = {"prompt": content.prompt, "answer": content.answer}
    return document


def _event_document(decision: Decision, origin_s: float) -> dict[str, Any]:
    return {
        "at_s": _seconds(decision.at_s - origin_s),
        "kind": decision.kind,
        "level": decision.level,
        "reason": decision.reason,
    }


def _seconds(value: float | None) -> float | None:
    """Nanoseconds are finer than any clock here; more digits would only swell the file."""
    return None if value is None else round(float(value), 9)


def _json_value(value: Any) -> Any:
    """A setting may be infinite, which JSON has no number for: it is written as a text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
