"""Moments of runs for the tests of the views."""

from __future__ import annotations

from dataclasses import replace

from autellix.tracing.live_rates import Rates
from autellix.tracing.snapshot import CallNode, ProgramGraph, ProgramRow, ReplicaRow, RunSnapshot

STATES = ("running", "waiting", "in tool", "done", "running", "failed", "interrupted", "cancelled")
WORDS = {
    "running": "expand x3 1.2s",
    "waiting": "a seat, 3 ahead",
    "in tool": "look_up 2.1s",
    "interrupted": "a person",
}


def program(index: int, **more) -> ProgramRow:
    """One of many; the figures follow from the index."""
    state = more.get("state", STATES[index % len(STATES)])
    values = {
        "id": f"tree_search-{index + 1}",
        "name": "tree_search",
        "state": state,
        "level": 1 + index % 4 if state in ("running", "waiting") else None,
        "calls_done": (7 * index) % 31,
        "calls_running": 3 if state == "running" else 0,
        "calls_waiting": 2 if state == "waiting" else 0,
        "tools": (3 * index) % 10,
        "tokens": 150 + 321 * (index % 8),
        "attained_s": 2.5 + 1.75 * (index % 12),
        "critical_path_s": 1.25 + 0.85 * (index % 9),
        "wait_s": 0.4 * (index % 14),
        "response_s": 12.0 + 2.25 * ((5 * index) % 13),
        "waits_for": WORDS.get(state, ""),
        **more,
    }
    return ProgramRow(**values)


def replica(index: int, **more) -> ReplicaRow:
    """One of many, in the same state."""
    values = {
        "index": index,
        "running": 6,
        "waiting": 9,
        "seats": 8,
        "running_by_level": (2, 3, 1, 0, 0, 0, 0, 0),
        "waiting_by_level": (0, 1, 4, 3, 1, 0, 0, 0),
        "kv_usage": 0.43,
        "step_s": 0.031,
        "preemptions": 12,
        "promotions": 3,
        "demotions": 40,
        **more,
    }
    return ReplicaRow(**values)


def snapshot(programs: int = 12, replicas: int = 1, **more) -> RunSnapshot:
    """A run of so many programs on so many replicas."""
    rows = tuple(program(index) for index in range(programs))
    values = {
        "elapsed_s": 83.4,
        "title": "tree_search.py",
        "engine": "vllm",
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "policy": "atlas",
        "programs": rows,
        "replicas": tuple(replica(index) for index in range(replicas)),
        "calls_done": 412,
        "tokens": 16_680,
        "tokens_per_s": 200.0,
        "service_s": 321.2,
        "wait_s": 120.2,
        "programs_running": sum(row.is_live for row in rows),
        "programs_done": sum(row.state == "done" for row in rows),
        "programs_failed": sum(row.state == "failed" for row in rows),
        "programs_total": 40,
        **more,
    }
    return RunSnapshot(**values)


def rates_of(last: RunSnapshot) -> Rates:
    """Rates as after half a minute that led to a snapshot."""
    rates = Rates()
    for age in range(30, 0, -1):
        rates.take(
            replace(
                last,
                elapsed_s=last.elapsed_s - age,
                tokens=last.tokens - 200 * age - 60 * (age % 3),
                replicas=tuple(
                    replace(
                        row, preemptions=row.preemptions - age // 5, demotions=row.demotions - age
                    )
                    for row in last.replicas
                ),
            )
        )
    rates.take(last)
    return rates


def call(*parents: int, kind: str = "llm", edge: str = "trigger", **more) -> CallNode:
    """A call that has ended, after others."""
    values = {
        "label": "act" if kind == "llm" else "look_up",
        "state": "done",
        "took_s": 0.5,
        "tokens": 20 if kind == "llm" else 0,
        "level": 1 if kind == "llm" else None,
        **more,
    }
    return CallNode(kind=kind, parents=tuple((parent, edge) for parent in parents), **values)


def graph(*nodes: CallNode, program: str = "tree_search-1", hidden: int = 0) -> ProgramGraph:
    """The DAG of a program."""
    return ProgramGraph(program=program, nodes=nodes, hidden=hidden)


def tree_search(rounds: int = 3, width: int = 3) -> ProgramGraph:
    """Rounds of expanding, rating and reflecting, the last one under way."""
    nodes: list[CallNode] = []
    before: tuple[int, ...] = ()
    superstep = 0
    for number in range(rounds):
        for label in ("expand", "evaluate", "reflect"):
            superstep += 1
            last = number == rounds - 1 and label == "evaluate"
            if number == rounds - 1 and label == "reflect":
                break
            first = len(nodes)
            for branch in range(1 if label == "reflect" else width):
                state = ("done", "running", "waiting")[min(branch, 2)] if last else "done"
                nodes.append(
                    call(
                        *before,
                        label=label,
                        state=state,
                        superstep=superstep,
                        took_s=1.2 + branch / 7,
                        tokens=32,
                        level=2,
                        is_critical=not last and (branch == 1 or label == "reflect"),
                    )
                )
            before = tuple(range(first, len(nodes)))
    return graph(*nodes)
