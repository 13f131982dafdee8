"""N replicas as one engine: calls are placed by a balancer and outlive the replica they are on.

A call goes to one replica. Is that one lost under it, the call goes on elsewhere, with the same
ticket, and so with the service that its program has attained; what its caller has had of the
answer is not given twice (:mod:`.continuation`). While no replica serves but one is on the way,
calls wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from statistics import fmean

from autellix.errors import EngineStoppedError, ReplicaLostError, SettingsError

from ..scheduler.balancers import Balancer
from ..scheduler.tickets import Receipt
from .continuation import Continuation
from .protocols import EngineCall, EngineChunk, EngineStats, ReplicaState
from .replica_slot import Replica, ReplicaSlot, StartReplica
from .restarts import Restarts

log = logging.getLogger("autellix")

StateSink = Callable[[int, ReplicaState], None]

_STATS_TIMEOUT_S = 4.0


class ReplicaPool:
    """Satisfies ``Engine``; its methods belong to the engine's event loop.

    Args:
        kind, model: as of the replicas.
        start: starts the replica of an index.
        balancer: chooses among them.
        restarts: when lost replicas are started again.

    Attributes:
        slots: the places, by index.
        on_state: is told when a replica has come into another state.
    """

    def __init__(
        self, kind: str, model: str, start: StartReplica, balancer: Balancer, restarts: Restarts
    ) -> None:
        self.kind = kind
        self.model = model
        self.slots: list[ReplicaSlot] = []
        self._start = start
        self._balancer = balancer
        self._restarts = restarts
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls = 0
        self._accepting = True
        self._where: dict[str, ReplicaSlot] = {}
        self._scaling = asyncio.Lock()
        self.on_state: StateSink = nobody

    @classmethod
    async def start(
        cls,
        start: StartReplica,
        replicas: int,
        balancer: Balancer,
        *,
        kind: str,
        model: str,
        restarts: Restarts | None = None,
    ) -> ReplicaPool:
        """Start all replicas at the same time and wait until they serve.

        Args:
            start: starts the replica of an index.
            replicas: how many.
            balancer: chooses among them.
            kind, model: as of the replicas.
            restarts: when lost replicas are started again.

        Raises:
            AutellixError: one did not come up; the others are stopped.
        """
        pool = cls(kind, model, start, balancer, restarts or Restarts())
        try:
            await pool.scale(replicas)
        except BaseException:
            await pool.stop()
            raise
        return pool

    @property
    def replicas(self) -> int:
        """How many places there are."""
        return len(self.slots)

    @property
    def is_serving(self) -> bool:
        """See ``Engine.is_serving``."""
        return self._accepting and any(slot.may_serve_again for slot in self.slots)

    async def scale(self, replicas: int) -> None:
        """Have that many replicas: new ones are started, the last ones drained and stopped.

        Calls go on meanwhile. A replica that is drained takes no new ones and ends those it has.

        Raises:
            SettingsError: fewer than one.
            AutellixError: a new one did not come up; then none of the new ones stays.
        """
        if replicas < 1:
            raise SettingsError(f"replicas must be a whole number >= 1, got {replicas!r}")
        async with self._scaling:
            had = len(self.slots)
            await self._grow(had, replicas)
            leaving = self.slots[replicas:]
            await asyncio.gather(*(slot.drain() for slot in leaving))
            await asyncio.gather(*(slot.close() for slot in leaving))
            del self.slots[replicas:]

    async def _grow(self, had: int, replicas: int) -> None:
        new = [
            ReplicaSlot(index, self._start, self._changed, self._restarts, self._serves)
            for index in range(had, replicas)
        ]
        self.slots.extend(new)
        opened = await asyncio.gather(*(slot.open() for slot in new), return_exceptions=True)
        failures = [found for found in opened if isinstance(found, BaseException)]
        if failures:
            await asyncio.gather(*(slot.close() for slot in new))
            del self.slots[had:]
            raise failures[0]

    def _changed(self, index: int, state: ReplicaState) -> None:
        self._wake()
        self.on_state(index, state)

    def _wake(self) -> None:
        """Calls that wait for a replica look again."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _serves(self, index: int, stats: EngineStats) -> None:
        self._balancer.replica_serves(index, seats=stats.seats, kv_tokens=stats.kv_tokens)

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """See ``Engine.generate``; a lost replica shows as a pause."""
        if not self._accepting:
            raise EngineStoppedError("The engine takes no new calls: it was told to stop.")
        self._calls += 1
        self._idle.clear()
        call_id, answer = call.ticket.call, Continuation(call)
        try:
            while True:
                slot = await self._place(call)
                replica, receipt = self._begin(call, slot), None
                stream = replica.generate(answer.attempt)
                try:
                    async for chunk in stream:
                        slot.heard()
                        if chunk.receipt is not None:
                            receipt = chunk.receipt
                            slot.answered = True
                        if chunk.output.finished:
                            self._where.pop(call_id, None)
                        if answer.take(chunk.output):
                            yield chunk
                    return
                except ReplicaLostError as cause:
                    slot.lose(replica)
                    self._where.pop(call_id, None)
                    if not self._accepting:
                        raise EngineStoppedError(
                            "The engine was stopped while the call ran."
                        ) from cause
                    answer.replica_lost(cause)
                finally:
                    slot.calls.discard(call_id)
                    self._balancer.call_ended(call_id, receipt)
                    await stream.aclose()
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    def _begin(self, call: EngineCall, slot: ReplicaSlot) -> Replica:
        """The call goes to the slot's replica."""
        assert slot.replica is not None, "a slot that serves has a replica"
        slot.call_comes(call.ticket.call, call.ticket.program)
        self._where[call.ticket.call] = slot
        return slot.replica

    async def _place(self, call: EngineCall) -> ReplicaSlot:
        """The replica for a call; waits while none serves but one may soon."""
        while True:
            news = self._news
            if any(slot.state == "serving" for slot in self.slots):
                loads = [slot.load for slot in self.slots]
                return self.slots[self._balancer.place(call.ticket, loads)]
            if not self.is_serving:
                raise EngineStoppedError(
                    "No replica serves any more; the engine's log says why. Start the run again."
                )
            await news.wait()

    async def abort(self, call_id: str) -> Receipt | None:
        """See ``Engine.abort``."""
        slot = self._where.pop(call_id, None)
        if slot is None or slot.replica is None or slot.state not in ("serving", "draining"):
            return None
        return await slot.replica.abort(call_id)

    def forget(self, program: str) -> None:
        """See ``Engine.forget``."""
        self._balancer.program_ended(program)
        for replica in self._replicas_of(program, ends=True):
            replica.forget(program)

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        """See ``Engine.away``."""
        for replica in self._replicas_of(program):
            replica.away(program, absence_s)

    def returns(self, program: str) -> None:
        """See ``Engine.returns``."""
        for replica in self._replicas_of(program):
            replica.returns(program)

    def _replicas_of(self, program: str, *, ends: bool = False) -> list[Replica]:
        """Those that have had a call of the program; others have nothing to hear of it."""
        slots = [slot for slot in self.slots if program in slot.programs]
        if ends:
            for slot in slots:
                slot.programs.pop(program, None)
        return [slot.replica for slot in slots if slot.replica is not None]

    # ── state and end ────────────────────────────────────────────────────────────────────────

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """See ``Engine.stats_of_replicas``."""
        return await asyncio.gather(*(slot.stats(_STATS_TIMEOUT_S) for slot in self.slots))

    @property
    def told(self) -> Sequence[EngineStats]:
        """What the replicas have told, unasked: calls, KV in use, the duration of a step."""
        return [replace(slot.told, state=slot.state) for slot in self.slots]

    async def stats(self) -> EngineStats:
        """See ``Engine.stats``; of all replicas together."""
        return together(await self.stats_of_replicas())

    async def drain(self) -> None:
        """See ``Engine.drain``."""
        self._accepting = False
        await self._idle.wait()

    async def stop(self) -> None:
        """See ``Engine.stop``."""
        self._accepting = False
        self._wake()
        await asyncio.gather(*(slot.close() for slot in self.slots))


def nobody(index: int, state: ReplicaState) -> None:
    """Nobody has asked to be told."""


def together(each: Sequence[EngineStats]) -> EngineStats:
    """The state of several replicas as one: sums, and means where a sum makes no sense."""

    def by_level(name: str) -> tuple[int, ...]:
        rows = [getattr(stats, name) for stats in each]
        depth = max(map(len, rows), default=0)
        return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(depth))

    def total(name: str) -> int:
        return sum(getattr(stats, name) for stats in each)

    hosted = [s.kv_host_usage for s in each if s.kv_host_usage is not None]
    return EngineStats(
        running=total("running"),
        waiting=total("waiting"),
        running_by_level=by_level("running_by_level"),
        waiting_by_level=by_level("waiting_by_level"),
        call_levels={call: level for stats in each for call, level in stats.call_levels.items()},
        waiting_calls=[call for stats in each for call in stats.waiting_calls],
        preempted_calls=[call for stats in each for call in stats.preempted_calls],
        call_tokens={call: tokens for stats in each for call, tokens in stats.call_tokens.items()},
        kv_usage=fmean(stats.kv_usage for stats in each) if each else 0.0,
        kv_host_usage=fmean(hosted) if hosted else None,
        kv_host_tokens=total("kv_host_tokens"),
        seats=total("seats"),
        step_s=max((stats.step_s for stats in each), default=0.0),
        preemptions=total("preemptions"),
        promotions=total("promotions"),
        demotions=total("demotions"),
        swaps=total("swaps"),
        kv_tokens=total("kv_tokens"),
        block_tokens=max((stats.block_tokens for stats in each), default=0),
        token_budget=total("token_budget"),
    )
