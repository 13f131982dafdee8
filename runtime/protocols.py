"""The seams of the runtime: what an engine offers, and what the recorder tells."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Collection,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from ..scheduler.tickets import Receipt, Ticket

T = TypeVar("T")

EdgeKind = Literal["order", "trigger", "barrier"]
CallKind = Literal["llm", "tool"]
CallEnd = Literal["done", "failed", "aborted"]
ProgramEnd = Literal["done", "failed", "interrupted", "cancelled"]
ReplicaState = Literal["starting", "serving", "lost", "draining", "stopped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """One call for an engine, at the level of tokens.

    Attributes:
        ticket: travels to the scheduler of the replica that serves the call.
        prompt: token ids, or what the engine's own front end rendered from a request.
        sampling: the engine's sampling parameters (vLLM's ``SamplingParams``).
        options: further keyword arguments of the engine's ``generate``, passed on as they are.
    """

    ticket: Ticket
    prompt: Any
    sampling: Any
    options: Mapping[str, Any] = field(default_factory=dict)


class EngineChunk(NamedTuple):
    """A piece of a call's stream; the last one carries the receipt.

    A tuple, since one is made for every token, and that is the quickest value to make; give its
    fields by name all the same.

    Attributes:
        output: the engine's own output object (vLLM's ``RequestOutput``).
        receipt: set on the last chunk, None before.
    """

    output: Any
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A replica's state at one moment.

    Attributes:
        state: whether it serves; where it does not, the rest says nothing.
        running, waiting: calls with and without a seat.
        running_by_level, waiting_by_level: the same per level, best level first.
        call_levels: level (from 1) of every live call, by call id.
        waiting_calls: ids of the live calls without a seat, in the order in which they get one.
        preempted_calls: those of them that have had a seat and lost it.
        call_tokens: output tokens so far of every live call that has some, by call id.
        kv_usage: share of the device KV cache in use, 0 to 1.
        kv_host_usage: share of the host KV tier in use, 0 to 1; None where there is none.
        seats: how many calls can run at once.
        step_s: typical duration of an engine step, seconds; 0 before the first.
        preemptions, promotions, demotions, swaps: totals since the start.
        kv_tokens, block_tokens: size of the KV cache and of its blocks, tokens; 0 when unknown.
        token_budget: most tokens that one step computes; 0 when unknown.
        kv_host_tokens: what the host KV tier holds, tokens; 0 where there is none.
    """

    state: ReplicaState = "serving"
    running: int = 0
    waiting: int = 0
    running_by_level: tuple[int, ...] = ()
    waiting_by_level: tuple[int, ...] = ()
    call_levels: Mapping[str, int] = field(default_factory=dict)
    waiting_calls: Sequence[str] = ()
    preempted_calls: Sequence[str] = ()
    call_tokens: Mapping[str, int] = field(default_factory=dict)
    kv_usage: float = 0.0
    kv_host_usage: float | None = None
    seats: int = 0
    step_s: float = 0.0
    preemptions: int = 0
    promotions: int = 0
    demotions: int = 0
    swaps: int = 0
    kv_tokens: int = 0
    block_tokens: int = 0
    token_budget: int = 0
    kv_host_tokens: int = 0


class Engine(Protocol):
    """A back end that runs calls: one vLLM replica, a pool of them, a simulation.

    All methods belong to one event loop, the engine's. ``generate`` may be closed early, which
    aborts the call; its receipt then comes from :meth:`abort`.
    """

    kind: str
    model: str

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        ...

    @property
    def is_serving(self) -> bool:
        """Whether calls are taken, now or once a replica that is being started is there."""
        ...

    def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """Run a call; chunks as they come, the last one with the receipt.

        Raises:
            CallError: the call was refused (too long, bad parameters).
            EngineStoppedError: the engine is not there any more.
        """
        ...

    async def abort(self, call_id: str) -> Receipt | None:
        """Stop a call, free what it holds; its receipt so far, None if it is not known."""
        ...

    def forget(self, program: str) -> None:
        """The program has ended: nothing need be kept for its next call."""
        ...

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        """The program is in a tool, or waits for a person, and no call of it runs.

        Args:
            absence_s: quantiles of how long that takes, at equal distances, ascending, seconds;
                empty where nothing is known.
        """
        ...

    def returns(self, program: str) -> None:
        """What kept the program away has ended: its next call is a moment away."""
        ...

    async def drain(self) -> None:
        """Take no new calls and return when the last one has ended."""
        ...

    async def stop(self) -> None:
        """Stop now and leave no process behind; safe to call twice."""
        ...

    async def stats(self) -> EngineStats:
        """What the engine is doing now, all replicas together."""
        ...

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """What each replica is doing now, in the order of their indices."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """An edge into a call: its immediate predecessor and why it is one."""

    id: str
    kind: EdgeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """A call begins.

    Attributes:
        kind: "llm" runs in the engine, "tool" outside of it.
        name: model or tool name.
        node: innermost LangGraph node or task, None outside of one.
        parents: immediate predecessors in the program's DAG.
        attempt: which attempt of its node makes it, from 1: a node with a retry policy may fail
            and be run again.
        tasks: ids of the graph tasks around it.
    """

    program: str
    call: str
    kind: CallKind
    name: str
    node: str | None
    parents: tuple[Parent, ...]
    attempt: int = 1
    tasks: tuple[str, ...] = ()


class ProgramObserver(Protocol):
    """What the recorder tells the runtime, as it happens.

    Called inline from any thread, so it must be quick and must not block.
    """

    def program_started(self, program: str, name: str) -> None:
        """A run of the program begins; again for each later turn of the same program."""
        ...

    def program_ended(self, program: str, status: ProgramEnd, error: str | None) -> None:
        """The run of the program is over (each turn ends once)."""
        ...

    def call_started(self, start: CallStart) -> None:
        """A call begins; its parents have ended, tools that enclose it excepted."""
        ...

    def call_ended(self, call: str, status: CallEnd, error: str | None) -> None:
        """A call is over; "aborted" asks the engine to stop it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadLoad:
    """A graph run has loaded a checkpoint of its thread, or found that there is none.

    Attributes:
        store: identity of the store that holds the checkpoints.
        thread: LangGraph's thread_id.
        checkpoint: id of the loaded checkpoint; None where there is none.
        snapshot: the account that the checkpoint carries; None where it carries none.
        addressed: the run asked for this checkpoint, not for the thread's latest.
        nested: the graph runs inside a node of another graph.
        is_turn: the graph run is the root of its program.
    """

    store: str
    thread: str
    checkpoint: str | None
    snapshot: Mapping[str, Any] | None
    addressed: bool = False
    nested: bool = False
    is_turn: bool = True


class ThreadKeeper(Protocol):
    """What is told of graph runs that have a checkpointer; inline, so it must be quick."""

    def thread_loaded(self, program: str, load: ThreadLoad) -> frozenset[str] | None:
        """A graph run begins from a checkpoint.

        Returns:
            What the program's next calls depend on: the id that stands for the thread's earlier
            calls, or nothing; None leaves it as it is.
        """
        ...

    def tasks_ended(self, program: str, tasks: Collection[str]) -> frozenset[str]:
        """A run goes on in a superstep of which these tasks have ended, and are not run again.

        Returns:
            The id that stands for their calls, or nothing.
        """
        ...

    def thread_snapshot(self, program: str, store: str, thread: str) -> dict[str, Any] | None:
        """The account that a checkpoint made now is to carry; None for none."""
        ...

    def thread_written(
        self, program: str, store: str, thread: str, checkpoint: str, calls: int
    ) -> None:
        """A graph run has made a checkpoint, by which its thread had ended so many calls."""
        ...


class ThreadStore(Protocol):
    """What a checkpointer tells of its threads; all of it may block but ``snapshot_now``."""

    def read_ahead(self, store: str, thread: str) -> None:
        """A checkpoint of the thread is about to be read."""
        ...

    def snapshot_now(self, store: str, thread: str) -> dict[str, Any] | None:
        """The account of a thread that runs; None of one that does not."""
        ...

    def saved(self, store: str, thread: str) -> None:
        """A checkpoint of the thread has been stored."""
        ...

    def deleted(self, store: str, thread: str) -> None:
        """The thread has been deleted."""
        ...

    def copied(self, store: str, source: str, target: str) -> None:
        """A thread has been copied."""
        ...

    def pruned(self, store: str, threads: Sequence[str], strategy: str) -> None:
        """Threads have been pruned."""
        ...


class Bridge(Protocol):
    """Ways into the engine's event loop, from any thread and any other loop."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run and block."""
        ...

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """Run and await."""
        ...

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Iterate from plain code."""
        ...

    def aiterate(self, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Iterate from another event loop."""
        ...


class ChatBackend(Protocol):
    """Where a chat model sends its requests: the process's session.

    ``complete`` and ``stream`` run on the engine's loop; enter it through ``loop``.
    """

    @property
    def loop(self) -> Bridge:
        """The way in."""
        ...

    def current_call(self) -> str | None:
        """Id of the call that the caller is in, as the recorder knows it."""
        ...

    def complete(self, body: Mapping[str, Any], call: str) -> Coroutine[Any, Any, dict[str, Any]]:
        """Answer a chat request in the OpenAI form at once."""
        ...

    def stream(self, body: Mapping[str, Any], call: str) -> AsyncGenerator[dict[str, Any], None]:
        """Answer in chunks of the OpenAI form; the last one carries the usage."""
        ...


def thread_store() -> ThreadStore:
    """Where checkpointers tell of their threads: the process's session, or the journal alone."""
    from .journal_store import current_store

    return current_store()


def prepare_chat_backend() -> None:
    """Begin to record, so that the first call is already seen; starts no engine."""
    from .session import current_session

    current_session()


def chat_backend(model: str | None = None) -> ChatBackend:
    """The process's session with a running engine; started on first use, stopped at exit.

    Args:
        model: model to start with where nothing else names one; ignored once an engine runs.
    """
    from .session import started_session

    return started_session(model)


async def achat_backend(model: str | None = None) -> ChatBackend:
    """As :func:`chat_backend`; the caller's event loop goes on while an engine starts."""
    from .session import current_session

    session = current_session()
    return session if session.is_started else await asyncio.to_thread(chat_backend, model)
