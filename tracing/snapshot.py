"""What the views show: frozen values of one moment of a run."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from .dag import EdgeKind, NodeKind
from .events import ReplicaState

ProgramState = Literal[
    "running", "waiting", "in tool", "interrupted", "done", "failed", "cancelled"
]
NodeState = Literal["running", "waiting", "done", "failed", "aborted"]

LIVE: tuple[ProgramState, ...] = ("running", "waiting", "in tool")

_MOMENT_S = 1e-3  # a response time of which no share or rate can be told


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCalls:
    """Where the live calls are in the engine, by call id.

    Attributes:
        levels: level of each, from 1; what is not in it has not reached the engine's queue.
        places: of those without a seat, how many get one before them.
        preempted: those that have had a seat and lost it.
        tokens: output tokens so far.
        known: False where the engine was not asked or did not answer; the rest is empty then.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    preempted: Set[str] = frozenset()
    tokens: Mapping[str, int] = field(default_factory=dict)
    known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRow:
    """One program.

    Attributes:
        state: "waiting" when none of its outstanding calls holds a seat, "in tool" when it has no
            outstanding call but a running tool; "running" otherwise, until it ends.
        level: best level of its outstanding calls, counted from 1; None when unknown.
        calls_done, calls_running, calls_waiting: LLM calls that ended, hold a seat, or do not.
        tools: tool calls so far.
        tokens: output tokens of its calls so far.
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

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVE

    @property
    def path_share(self) -> float | None:
        """Part of the response time that is service along the critical path; None without any."""
        return self.critical_path_s / self.response_s if self.response_s > _MOMENT_S else None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens per second of response time; None without any."""
        return self.tokens / self.response_s if self.response_s > _MOMENT_S else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica.

    Attributes:
        state: where it does not serve, the rest says nothing.
        running, waiting: calls with and without a seat.
        seats: how many calls can run at once; 0 when unknown.
        running_by_level, waiting_by_level: the same per level, best level first.
        kv_usage: share of the device KV cache in use, 0 to 1.
        kv_host_usage: share of the host KV tier in use, 0 to 1; None where there is none.
        step_s: typical duration of an engine step, seconds.
        preemptions, promotions, demotions, swaps: totals since the start.
    """

    index: int
    state: ReplicaState = "serving"
    running: int = 0
    waiting: int = 0
    seats: int = 0
    running_by_level: tuple[int, ...] = ()
    waiting_by_level: tuple[int, ...] = ()
    kv_usage: float = 0.0
    kv_host_usage: float | None = None
    step_s: float = 0.0
    preemptions: int = 0
    promotions: int = 0
    demotions: int = 0
    swaps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNode:
    """A call in the picture of its program's DAG.

    Attributes:
        label: its graph node or task, a tool's name, else the model's name.
        superstep: from 1; counts those in which calls were made.
        took_s: service of a call that has its receipt, duration of a tool that ended, else the time
            since its start, seconds.
        wait_s: time in the engine's queues, where it is known, seconds.
        tokens: output tokens so far.
        level: where it is, or was last; None when unknown.
        is_critical: whether it lies on the critical path.
        parents: immediate predecessors in the picture, by their place in ``ProgramGraph.nodes``,
            with the kind of the edge.
    """

    kind: NodeKind
    label: str
    state: NodeState
    superstep: int = 1
    took_s: float = 0.0
    wait_s: float = 0.0
    tokens: int = 0
    level: int | None = None
    is_critical: bool = False
    parents: tuple[tuple[int, EdgeKind], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramGraph:
    """The DAG of a program at one moment, its newest calls at least.

    Attributes:
        nodes: calls in the order in which they began, which is a topological order.
        hidden: how many earlier calls are left out.
    """

    program: str
    nodes: tuple[CallNode, ...] = ()
    hidden: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A whole run at one moment.

    Attributes:
        elapsed_s: since the run's start, seconds.
        title: what runs, e.g. "agent.py".
        engine, model, policy: as in the trace.
        programs: all that run, and of those that have ended the last ones.
        calls_done: LLM calls that ended.
        tokens: output tokens of all calls so far.
        tokens_per_s: the same per second of the run so far.
        service_s, wait_s: sums over the calls that have their receipts, seconds.
        programs_running, programs_done, programs_failed: how many run, ended well, or failed.
        programs_total: how many there will be where that is known, else how many have started.
        ended: whether the run is over.
    """

    elapsed_s: float
    title: str = ""
    engine: str = ""
    model: str = ""
    policy: str = ""
    programs: tuple[ProgramRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    calls_done: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    service_s: float = 0.0
    wait_s: float = 0.0
    programs_running: int = 0
    programs_done: int = 0
    programs_failed: int = 0
    programs_total: int = 0
    ended: bool = False
