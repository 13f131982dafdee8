"""A replica that lives in a Ray actor, on this machine or another; the pool's side of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from autellix.errors import EngineError, EngineStartError, EngineStoppedError, ReplicaLostError

from ..scheduler.tickets import Receipt
from .protocols import EngineCall, EngineChunk, EngineStats
from .ray_stream import CallStream
from .ray_wire import (
    Away,
    Begin,
    Forget,
    Lost,
    Order,
    Returns,
    Told,
    decode_batch,
    encode_call,
    encode_orders,
    error_of,
)
from .replica_spec import ReplicaSpec, Started

# A machine that answers takes a second or two to start a process; a busy one many.
_PREPARED_WITHIN_S = 25.0
_STOPPED_WITHIN_S = 10.0
_stats = msgspec.msgpack.Decoder(EngineStats)
_started = msgspec.msgpack.Decoder(Started)


class Place(Protocol):
    """Where a replica lives in a cluster.

    Attributes:
        errors: what is raised where its process cannot be reached.
    """

    errors: tuple[type[Exception], ...]

    def why_it_died(self, cause: Exception) -> str:
        """The cause in words."""
        ...

    async def give_back(self) -> None:
        """End the process at once and free the place; safe to call twice."""
        ...


class RayReplica:
    """Satisfies ``Replica``; its methods belong to the engine's event loop.

    Args:
        actor: handle of a :class:`~.ray_actor.ReplicaActor`.
        place: where it lives; given back at the end.
        spec: what it is started with.
        index: of the replica.

    Attributes:
        node: address of its machine.
        started: what it said when its engine was there.
    """

    kind = "ray"
    replicas = 1

    def __init__(self, actor: Any, place: Place, spec: ReplicaSpec, index: int) -> None:
        self.model = spec.served_name
        self.index = index
        self.node = ""
        self.started = Started()
        self._actor = actor
        self._place = place
        self._spec = spec
        self._streams: dict[str, CallStream] = {}
        self._going_out: list[Order] = []
        self._gone_out: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arriving: set[asyncio.Future[None]] = set()
        self._sent: dict[str, asyncio.Future[None]] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._idle.set()
        self._accepting = True
        self._ended = False
        self._sink: Callable[[EngineStats], None] = _nowhere

    # ── start ────────────────────────────────────────────────────────────────────────────────

    async def prepare(self) -> None:
        """Have the machine checked for what a replica needs, before any engine starts.

        Raises:
            EngineStartError: its process does not come up.
            ModelError, VersionError: the machine lacks the model, or has other versions.
        """
        asked = self._actor.prepare.remote(msgspec.msgpack.encode(self._spec))
        try:
            async with asyncio.timeout(_PREPARED_WITHIN_S):
                self._take_started(await asked)
        except TimeoutError:
            raise EngineStartError(
                f"Replica {self.index} was given a place in the cluster, but no process of it "
                f"answered within {_PREPARED_WITHIN_S:.0f} s. `ray status` and the logs of Ray on "
                "that node tell more."
            ) from None
        except self._place.errors as cause:
            raise EngineStartError(self._place.why_it_died(cause)) from cause

    async def start(self) -> None:
        """Start the engine and return when it serves.

        Raises:
            EngineStartError, SettingsError: it does not come up; the message says why and where.
        """
        asked = self._actor.start.remote(msgspec.msgpack.encode(self._spec))
        try:
            self.started = self._take_started(await asked)
        except self._place.errors as cause:
            raise EngineStartError(self._place.why_it_died(cause)) from cause
        self.listen()

    def listen(self) -> None:
        """Take from now on what the replica says; its engine is there."""
        self._listening = asyncio.create_task(self._listen(), name=f"replica {self.index} says")

    def _take_started(self, answer: bytes) -> Started:
        said = _started.decode(answer)
        self.node = said.node
        if said.kind:
            raise error_of(said.kind, said.message)
        return said

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        """Hand what the replica says to the calls it is for, until it says nothing any more.

        One question is under way at any time; it is answered as soon as there is something.
        """
        try:
            while True:
                for item in decode_batch(await self._actor.take.remote()):
                    if isinstance(item, Lost):
                        self._lose("its engine's process ended")
                        return
                    if isinstance(item, Told):
                        self._sink(item.stats)
                    elif (stream := self._streams.get(item.call)) is not None:
                        stream.take(item)
        except self._place.errors as cause:
            self._lose(self._place.why_it_died(cause))
        except EngineError as cause:
            self._lose(str(cause))

    def _lose(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)
        for stream in self._streams.values():
            if not stream.has_ended:
                stream.end(self._gone())

    def _gone(self) -> EngineStoppedError:
        if not self._accepting:
            return EngineStoppedError("The engine was stopped while the call ran.")
        why = self._lost.result() if self._lost.done() else "it does not answer"
        return ReplicaLostError(f"Replica {self.index} on node {self.node} was lost: {why}")

    @property
    def is_serving(self) -> bool:
        """See ``Engine.is_serving``."""
        return self._accepting and not self._lost.done()

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """See ``Engine.generate``."""
        if not self._accepting:
            raise EngineStoppedError("The engine takes no new calls: it was told to stop.")
        if self._lost.done():
            raise self._gone()
        call_id = call.ticket.call
        data = encode_call(call)
        stream = self._streams[call_id] = CallStream(call)
        self._sent[call_id] = self._send(Begin(call_id, data))
        self._idle.clear()
        chunks = stream.chunks()
        try:
            async for chunk in chunks:
                if chunk.receipt is not None:
                    chunk = chunk._replace(receipt=replace(chunk.receipt, replica=self.index))
                yield chunk
        finally:
            await chunks.aclose()
            del self._streams[call_id]
            sent = self._sent.pop(call_id)
            if not stream.has_ended:
                self._closing[call_id] = asyncio.create_task(self._close(call_id, sent))
            if not self._streams:
                self._idle.set()

    def _send(self, order: Order) -> asyncio.Future[None]:
        """Send an order, together with those of the same moment; done when they have arrived."""
        if not self._going_out:
            self._gone_out = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(self._send_out)
        self._going_out.append(order)
        return self._gone_out

    def _send_out(self) -> None:
        orders, self._going_out = self._going_out, []
        gone_out = self._gone_out
        under_way = asyncio.ensure_future(_arrive(self._actor.tell.remote(encode_orders(orders))))
        under_way.add_done_callback(lambda _: gone_out.done() or gone_out.set_result(None))
        self._arriving.add(under_way)
        under_way.add_done_callback(self._arriving.discard)

    async def _close(self, call_id: str, sent: asyncio.Future[None]) -> None:
        """Have the replica give a call up; not before it has begun it."""
        try:
            with contextlib.suppress(*self._place.errors):
                await asyncio.shield(sent)
                await self._actor.close.remote(call_id)
        finally:
            del self._closing[call_id]

    async def abort(self, call_id: str) -> Receipt | None:
        """See ``Engine.abort``."""
        if self._lost.done() or self._ended:
            return None
        with contextlib.suppress(*self._place.errors):
            if (closing := self._closing.get(call_id)) is not None:
                await asyncio.shield(closing)
            elif (sent := self._sent.get(call_id)) is not None:
                await asyncio.shield(sent)
            wire = await self._actor.abort.remote(call_id)
            if wire is not None:
                receipt = Receipt.from_wire(msgspec.msgpack.decode(wire))
                return replace(receipt, replica=self.index)
        return None

    def forget(self, program: str) -> None:
        """See ``Engine.forget``."""
        if self.is_serving:
            self._send(Forget(program))

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        """See ``Engine.away``."""
        if self.is_serving:
            self._send(Away(program, list(absence_s)))

    def returns(self, program: str) -> None:
        """See ``Engine.returns``."""
        if self.is_serving:
            self._send(Returns(program))

    # ── state and end ────────────────────────────────────────────────────────────────────────

    async def stats(self) -> EngineStats:
        """See ``Engine.stats``."""
        if self._lost.done() or self._ended:
            return EngineStats()
        try:
            return _stats.decode(await self._actor.stats.remote())
        except self._place.errors:
            return EngineStats()

    def tell_stats_to(self, sink: Callable[[EngineStats], None]) -> None:
        """See ``Replica.tell_stats_to``."""
        self._sink = sink

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """See ``Engine.stats_of_replicas``."""
        return (await self.stats(),)

    async def drain(self) -> None:
        """See ``Engine.drain``."""
        self._accepting = False
        await self._idle.wait()

    async def lost(self) -> None:
        """See ``Replica.lost``."""
        await asyncio.shield(self._lost)

    async def stop(self) -> None:
        """See ``Engine.stop``."""
        self._accepting = False
        if self._ended:
            return
        self._ended = True
        for stream in self._streams.values():
            if not stream.has_ended:
                stream.end(self._gone())
        if not self._lost.done():
            with contextlib.suppress(TimeoutError, *self._place.errors):
                async with asyncio.timeout(_STOPPED_WITHIN_S):
                    await self._actor.stop.remote()
        await self.kill()

    async def kill(self) -> None:
        """See ``Replica.kill``."""
        self._ended = True
        if self._listening is not None:
            self._listening.cancel()
        self._lose("it was killed")
        await self._place.give_back()


async def _arrive(sent: Awaitable[object]) -> None:
    """Return when it has arrived, or never will; of a loss the listening task learns."""
    with contextlib.suppress(Exception):
        await sent


def _nowhere(stats: EngineStats) -> None:
    pass
