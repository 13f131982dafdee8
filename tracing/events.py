"""What happened in a run, as a stream of values.

The stream is the whole input of the trace: :class:`~autellix.tracing.record.RunRecord` folds it
while the run lasts, ``FILE.part`` keeps it line by line, and folding that file again gives the same
document. ``at_s`` is seconds since the run's start throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..scheduler.tickets import Receipt
from .dag import CallEnd, CallKind, EdgeKind

# Version of the trace document and of the lines of ``FILE.part``. 2 added what the engine holds,
# the scheduler's settings, the run's date and, where asked for, what calls say.
SCHEMA_VERSION = 2

ProgramEnd = Literal["done", "failed", "interrupted", "cancelled"]
ReplicaState = Literal["starting", "serving", "lost", "draining", "stopped", "failed"]
ProgramStatus = Literal["running", "done", "failed", "interrupted", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run's facts; comes first, and again when a fact becomes known only later.

    Attributes:
        clock_s: the machine's monotonic clock at the run's start, the clock of the scheduler's
            decisions, seconds.
        engine: kind of the back end, e.g. "vllm".
        model: name of the model.
        replicas: how many replicas serve the run.
        policy: name of the scheduling policy as given.
        started_at: the run's start, seconds since 1970; None where it is not known.
        seats: calls that one replica can run at once; this and the next three are 0 where the
            engine does not tell.
        kv_tokens, block_tokens: size of one replica's KV cache and of its blocks, tokens.
        token_budget: most tokens that one step computes.
        scheduler: settings of the scheduler, by name.
    """

    at_s: float = 0.0
    clock_s: float
    engine: str
    model: str
    replicas: int
    policy: str
    started_at: float | None = None
    seats: int = 0
    kv_tokens: int = 0
    block_tokens: int = 0
    token_budget: int = 0
    scheduler: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStarted:
    """A run of a program begins; again for each later turn of the same program."""

    at_s: float
    program: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnded:
    """The run of a program is over."""

    at_s: float
    program: str
    status: ProgramEnd
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResumed:
    """A program goes on from a checkpoint: ``earlier`` stands for its calls up to there.

    Attributes:
        earlier: an id that calls may name as their parent.
        critical_path_s: service along the longest chain of those calls, seconds.
    """

    at_s: float
    program: str
    earlier: str
    critical_path_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted:
    """A call begins.

    Attributes:
        parents: its immediate predecessors as (id, edge kind).
        attempt: which attempt of its node makes it, from 1.
    """

    at_s: float
    program: str
    call: str
    kind: CallKind
    name: str
    node: str | None = None
    parents: tuple[tuple[str, EdgeKind], ...] = ()
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """A call is over; the receipt is here when the engine has given it by then."""

    at_s: float
    call: str
    status: CallEnd
    error: str | None = None
    receipt: Receipt | None = None
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentRecorded:
    """What a call asked and what it was answered; only where the user wants it kept.

    Attributes:
        prompt: the whole prompt, as the model read it.
        answer: what the model wrote, as far as it came.
    """

    at_s: float
    call: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptArrived:
    """The engine's receipt of a call, apart from the call's end (an aborted call's comes later)."""

    at_s: float
    call: str
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChanged:
    """A replica was lost, serves again, or was given up; or one has come or gone.

    Attributes:
        replica: its index.
    """

    at_s: float
    replica: int
    state: ReplicaState


Event = (
    RunStarted
    | ProgramStarted
    | ProgramResumed
    | ProgramEnded
    | CallStarted
    | CallEnded
    | ReceiptArrived
    | ContentRecorded
    | ReplicaChanged
)

_NAMES: dict[type, str] = {
    RunStarted: "run_started",
    ProgramStarted: "program_started",
    ProgramResumed: "program_resumed",
    ProgramEnded: "program_ended",
    CallStarted: "call_started",
    CallEnded: "call_ended",
    ReceiptArrived: "receipt_arrived",
    ContentRecorded: "content_recorded",
    ReplicaChanged: "replica_changed",
}
_CLASSES: dict[str, type] = {name: event for event, name in _NAMES.items()}


def event_to_wire(event: Event) -> dict[str, Any]:
    """The event as plain JSON types, its kind under ``event``."""
    wire: dict[str, Any] = {"event": _NAMES[type(event)]}
    if isinstance(event, RunStarted):
        wire["schema"] = SCHEMA_VERSION
    for name in event.__slots__:
        wire[name] = getattr(event, name)
    if wire.get("receipt") is not None:
        wire["receipt"] = wire["receipt"].to_wire()
    return wire


def event_from_wire(wire: Mapping[str, Any]) -> Event:
    """Inverse of :func:`event_to_wire`.

    Raises:
        KeyError, TypeError, ValueError: the mapping is no event.
    """
    values = dict(wire)
    event = _CLASSES[values.pop("event")]
    values.pop("schema", None)
    if values.get("receipt") is not None:
        values["receipt"] = Receipt.from_wire(values["receipt"])
    if "parents" in values:
        values["parents"] = tuple((parent, kind) for parent, kind in values["parents"])
    return event(**values)
