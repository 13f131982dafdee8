"""A replica with a gate before it: calls wait, are served, given up or lost; nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from autellix.errors import CallError, EngineStoppedError, ReplicaLostError
from autellix.runtime.gated_replica import GatedReplica
from autellix.runtime.protocols import EngineCall, EngineChunk, EngineStats
from autellix.scheduler.admission import Gate
from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.tickets import Receipt, Ticket

CONFIG = SchedulerConfig(policy="plas", admission=True)


@dataclass
class Engine:
    """Serves each call when the test says so."""

    kv_tokens: int = 1000
    kind: str = "fake"
    model: str = "fake"
    replicas: int = 1
    is_serving: bool = True
    served: list[EngineCall] = field(default_factory=list)
    ends: dict[str, asyncio.Event] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    told_away: list[str] = field(default_factory=list)
    told_return: list[str] = field(default_factory=list)
    dead: bool = False

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        if self.dead:
            raise ReplicaLostError("lost")
        self.served.append(call)
        await self.ends.setdefault(call.ticket.call, asyncio.Event()).wait()
        if self.dead:
            raise ReplicaLostError("lost")
        receipt = Receipt(
            program=call.ticket.program,
            call=call.ticket.call,
            service_s=1.0,
            wait_s=0.5,
            levels=(1,),
            preemptions=0,
            prompt_tokens=call.ticket.prompt_tokens,
            output_tokens=5,
        )
        yield EngineChunk(output="answer", receipt=receipt)

    def end(self, call: str) -> None:
        self.ends.setdefault(call, asyncio.Event()).set()

    async def abort(self, call_id: str) -> Receipt | None:
        return None

    async def stats(self) -> EngineStats:
        return EngineStats(kv_tokens=self.kv_tokens, waiting=1, waiting_calls=["x"])

    async def stats_of_replicas(self) -> list[EngineStats]:
        return [await self.stats()]

    def tell_stats_to(self, sink: Callable[[EngineStats], None]) -> None:
        self.tell = sink

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def kill(self) -> None:
        self.die()

    def die(self) -> None:
        self.dead = True
        for end in self.ends.values():
            end.set()

    async def drain(self) -> None:
        self.is_serving = False

    async def stop(self) -> None:
        self.is_serving = False

    def forget(self, program: str) -> None:
        self.forgotten.append(program)

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        self.told_away.append(program)

    def returns(self, program: str) -> None:
        self.told_return.append(program)


def call(name: str, tokens: int = 500) -> EngineCall:
    ticket = Ticket(program=name[0], call=name, prompt_tokens=tokens)
    sampling = SimpleNamespace(extra_args=ticket.to_flat())
    return EngineCall(
        ticket=ticket, prompt={"prompt_token_ids": list(range(tokens))}, sampling=sampling
    )


def gated(engine: Engine, limit: float = 800) -> GatedReplica:
    """A gate that has seen thrashing."""
    gate = Gate(CONFIG, engine.kv_tokens)
    gate.limit.tokens = limit
    return GatedReplica(engine, gate)


async def serve(replica: GatedReplica, one: EngineCall) -> list[EngineChunk]:
    return [chunk async for chunk in replica.generate(one)]


async def start(replica: GatedReplica, *names: str) -> dict[str, asyncio.Task[list[EngineChunk]]]:
    tasks = {name: asyncio.create_task(serve(replica, call(name))) for name in names}
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def names(engine: Engine) -> list[str]:
    return [one.ticket.call for one in engine.served]


async def test_who_is_away_for_longer_than_room_is_kept_gives_it_back() -> None:
    engine = Engine()
    replica = gated(engine, limit=1300)
    tasks = await start(replica, "A1", "C1", "B1")
    engine.end("A1")
    await tasks["A1"]
    replica.away("A", (1.0, 2.0, 100.0))
    await asyncio.sleep(0)
    assert names(engine) == ["A1", "C1"], "a short tool: its room is kept"
    replica.away("A", (60.0, 600.0, 6000.0))
    for call_id in ("B1", "C1"):
        engine.end(call_id)
        await tasks[call_id]
    assert names(engine) == ["A1", "C1", "B1"]
    assert engine.told_away == ["A", "A"]
    replica.returns("A")
    assert engine.told_return == ["A"]


async def test_a_call_is_held_until_there_is_room_and_its_hold_is_wait() -> None:
    engine = Engine()
    replica = gated(engine)
    tasks = await start(replica, "A1", "B1")
    assert names(engine) == ["A1"]
    engine.end("A1")
    await tasks["A1"]
    replica.forget("A")
    engine.end("B1")
    (chunk,) = await tasks["B1"]
    assert names(engine) == ["A1", "B1"]
    assert engine.forgotten == ["A"]
    receipt = chunk.receipt
    assert receipt is not None and receipt.wait_s > 0.5
    assert receipt.decisions[0].kind == "admission"
    ticket = Ticket.from_flat(engine.served[1].sampling.extra_args)
    assert ticket == engine.served[1].ticket
    assert ticket is not None and ticket.program_wait_s > 0
    assert replica.gate.used_tokens > 0
    replica.forget("B")
    assert replica.gate.used_tokens == 0
    replica.gate.check()


async def test_held_calls_are_told_as_waiting() -> None:
    engine = Engine()
    replica = gated(engine)
    told: list[int] = []
    replica.tell_stats_to(lambda stats: told.append(stats.waiting))
    engine.tell(EngineStats(waiting=1))
    tasks = await start(replica, "A1", "B1", "C1")
    engine.tell(EngineStats(waiting=1))
    for name, task in tasks.items():
        engine.end(name)
        await task
    engine.tell(EngineStats(waiting=1))
    assert told == [1, 3, 1]


async def test_a_held_call_that_is_cancelled_never_reaches_the_engine() -> None:
    engine = Engine()
    replica = gated(engine)
    tasks = await start(replica, "A1", "B1", "C1")
    tasks["B1"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks["B1"]
    assert replica.gate.holding == ["C1"]
    for name in ("A1", "C1"):
        engine.end(name)
    await tasks["A1"]
    await tasks["C1"]
    assert names(engine) == ["A1", "C1"]
    replica.gate.check()


async def test_a_held_call_that_is_aborted_ends_with_an_error() -> None:
    engine = Engine()
    replica = gated(engine)
    tasks = await start(replica, "A1", "B1")
    assert await replica.abort("B1") is None
    with pytest.raises(CallError, match="held"):
        await tasks["B1"]
    engine.end("A1")
    await tasks["A1"]
    replica.gate.check()


async def test_a_running_call_that_is_given_up_lets_the_next_one_in() -> None:
    engine = Engine()
    replica = gated(engine)
    tasks = await start(replica, "A1", "B1")
    tasks["A1"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks["A1"]
    engine.end("B1")
    await tasks["B1"]
    assert names(engine) == ["A1", "B1"]


async def test_when_the_replica_is_lost_the_held_calls_hear_it() -> None:
    engine = Engine()
    replica = gated(engine)
    tasks = await start(replica, "A1", "B1", "C1")
    engine.die()
    for task in tasks.values():
        with pytest.raises(ReplicaLostError):
            await task
    replica.gate.check()


async def test_draining_serves_the_held_calls_and_takes_no_new_ones() -> None:
    engine = Engine()
    replica = gated(engine)
    tasks = await start(replica, "A1", "B1")
    draining = asyncio.create_task(replica.drain())
    await asyncio.sleep(0)
    with pytest.raises(EngineStoppedError):
        await serve(replica, call("C1"))
    assert engine.is_serving
    for name in ("A1", "B1"):
        engine.end(name)
        await tasks[name]
    await draining
    assert not engine.is_serving


async def test_held_calls_are_shown_as_waiting_behind_the_queue() -> None:
    engine = Engine()
    replica = gated(engine)
    tasks = await start(replica, "A1", "B1")
    stats = await replica.stats()
    assert (stats.waiting, list(stats.waiting_calls)) == (2, ["x", "B1"])
    for name in ("A1", "B1"):
        engine.end(name)
        await tasks[name]


async def test_a_gate_is_set_where_the_settings_ask_for_one_and_the_cache_is_known() -> None:
    engine = Engine()
    found = await GatedReplica.before(engine, CONFIG)
    assert isinstance(found, GatedReplica)
    assert await GatedReplica.before(engine, SchedulerConfig(admission=False)) is engine
    unknown = Engine(kv_tokens=0)
    assert await GatedReplica.before(unknown, CONFIG) is unknown
