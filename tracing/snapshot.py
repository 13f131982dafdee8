"""What the views show: frozen values of one moment of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ProgramState = Literal[
    "running", "waiting", "in tool", "interrupted", "done", "failed", "cancelled"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """One program.

    Attributes:
        state: "waiting" when all its outstanding calls are in the engine's queues, "in tool" when
            it has no outstanding call but a running tool; "running" otherwise, until it ends.
        level: best level of its outstanding calls, counted from 1; None when unknown.
        calls_done, calls_running, calls_waiting: LLM calls that ended, hold a seat, or queue.
        tools: tool calls so far.
        tokens: output tokens of its ended calls.
        attained_s: service of its calls so far, seconds.
        critical_path_s: service along the critical path so far, seconds.
        wait_s: time its calls spent in the engine's queues, seconds.
        response_s: response time so far, seconds.
        waits_for: what it waits for right now, in words; empty once it has ended.
    """

    id: str
    name: str
    state: ProgramState
    level: int | None = None
    calls_done: int = 0
    calls_running: int = 0
    calls_waiting: int = 0
    tools: int = 0
    tokens: int = 0
    attained_s: float = 0.0
    critical_path_s: float = 0.0
    wait_s: float = 0.0
    response_s: float = 0.0
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica.

    Attributes:
        running, waiting: calls with and without a seat.
        seats: how many calls can run at once; 0 when unknown.
        running_by_level, waiting_by_level: the same per level, best level first.
        kv_usage: share of the KV cache in use, 0 to 1.
        step_s: typical duration of an engine step, seconds.
        preemptions, promotions, demotions: totals since the start.
    """

    index: int
    running: int = 0
    waiting: int = 0
    seats: int = 0
    running_by_level: tuple[int, ...] = ()
    waiting_by_level: tuple[int, ...] = ()
    kv_usage: float = 0.0
    step_s: float = 0.0
    preemptions: int = 0
    promotions: int = 0
    demotions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A whole run at one moment.

    Attributes:
        elapsed_s: since the run's start, seconds.
        calls_done: LLM calls that ended.
        tokens_per_s: output tokens of ended calls per second of the run so far.
        programs_running, programs_done, programs_failed: how many run, ended well, or failed.
        programs_total: how many there will be where that is known, else how many have started.
    """

    elapsed_s: float
    programs: tuple[ProgramRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    calls_done: int = 0
    tokens_per_s: float = 0.0
    programs_running: int = 0
    programs_done: int = 0
    programs_failed: int = 0
    programs_total: int = 0
