"""A place in the pool: one replica after the other, started again when one is lost.

States: starting -> serving -> (lost -> starting)* -> stopped; serving -> draining -> stopped; and
failed where it does not come up any more. A replica is lost when its process ends, or when calls
are under way and it has not said anything for so long that it must hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from autellix.errors import AutellixError

from .protocols import Engine, EngineStats, ReplicaState
from .restarts import Losses, Restarts

log = logging.getLogger("autellix")

_SIZES_TIMEOUT_S = 10.0
_LOOKS = 4
_MOST_PROGRAMS = 100_000  # that a replica is known to have had calls of
_SIZES = ("seats", "kv_tokens", "block_tokens", "token_budget")


class Replica(Engine, Protocol):
    """One replica: an engine whose process can be lost."""

    async def lost(self) -> None:
        """Return when its process has ended, for whatever reason."""
        ...

    def tell_stats_to(self, sink: Callable[[EngineStats], None]) -> None:
        """Have ``sink`` told, while calls run, of calls, KV in use and the duration of a step."""
        ...

    async def kill(self) -> None:
        """End its processes at once and give back what it holds; safe when they are gone."""
        ...


StartReplica = Callable[[int], Awaitable[Replica]]


class ReplicaSlot:
    """A place in the pool.

    Args:
        index: of the replica, from 0.
        start: starts the replica of that index.
        changed: is told the index and the state when the state has changed.
        restarts: when a lost replica is started again.
        serves: is told the index and the sizes of each replica that begins to serve.

    Attributes:
        replica: the present one.
        state: see the module.
        calls: under way, by id.
        programs: that the present replica has had calls of and that have not ended, the one that
            was served last at the end. Where nobody tells of their ends the oldest go.
        answered: whether the present replica has answered a call.
        restarts_done: how often a replica was lost and replaced.
    """

    def __init__(
        self,
        index: int,
        start: StartReplica,
        changed: Callable[[int, ReplicaState], None],
        restarts: Restarts,
        serves: Callable[[int, EngineStats], None],
    ) -> None:
        self.index = index
        self.replica: Replica | None = None
        self.state: ReplicaState = "starting"
        self.calls: set[str] = set()
        self.programs: dict[str, None] = {}
        self.answered = False
        self.restarts_done = 0
        self._start = start
        self._changed = changed
        self._serves = serves
        self._restarts = restarts
        self._told = EngineStats()
        self._sizes: dict[str, int] = {}
        self._heard_s = 0.0
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def load(self) -> float:
        """Calls under way; infinite where it takes none."""
        return len(self.calls) if self.state == "serving" else math.inf

    @property
    def may_serve_again(self) -> bool:
        """Whether it takes calls now or is on the way to."""
        return self.state in ("starting", "serving", "lost")

    def call_comes(self, call: str, program: str) -> None:
        """A call of the program goes to the present replica."""
        self.calls.add(call)
        self.programs.pop(program, None)
        self.programs[program] = None
        if len(self.programs) > _MOST_PROGRAMS:
            del self.programs[next(iter(self.programs))]

    def heard(self) -> None:
        """The replica has given a sign of life."""
        self._heard_s = time.monotonic()

    def _tell(self, stats: EngineStats) -> None:
        self.heard()
        self._told = stats

    @property
    def told(self) -> EngineStats:
        """What the present replica has told of its state, unasked, and its sizes."""
        return replace(self._told, **self._sizes)

    def lose(self, replica: Replica) -> None:
        """A call has found the replica dead: it gets no more of them."""
        if replica is self.replica and self.state in ("serving", "draining"):
            self._lost.set()
            self._enter("lost")

    async def open(self) -> None:
        """Start the first replica; from then on losses are mended.

        Raises:
            AutellixError: it did not come up.
        """
        await self._serve(await self._start(self.index))
        self._keeper = asyncio.create_task(self._keep(), name=f"replica {self.index}")
        self._watch = asyncio.create_task(self._watch_for_stalls(), name=f"stalls {self.index}")

    async def _serve(self, replica: Replica) -> None:
        self.replica = replica
        self.answered = False
        self.programs.clear()
        self._lost.clear()
        self._told = await self._asked(replica, _SIZES_TIMEOUT_S) or EngineStats()
        self._sizes = {name: getattr(self._told, name) for name in _SIZES}
        self._serves(self.index, self._told)
        replica.tell_stats_to(self._tell)
        self.heard()
        self._enter("serving")

    def _enter(self, state: ReplicaState) -> None:
        self.state = state
        self._changed(self.index, state)

    async def _keep(self) -> None:
        """Replace every replica that is lost, until the place is closed or given up."""
        try:
            await self._replace_lost()
        except Exception:
            # Calls must not wait for a place that nobody keeps.
            log.exception("Replica %d cannot be kept; it is given up.", self.index)
            self._enter("failed")

    async def _replace_lost(self) -> None:
        losses = Losses(self._restarts)
        while self.replica is not None:
            began_s = time.monotonic()
            await self._until_lost(self.replica)
            await self._clear_away(self.replica)
            losses.lost(after_s=time.monotonic() - began_s, answered=self.answered)
            log.warning(
                "Replica %d was lost; its calls go to others, it is started again.", self.index
            )
            while not losses.hopeless:
                await asyncio.sleep(losses.delay_s)
                if await self._started_again(losses):
                    break
            else:
                log.error(
                    "Replica %d failed %d times in a row; it is given up.",
                    self.index,
                    losses.in_vain,
                )
                self._enter("failed")
                return

    async def _until_lost(self, replica: Replica) -> None:
        found_dead = asyncio.create_task(replica.lost())
        told = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait((found_dead, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            found_dead.cancel()
            told.cancel()
        self._enter("lost")

    async def _clear_away(self, replica: Replica) -> None:
        """End what is left of a lost replica; what cannot be ended does not keep a new one away."""
        try:
            await replica.kill()
        except Exception:
            log.exception("What replica %d has left could not all be ended.", self.index)

    async def _started_again(self, losses: Losses) -> bool:
        self._enter("starting")
        try:
            replica = await self._start(self.index)
        except (AutellixError, OSError) as error:  # no memory, no file descriptors, no disk
            log.warning("Replica %d did not start: %s", self.index, error)
            losses.not_started(for_now=isinstance(error.__cause__ or error, OSError))
            self._enter("lost")
            return False
        self.restarts_done += 1
        await self._serve(replica)
        return True

    async def _watch_for_stalls(self) -> None:
        stall_s = self._restarts.stall_s
        while True:
            await asyncio.sleep(stall_s / 4)
            silent_s = time.monotonic() - self._heard_s
            replica = self.replica
            if self.state != "serving" or not self.calls or silent_s < stall_s or not replica:
                continue
            if await self._answers(replica, stall_s):
                self.heard()
                continue
            log.warning(
                "Replica %d has been silent for %.0f s; it is killed.",
                self.index,
                silent_s + stall_s,
            )
            await self._clear_away(replica)

    @staticmethod
    async def _answers(replica: Replica, within_s: float) -> bool:
        """Whether the replica answers.

        Of a time in which this process itself was stopped, its engines too, a quarter counts.
        """
        asked = asyncio.ensure_future(replica.stats())
        try:
            for _ in range(_LOOKS):
                if (await asyncio.wait({asked}, timeout=within_s / _LOOKS))[0]:
                    return True
            return False
        finally:
            asked.cancel()

    async def stats(self, timeout_s: float) -> EngineStats:
        """The replica's state; what it told last where it does not answer in time."""
        if self.replica is None or self.state not in ("serving", "draining"):
            return EngineStats(state=self.state)
        asked = await self._asked(self.replica, timeout_s)
        return replace(self.told if asked is None else asked, state=self.state)

    @staticmethod
    async def _asked(replica: Replica, timeout_s: float) -> EngineStats | None:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(replica.stats(), timeout_s)
        return None

    async def drain(self) -> None:
        """Take no new calls and return when the last one has ended."""
        if self.state == "serving" and self.replica is not None:
            self._enter("draining")
            await self.replica.drain()

    async def close(self) -> None:
        """Stop the replica and mend nothing any more; safe to call twice."""
        for task in (self._keeper, self._watch):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._keeper = self._watch = None
        if self.state != "stopped":
            self._enter("stopped")
            if self.replica is not None:
                await self.replica.stop()
