"""The other machine's side of a Ray replica: a process there that runs one vLLM replica.

It starts nothing when it is made. First it is asked whether it could serve (:meth:`prepare`), so
that what is wrong with a machine shows before any engine starts; then the engine starts. Its calls
put what they have to say into the outbox, from where the pool takes all of it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from autellix.errors import AutellixError

from ..scheduler.config import SchedulerConfig
from .engine_start import EngineProcesses, check_memory, set_engine_environment
from .host_tier import with_host_tier
from .models import resolve_model
from .protocols import EngineStats
from .replica_spec import ReplicaSpec, Started, check_model, check_versions

if TYPE_CHECKING:
    from .ray_wire import Item
    from .replica_slot import Replica
    from .vllm_replica import VllmReplica

_spec = msgspec.msgpack.Decoder(ReplicaSpec)


class Outbox:
    """What calls have to say and the pool has not taken yet: at most one piece of each.

    A call that has more waits until its last piece was taken. Meanwhile the engine's front end adds
    its tokens up, so a slow network makes pieces larger and never a queue.
    """

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._told: EngineStats | None = None
        self._some = asyncio.Event()
        self._taken = asyncio.Event()

    async def put(self, call: str, item: Item) -> None:
        """Leave a piece there."""
        while call in self._items:
            await self._taken.wait()
        self._items[call] = item
        self._some.set()

    def drop(self, call: str) -> None:
        """The call's piece is wanted no more."""
        self._items.pop(call, None)
        if not self._items:
            self._some.clear()

    def tell(self, stats: EngineStats) -> None:
        """What the replica is doing, for whoever takes next; no reason to take by itself."""
        self._told = stats

    async def take(self) -> list[Item]:
        """All that is there; waits until there is something."""
        from .ray_wire import Told

        await self._some.wait()
        items = list(self._items.values())
        if self._told is not None:
            items.append(Told(self._told))
            self._told = None
        self._items.clear()
        self._some.clear()
        taken, self._taken = self._taken, asyncio.Event()
        taken.set()
        return items


class ReplicaActor:
    """Made by Ray in a process of its own; all that goes in and out is bytes.

    Args:
        node: this machine's address.
        node_id: what the cluster calls it.
        replica: one that runs already; None for one that :meth:`start` starts.
    """

    def __init__(self, node: str, node_id: str, replica: Replica | None = None) -> None:
        self._node = node
        self._node_id = node_id
        self._replica = replica
        self._outbox = Outbox()
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._processes: EngineProcesses | None = None
        self._watch: asyncio.Task[None] | None = None

    # ── start ────────────────────────────────────────────────────────────────────────────────

    async def prepare(self, spec: bytes) -> bytes:
        """Whether a replica could be started here: a ``Started``."""

        async def prepare() -> Started:
            wanted = _spec.decode(spec)
            check_versions(wanted.versions, self._node)
            check_model(wanted.model, self._node)
            await asyncio.to_thread(resolve_model, wanted.model, progress=False)
            return self._well()

        return await self._answer(prepare)

    async def start(self, spec: bytes) -> bytes:
        """Start the replica and say when it serves: a ``Started``."""

        async def start() -> Started:
            wanted = _spec.decode(spec)
            self._replica = replica = await self._started(wanted)
            replica.tell_stats_to(self._outbox.tell)
            self._watch = asyncio.create_task(self._tell_of_loss(replica))
            tasks = await replica.llm.get_supported_tasks()
            return self._well(replica.llm.model_config.max_model_len, tuple(tasks))

        return await self._answer(start)

    async def _started(self, spec: ReplicaSpec) -> VllmReplica:
        os.environ.update(spec.environment)
        set_engine_environment(debug=spec.debug, replicas=spec.neighbours)
        check_memory(1)
        model = await asyncio.to_thread(resolve_model, spec.model, progress=False)
        from .vllm_replica import VllmReplica

        self._processes = EngineProcesses(debug=spec.debug)
        return await VllmReplica.start(
            str(model),
            with_host_tier(spec.engine_args, spec.kv_host_gib, spec.neighbours),
            SchedulerConfig.from_dict(spec.scheduler),
            served_name=spec.served_name,
            processes=self._processes,
        )

    def _well(self, context_tokens: int = 0, tasks: tuple[str, ...] = ()) -> Started:
        return Started(
            node=self._node,
            node_id=self._node_id,
            pid=os.getpid(),
            context_tokens=context_tokens,
            tasks=tasks,
        )

    async def _answer(self, step: Callable[[], Awaitable[Started]]) -> bytes:
        try:
            done = await step()
        except Exception as error:  # all of it is for the one who asked
            if isinstance(error, AutellixError):
                kind, said = type(error).__name__, str(error)
            else:
                kind, said = "EngineStartError", f"{type(error).__name__}: {error}"
            about = "" if self._node in said else f"Node {self._node}: "
            done = Started(kind=kind, message=about + said, node=self._node, pid=os.getpid())
        return msgspec.msgpack.encode(done)

    async def _tell_of_loss(self, replica: Replica) -> None:
        from .ray_wire import Lost

        await replica.lost()
        await self._outbox.put("", Lost())

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    async def tell(self, orders: bytes) -> None:
        """Begin calls, whose answers are to be taken, and hear of programs."""
        from .ray_wire import Away, Begin, Forget, Returns, decode_orders

        assert self._replica is not None, "orders come after the start"
        for order in decode_orders(orders):
            match order:
                case Begin(call, data):
                    self._calls[call] = asyncio.create_task(self._serve(call, data))
                case Away(program, absence_s):
                    self._replica.away(program, absence_s)
                case Forget(program):
                    self._replica.forget(program)
                case Returns(program):
                    self._replica.returns(program)

    async def _serve(self, call_id: str, data: bytes) -> None:
        from .ray_wire import End, chunk_of, decode_call

        assert self._replica is not None, "calls come after the start"
        finished = False
        try:
            stream = self._replica.generate(decode_call(data))
            async with contextlib.aclosing(stream):
                async for chunk in stream:
                    finished = chunk.output.finished
                    piece = chunk_of(call_id, chunk.output, chunk.receipt)
                    await self._outbox.put(call_id, piece)
            if not finished:
                await self._outbox.put(call_id, End(call_id))
        except Exception as error:  # whatever it is, the call's caller is to hear of it
            await self._outbox.put(call_id, End.of(call_id, error))
        finally:
            del self._calls[call_id]

    async def take(self) -> bytes:
        """All that calls have to say, as soon as one has; asked for again and again."""
        from .ray_wire import encode_batch

        return encode_batch(await self._outbox.take())

    async def close(self, call: str) -> None:
        """Give a call up; returns when it has left the engine's front end."""
        if (task := self._calls.get(call)) is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._outbox.drop(call)

    async def abort(self, call: str) -> bytes | None:
        """See ``Engine.abort``; the receipt as a plain value."""
        assert self._replica is not None, "calls come after the start"
        receipt = await self._replica.abort(call)
        return None if receipt is None else msgspec.msgpack.encode(receipt.to_wire())

    async def stats(self) -> bytes:
        """See ``Engine.stats``."""
        assert self._replica is not None, "asked after the start"
        return msgspec.msgpack.encode(await self._replica.stats())

    async def stop(self) -> None:
        """Stop the replica in order; the process itself is then ended by the pool."""
        if self._watch is not None:
            self._watch.cancel()
        if self._replica is not None:
            await self._replica.stop()
        if self._processes is not None:
            self._processes.close()
