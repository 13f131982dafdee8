"""A replica with admission control before it.

Calls wait here, in the runtime, until the gate lets them through: then they enter the replica's
queue. A call that is cancelled while it waits leaves nothing behind. Is the replica lost, its
running calls end, the gate lets the held ones through, and they learn it from the replica.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from autellix.errors import CallError, EngineStoppedError

from ..scheduler.admission import Gate
from ..scheduler.config import SchedulerConfig
from ..scheduler.holds import Passed, receipt_with_hold, ticket_with_hold
from ..scheduler.known_prompts import KnownPrompts
from ..scheduler.kv_home import HOSTED_IDLE_S
from ..scheduler.tickets import Receipt
from .protocols import EngineCall, EngineChunk, EngineStats
from .replica_slot import Replica


class GatedReplica:
    """Satisfies ``Replica``; its methods belong to the engine's event loop.

    Args:
        replica: serves the calls.
        gate: decides when they enter it.
    """

    replicas = 1

    def __init__(self, replica: Replica, gate: Gate) -> None:
        self.kind = replica.kind
        self.model = replica.model
        self.replica = replica
        self.gate = gate
        self._prompts = KnownPrompts()
        self._calls: dict[str, asyncio.Future[Passed]] = {}
        self._accepting = True
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def before(cls, replica: Replica, config: SchedulerConfig) -> Replica:
        """The replica with a gate before it, where the settings ask for one and its size is known.

        A host tier has all that the device has: it is room for programs, and keeps it for longer.

        Args:
            replica: a running one.
            config: the scheduling settings it runs with.
        """
        if not config.admits:
            return replica
        stats = await replica.stats()
        room_tokens = max(stats.kv_tokens, stats.kv_host_tokens)
        if stats.kv_host_tokens:
            idle_s = max(config.admission_idle_s, HOSTED_IDLE_S)
            config = replace(config, admission_idle_s=idle_s)
        return cls(replica, Gate(config, room_tokens)) if room_tokens else replica

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """See ``Engine.generate``; waits at the gate first."""
        if not self._accepting:
            raise EngineStoppedError("The engine takes no new calls: it was told to stop.")
        ticket = call.ticket
        receipt: Receipt | None = None
        self._comes(call)
        try:
            passed = await self._calls[ticket.call]
            stream = self.replica.generate(_let_through(call, passed))
            try:
                async for chunk in stream:
                    if chunk.receipt is not None:
                        receipt = chunk.receipt
                        chunk = chunk._replace(receipt=receipt_with_hold(receipt, passed))
                    yield chunk
            finally:
                await stream.aclose()
        finally:
            del self._calls[ticket.call]
            if not self._calls:
                self._idle.set()
            self.gate.call_ended(ticket.call, time.monotonic(), receipt)
            self._go_on()

    def _comes(self, call: EngineCall) -> None:
        ticket = call.ticket
        tokens: Sequence[int] = call.prompt.get("prompt_token_ids") or ()
        known = self._prompts.add(ticket.program, tokens)
        self.gate.call_comes(ticket, time.monotonic(), known_tokens=known)
        self._calls[ticket.call] = asyncio.get_running_loop().create_future()
        self._idle.clear()
        self._go_on()

    def _go_on(self) -> None:
        """Wake the calls that the gate has let through, and ask it again when it says so."""
        for passed in self.gate.passed():
            waiting = self._calls.get(passed.call)
            if waiting is not None and not waiting.done():
                waiting.set_result(passed)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (next_s := self.gate.next_s) < math.inf:
            delay_s = max(next_s - time.monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.gate.tick(time.monotonic())
        self._go_on()

    @property
    def is_serving(self) -> bool:
        """See ``Engine.is_serving``."""
        return self.replica.is_serving

    async def abort(self, call_id: str) -> Receipt | None:
        """See ``Engine.abort``; a call that is still held has cost nothing."""
        waiting = self._calls.get(call_id)
        if waiting is not None and not waiting.done():
            waiting.set_exception(CallError("The call was stopped while it was held."))
            return None
        return await self.replica.abort(call_id)

    def forget(self, program: str) -> None:
        """See ``Engine.forget``."""
        self._prompts.forget(program)
        self.gate.program_ended(program, time.monotonic())
        self._go_on()
        self.replica.forget(program)

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        """See ``Engine.away``; who is away for longer than room is kept gives it back at once."""
        if absence_s and absence_s[len(absence_s) // 2] > self.gate.idle_s:
            self.gate.program_ended(program, time.monotonic())
            self._go_on()
        self.replica.away(program, absence_s)

    def returns(self, program: str) -> None:
        """See ``Engine.returns``."""
        self.replica.returns(program)

    async def stats(self) -> EngineStats:
        """See ``Engine.stats``; held calls wait behind those in the queue."""
        stats = await self.replica.stats()
        held = self.gate.holding
        if not held:
            return stats
        waiting = [*stats.waiting_calls, *held]
        return replace(stats, waiting=stats.waiting + len(held), waiting_calls=waiting)

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """See ``Engine.stats_of_replicas``."""
        return [await self.stats()]

    def tell_stats_to(self, sink: Callable[[EngineStats], None]) -> None:
        """See ``Replica.tell_stats_to``; held calls wait too."""

        def told(stats: EngineStats) -> None:
            held = self.gate.holds
            sink(replace(stats, waiting=stats.waiting + held) if held else stats)

        self.replica.tell_stats_to(told)

    async def lost(self) -> None:
        """See ``Replica.lost``."""
        await self.replica.lost()

    async def drain(self) -> None:
        """See ``Engine.drain``; held calls are served before."""
        self._accepting = False
        await self._idle.wait()
        await self.replica.drain()

    async def stop(self) -> None:
        """See ``Engine.stop``."""
        self._accepting = False
        await self.replica.stop()

    async def kill(self) -> None:
        """See ``Replica.kill``."""
        await self.replica.kill()


def _let_through(call: EngineCall, passed: Passed) -> EngineCall:
    """The call as it enters the replica: its ticket knows what it waited at the gate."""
    if not passed.held_s:
        return call
    ticket = ticket_with_hold(call.ticket, passed)
    call.sampling.extra_args = {**(call.sampling.extra_args or {}), **ticket.to_flat()}
    return replace(call, ticket=ticket)
