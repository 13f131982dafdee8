"""A replica behind a network keeps the contract of engines: both of its sides, without the network.

Ray's part is to start a process and to carry bytes; here the bytes are handed over in this process,
and the engine is the one that all tests share. What Ray itself does is in test_ray.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from autellix.errors import CallError, EngineStoppedError, ReplicaLostError
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.protocols import EngineChunk, EngineStats
from autellix.runtime.replica_spec import ReplicaSpec
from autellix.scheduler.tickets import Receipt, Ticket
from tests.conftest import CONTEXT
from tests.runtime.engine_contract import EngineContract, EngineUnderTest, ask, ticket
from tests.runtime.test_vllm_replica import VllmPrompts

ray_actor = pytest.importorskip("autellix.runtime.ray_actor", reason="needs vLLM")
ray_replica = pytest.importorskip("autellix.runtime.ray_replica", reason="needs vLLM")

SPEC = ReplicaSpec(model=None, served_name="model")
NODE = "10.0.0.1"


class Unreachable(Exception):
    """As Ray says it."""


class Place:
    errors = (Unreachable,)
    given_back = 0

    def why_it_died(self, cause: Exception) -> str:
        return f"the process ended: {cause}"

    async def give_back(self) -> None:
        self.given_back += 1


class Handle:
    """An actor as Ray shows it: ``handle.method.remote(...)`` is a future, and bytes are copied."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.cut: asyncio.Event = asyncio.Event()
        self.tasks: set[asyncio.Task[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> asyncio.Task[Any]:
            task = asyncio.ensure_future(self._call(name, args))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            return task

        return SimpleNamespace(remote=remote)

    async def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        for arg in args:
            assert isinstance(arg, bytes | str), "only plain data goes out"
        work = asyncio.ensure_future(getattr(self.actor, name)(*args))
        cut = asyncio.ensure_future(self.cut.wait())
        await asyncio.wait((work, cut), return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if self.cut.is_set():
            work.cancel()
            raise Unreachable("connection reset")
        answer = work.result()
        assert answer is None or isinstance(answer, bytes), "only plain data comes back"
        return answer


async def connected(replica: Any) -> tuple[Any, Handle, Place]:
    """A replica of the pool, wired to an actor that runs ``replica``."""
    handle, place = Handle(ray_actor.ReplicaActor(NODE, "n1", replica)), Place()
    far = ray_replica.RayReplica(handle, place, SPEC, 3)
    far.listen()
    return far, handle, place


class TestRayReplica(EngineContract):
    @pytest.fixture
    def on_engine(self, engine_host: EngineHost) -> Iterator[EngineUnderTest]:
        run = engine_host.loop.run
        far, _, _ = run(connected(engine_host.engine.slots[0].replica))
        yield EngineUnderTest(far, VllmPrompts(), CONTEXT, run)
        run(far.kill())

    def test_the_receipt_names_the_replica(self, on_engine: EngineUnderTest) -> None:
        assert on_engine(ask(on_engine, ticket(), max_tokens=2)).receipt.replica == 3

    def test_calls_under_way_are_told_of_a_lost_connection(self, engine_host: EngineHost) -> None:
        async def cut_off() -> tuple[list[Any], str]:
            far, handle, _ = await connected(engine_host.engine.slots[0].replica)
            streams = [
                far.generate(VllmPrompts().call(ticket(), 20, CONTEXT - 100, True))
                for _ in range(2)
            ]
            for stream in streams:
                await anext(stream)
            handle.cut.set()
            found = await asyncio.gather(*map(rest, streams), return_exceptions=True)
            await far.lost()
            with pytest.raises(ReplicaLostError) as again:
                await anext(far.generate(VllmPrompts().call(ticket(), 20, 4, True)))
            assert not far.is_serving
            assert await far.abort("any") is None
            for call in list(handle.actor._calls):
                await handle.actor.close(call)
            await far.kill()
            return found, str(again.value)

        found, again = engine_host.loop.run(cut_off())
        assert [type(error) for error in found] == [ReplicaLostError, ReplicaLostError]
        assert "Replica 3" in again
        assert "connection reset" in again


async def rest(stream: Any) -> None:
    async for _ in stream:
        pass


# ── on a replica that does as it is told ─────────────────────────────────────────────────────


class Scripted:
    """A replica whose calls say what the test tells them to."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[Any] = asyncio.Queue()
        self.closed: list[str] = []
        self.told: list[tuple[Any, ...]] = []
        self.ended = asyncio.Event()

    async def generate(self, call: Any) -> AsyncIterator[EngineChunk]:
        try:
            while (piece := await self.pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield EngineChunk(output=piece, receipt=None)
        finally:
            self.closed.append(call.ticket.call)

    async def abort(self, call: str) -> Receipt | None:
        return None

    def away(self, program: str, absence_s: Any) -> None:
        self.told.append(("away", program, *absence_s))

    def returns(self, program: str) -> None:
        self.told.append(("returns", program))

    def forget(self, program: str) -> None:
        self.told.append(("forget", program))

    async def lost(self) -> None:
        await self.ended.wait()

    async def stop(self) -> None:
        pass


def output(*tokens: int, finished: bool = False) -> Any:
    from vllm.outputs import CompletionOutput, RequestOutput

    text = "".join(f"{token} " for token in tokens)
    choice = CompletionOutput(0, text, list(tokens), None, None)
    return RequestOutput("r/1", None, [1], None, [choice], finished)


def a_call(call: str = "r/1") -> Any:
    return VllmPrompts().call(Ticket(program="r", call=call), 3, 50, True)


async def test_what_a_slow_reader_has_not_read_is_added_up() -> None:
    scripted = Scripted()
    far, _, _ = await connected(scripted)
    stream = far.generate(a_call())
    scripted.pieces.put_nowait(output(1))
    assert (await anext(stream)).output.outputs[0].token_ids == [1]
    for token in range(2, 9):
        scripted.pieces.put_nowait(output(token, finished=token == 8))
    while not far._streams["r/1"].has_ended:
        await asyncio.sleep(0)
    last = await anext(stream)
    assert last.output.outputs[0].token_ids == [2, 3, 4, 5, 6, 7, 8]
    assert last.output.outputs[0].text == "2 3 4 5 6 7 8 "
    assert last.output.finished
    assert [chunk async for chunk in stream] == []
    await far.kill()


async def test_calls_that_come_in_one_moment_go_out_together() -> None:
    far, handle, _ = await connected(Scripted())
    asked: list[str] = []
    tell = handle.actor.tell

    async def counted(orders: bytes) -> None:
        asked.append("tell")
        await tell(orders)

    handle.actor.tell = counted
    reading = [asyncio.create_task(rest(far.generate(a_call(f"r/{n}")))) for n in range(5)]
    while len(handle.actor._calls) < 5:
        await asyncio.sleep(0)
    assert asked == ["tell"]
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await asyncio.gather(*far._closing.values())
    assert handle.actor._calls == {}
    await far.kill()


async def test_the_replica_hears_of_programs_that_are_away_and_over_in_order() -> None:
    scripted = Scripted()
    far, handle, _ = await connected(scripted)
    far.away("a", (1.0, 2.5))
    far.forget("b")
    far.returns("a")
    far.away("c", ())
    while len(scripted.told) < 4:
        await asyncio.sleep(0)
    heard = [("away", "a", 1.0, 2.5), ("forget", "b"), ("returns", "a"), ("away", "c")]
    assert scripted.told == heard
    handle.cut.set()
    await far.lost()
    far.returns("a")
    far.forget("a")  # nobody is there to hear it, and nobody minds
    await far.kill()
    assert len(scripted.told) == 4


async def test_pieces_of_many_calls_come_in_one_batch() -> None:
    outbox = ray_actor.Outbox()
    from autellix.runtime.ray_wire import End

    puts = [asyncio.create_task(outbox.put(call, End(call))) for call in "abc"]
    again = asyncio.create_task(outbox.put("a", End("a", "second")))
    assert [item.call for item in await outbox.take()] == ["a", "b", "c"]
    assert [item.kind for item in await outbox.take()] == ["second"]
    await asyncio.gather(*puts, again)


async def test_what_the_replica_does_is_told_along_with_what_calls_say() -> None:
    scripted = Scripted()
    far, handle, _ = await connected(scripted)
    told: list[EngineStats] = []
    far.tell_stats_to(told.append)
    stats = EngineStats(
        running=1,
        call_levels={"r/1": 2},
        running_by_level=(0, 1),
        waiting_calls=["r/2"],
        preempted_calls=[],
        kv_usage=0.5,
    )
    handle.actor._outbox.tell(EngineStats(running=9))
    handle.actor._outbox.tell(stats)
    assert told == []
    scripted.pieces.put_nowait(output(1, finished=True))
    scripted.pieces.put_nowait(None)
    await rest(far.generate(a_call()))
    assert told == [stats]
    await far.kill()


async def test_a_call_is_served_no_further_than_the_network_takes_it() -> None:
    """Backpressure: the engine's front end is asked for more only once the last piece is taken."""
    scripted = Scripted()
    actor = ray_actor.ReplicaActor(NODE, "n1", scripted)
    for token in range(5):
        scripted.pieces.put_nowait(output(token))
    from autellix.runtime.ray_wire import Begin, encode_call, encode_orders

    await actor.tell(encode_orders([Begin("r/1", encode_call(a_call()))]))
    for _ in range(20):
        await asyncio.sleep(0)
    # One piece lies in the outbox and one waits for it to be taken.
    assert scripted.pieces.qsize() == 3
    await actor.close("r/1")


@pytest.mark.parametrize("error", [CallError("no such thing"), KeyError("odd")])
async def test_what_goes_wrong_on_the_other_side_ends_the_call(error: Exception) -> None:
    scripted = Scripted()
    far, handle, _ = await connected(scripted)
    scripted.pieces.put_nowait(output(1))
    scripted.pieces.put_nowait(error)
    with pytest.raises(Exception, match=str(error).strip("'")):
        await rest(far.generate(a_call()))
    assert handle.actor._calls == {}
    assert far._streams == far._sent == {}
    await far.kill()


async def test_a_call_that_is_given_up_is_given_up_on_the_other_side() -> None:
    scripted = Scripted()
    far, handle, _ = await connected(scripted)
    stream = far.generate(a_call())
    scripted.pieces.put_nowait(output(1))
    await anext(stream)
    await stream.aclose()
    assert await far.abort("r/1") is None
    assert scripted.closed == ["r/1"]
    assert handle.actor._calls == far._closing == far._sent == {}
    await far.kill()


async def test_the_loss_of_the_engine_is_told_though_its_process_lives() -> None:
    scripted = Scripted()
    far, handle, place = await connected(scripted)
    watching = asyncio.create_task(handle.actor._tell_of_loss(scripted))
    reading = asyncio.create_task(rest(far.generate(a_call())))
    await asyncio.sleep(0)
    scripted.ended.set()
    await far.lost()
    with pytest.raises(ReplicaLostError, match="engine's process ended"):
        await reading
    await far.kill()
    assert place.given_back == 1
    await watching


async def test_a_replica_that_is_stopped_ends_its_calls_and_takes_no_more() -> None:
    far, _, place = await connected(Scripted())
    reading = asyncio.create_task(rest(far.generate(a_call())))
    await asyncio.sleep(0)
    await far.stop()
    await far.stop()
    with pytest.raises(EngineStoppedError, match="stopped while"):
        await reading
    with pytest.raises(EngineStoppedError, match="no new calls"):
        await anext(far.generate(a_call()))
    assert place.given_back >= 1
