"""A trace as values: what everything that reads a trace works on.

:mod:`autellix.tracing.trace_file` makes them from files; times are seconds since the run's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autellix.errors import UsageError

from ..scheduler.tickets import CallStatus
from .dag import CallKind, EdgeKind
from .events import ProgramStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedEvent:
    """A decision of the scheduler; ``level`` counts from 1 and holds from then on."""

    at_s: float
    kind: str
    level: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedParent:
    """An immediate predecessor; its id may stand for calls of an earlier run."""

    id: str
    kind: EdgeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """One call; the fields are those of the trace document.

    Attributes:
        number: place among its program's calls, from 1.
        program: id of its program.
        content: "prompt" and "answer" as text; None unless the run recorded them.
        attempt: which attempt of its node made it, from 1.
    """

    number: int
    program: str
    id: str
    kind: CallKind
    name: str
    node: str | None
    parents: tuple[TracedParent, ...]
    start_s: float
    first_token_s: float | None
    end_s: float | None
    service_s: float
    wait_s: float
    attained_s: float
    replica: int | None
    levels: tuple[int, ...]
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    status: CallStatus
    error: str | None
    events: tuple[TracedEvent, ...]
    content: Mapping[str, str] | None = None
    attempt: int = 1

    @property
    def handle(self) -> str:
        """Short name, unique in the trace: program and number."""
        return f"{self.program}/{self.number}"

    @property
    def title(self) -> str:
        """What a person calls it: the tool, or the node that asks the model."""
        return self.name if self.kind == "tool" else self.node or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """One program; the fields are those of the trace document.

    Attributes:
        earlier: critical paths of earlier runs that it goes on from, seconds, by id.
    """

    id: str
    name: str
    status: ProgramStatus
    start_s: float
    end_s: float | None
    response_s: float
    service_s: float
    wait_s: float
    tool_s: float
    critical_path_s: float
    critical_path: tuple[str, ...]
    calls: tuple[TracedCall, ...]
    earlier: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def last_s(self) -> float:
        """When it ended; for one that still runs the last thing known of it."""
        if self.end_s is not None:
            return self.end_s
        return max((call.end_s or call.start_s for call in self.calls), default=self.start_s)

    @property
    def output_tokens(self) -> int:
        """Tokens that its calls generated."""
        return sum(call.output_tokens for call in self.calls)

    @property
    def token_latency_s(self) -> float | None:
        """Program token latency: response time per token; None where it generated none."""
        tokens = self.output_tokens
        return self.response_s / tokens if tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a trace says of its engine; 0 where it does not say.

    Attributes:
        seats: calls that one replica can run at once.
        kv_tokens, block_tokens: size of one replica's KV cache and of its blocks, tokens.
        token_budget: most tokens that one step computes.
    """

    kind: str
    model: str
    replicas: int
    seats: int = 0
    kv_tokens: int = 0
    block_tokens: int = 0
    token_budget: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplicaChange:
    """A replica, by its index, has come into another state."""

    at_s: float
    replica: int
    state: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A whole trace.

    Attributes:
        schema: version that the file was written in.
        started_at: the run's start, seconds since 1970; None where the file does not say.
        scheduler: settings of the scheduler; empty where the file does not say.
        losses: what of the file could not be read, in sentences.
        replica_changes: where replicas were lost, served again, came or went.
    """

    schema: int
    engine: EngineFacts
    policy: str
    programs: tuple[TracedProgram, ...]
    started_at: float | None = None
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    replica_changes: tuple[ReplicaChange, ...] = ()

    def calls(self) -> Iterator[TracedCall]:
        """Every call, program by program."""
        for program in self.programs:
            yield from program.calls

    @cached_property
    def by_id(self) -> Mapping[str, TracedCall]:
        """Every call by its id."""
        return {call.id: call for call in self.calls()}

    @cached_property
    def end_s(self) -> float:
        """The last thing known of the run."""
        ends = [program.last_s for program in self.programs]
        ends += [call.end_s for call in self.calls() if call.end_s is not None]
        return max(ends, default=0.0)

    def program(self, name: str) -> TracedProgram:
        """The program of that id, or the only one whose id begins so.

        Raises:
            UsageError: there is none, or there are several.
        """
        exact = [program for program in self.programs if program.id == name]
        found = exact or [program for program in self.programs if program.id.startswith(name)]
        if len(found) == 1:
            return found[0]
        listed = _listed([program.id for program in found or self.programs])
        if found:
            raise UsageError(f"{name!r} is the start of {len(found)} programs' ids: {listed}.")
        raise UsageError(f"The trace has no program {name!r}; it has {listed or 'no program'}.")

    def call(self, name: str) -> TracedCall:
        """A call by its id, by a part of it that no other id has, or as PROGRAM/NUMBER.

        Raises:
            UsageError: there is none, or there are several.
        """
        if name in self.by_id:
            return self.by_id[name]
        program, slash, number = name.rpartition("/")
        if slash and number.isdecimal():
            calls = self.program(program).calls
            if 1 <= int(number) <= len(calls):
                return calls[int(number) - 1]
            raise UsageError(f"Program {program!r} has calls 1 to {len(calls)}, got {number}.")
        found = [call for id, call in self.by_id.items() if name and name in id]
        if len(found) == 1:
            return found[0]
        if found:
            listed = _listed([f"{call.id} ({call.handle})" for call in found])
            raise UsageError(f"{name!r} fits {len(found)} calls: {listed}.")
        raise UsageError(
            f"The trace has no call {name!r}. Give PROGRAM/NUMBER or a call's id, as `autellix "
            "trace show` lists them."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
