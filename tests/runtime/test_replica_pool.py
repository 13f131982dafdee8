"""The pool answers every call once and whole, whatever happens to its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.errors import (
    CallError,
    EngineStartError,
    EngineStoppedError,
    ReplicaLostError,
    SettingsError,
)
from autellix.runtime import replica_slot
from autellix.runtime.protocols import EngineCall, EngineChunk, EngineStats
from autellix.runtime.replica_pool import ReplicaPool, together
from autellix.runtime.restarts import Losses, Restarts
from autellix.scheduler.balancers import LeastUsed, ProgramLocality
from autellix.scheduler.tickets import Receipt, Ticket
from tests.runtime.engine_contract import receipt_of

RESTARTS = Restarts(first_delay_s=0.0, longest_delay_s=0.0, tries=3)


def next_token(before: list[int]) -> int:
    """A model: the next token depends on all tokens before it."""
    return (sum(before) * 31 + len(before)) % 97


@dataclass
class FakeReplica:
    """Generates by :func:`next_token`, one step after the other; dies when it is told to.

    Attributes:
        dies_after: tokens that it gives in all before it is lost.
        steps: set once for each step that it may take; None takes them at once.
    """

    index: int
    dies_after: float = float("inf")
    hangs: bool = False
    kind: str = "fake"
    model: str = "fake"
    replicas: int = 1
    served: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    told_away: list[str] = field(default_factory=list)
    told_return: list[str] = field(default_factory=list)
    stopped: bool = False
    draining: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event | None = None
    live: set[str] = field(default_factory=set)

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        assert not self.draining, "a replica that is drained takes no calls"
        self.served.append(call.ticket.call)
        self.live.add(call.ticket.call)
        try:
            async for chunk in self.tokens(call):
                yield chunk
        finally:
            self.live.discard(call.ticket.call)

    async def tokens(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        prompt = list(call.prompt["prompt_token_ids"])
        given: list[int] = []
        for number in range(call.sampling.max_tokens):
            await asyncio.sleep(0)
            if self.go is not None:
                await self.go.wait()
            if self.gone.is_set() or self.dies_after <= 0:
                self.gone.set()
                raise ReplicaLostError("lost")
            self.dies_after -= 1
            given.append(next_token(prompt + given))
            last = number == call.sampling.max_tokens - 1
            receipt = receipt_of(call.ticket) if last else None
            yield EngineChunk(output=self.output(call, given, last), receipt=receipt)

    def output(self, call: EngineCall, given: list[int], last: bool) -> Any:
        new = given[-1:] if call.sampling.output_kind.name == "DELTA" else list(given)
        # The text of every fifth token is held back until the next one comes.
        shown = [t for i, t in enumerate(given) if i % 5 != 4 or i < len(given) - 1 or last]
        before = [t for i, t in enumerate(given[:-1]) if i % 5 != 4 or i < len(given) - 2]
        text = shown[len(before) :] if call.sampling.output_kind.name == "DELTA" else shown
        choice = SimpleNamespace(token_ids=new, text="".join(f"{t} " for t in text), logprobs=None)
        return SimpleNamespace(
            outputs=[choice], finished=last, prompt_token_ids=call.prompt["prompt_token_ids"]
        )

    async def abort(self, call_id: str) -> Receipt | None:
        return receipt_of(Ticket(program="p", call=call_id))

    async def drain(self) -> None:
        self.draining = True
        while self.live:
            await asyncio.sleep(0)

    async def stop(self) -> None:
        self.stopped = True

    def tell_stats_to(self, sink: Callable[[EngineStats], None]) -> None:
        self.sink = sink

    async def stats(self) -> EngineStats:
        if self.hangs:
            await asyncio.Event().wait()
        return EngineStats(running=1, seats=4, running_by_level=(1, 0))

    async def stats_of_replicas(self) -> list[EngineStats]:
        return [await self.stats()]

    async def lost(self) -> None:
        await self.gone.wait()

    async def kill(self) -> None:
        self.gone.set()

    def forget(self, program: str) -> None:
        self.forgotten.append(program)

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        self.told_away.append(program)

    def returns(self, program: str) -> None:
        self.told_return.append(program)


class Fleet:
    """What the pool starts: the replicas of each index in turn, as they are laid out."""

    def __init__(self, *lives: list[FakeReplica]) -> None:
        self.lives = [iter(life) for life in lives]
        self.started: list[FakeReplica] = []

    async def start(self, index: int) -> FakeReplica:
        await asyncio.sleep(0)
        replica = next(self.lives[index], None)
        if replica is None:
            raise EngineStartError("there are no more")
        self.started.append(replica)
        return replica


def call(
    name: str = "c", *, tokens: int = 12, program: str = "p", kind: str = "DELTA", **sampling: Any
) -> EngineCall:
    values: dict[str, Any] = {
        "n": 1,
        "seed": None,
        "temperature": 0.7,
        "stop": None,
        "structured_outputs": None,
        "min_tokens": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "prompt_logprobs": None,
        "max_tokens": tokens,
        "output_kind": SimpleNamespace(name=kind),
    }
    return EngineCall(
        ticket=Ticket(program=program, call=name, attained_s=3.5, prompt_tokens=4),
        prompt={"prompt_token_ids": [3, 1, 4, 1]},
        sampling=SimpleNamespace(**values | sampling),
    )


def right_answer(tokens: int = 12) -> list[int]:
    ids = [3, 1, 4, 1]
    for _ in range(tokens):
        ids.append(next_token(ids))
    return ids[4:]


async def answer(pool: ReplicaPool, asked: EngineCall) -> tuple[list[int], str, list[EngineChunk]]:
    """What the caller puts together from the stream."""
    ids: list[int] = []
    text = ""
    chunks = []
    async for chunk in pool.generate(asked):
        choice = chunk.output.outputs[0]
        delta = asked.sampling.output_kind.name == "DELTA"
        ids = ids + list(choice.token_ids) if delta else list(choice.token_ids)
        text = text + choice.text if delta else choice.text
        chunks.append(chunk)
    return ids, text, chunks


def with_pool(
    fleet: Fleet,
    work: Callable[[ReplicaPool], Awaitable[Any]],
    *,
    restarts: Restarts = RESTARTS,
    balancer: Any = None,
) -> Any:
    async def run() -> Any:
        pool = await ReplicaPool.start(
            fleet.start,
            len(fleet.lives),
            balancer or LeastUsed(),
            kind="fake",
            model="fake",
            restarts=restarts,
        )
        try:
            return await asyncio.wait_for(work(pool), 30)
        finally:
            await pool.stop()

    return asyncio.run(run())


# ── a replica is lost ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["DELTA", "CUMULATIVE", "FINAL_ONLY"])
@settings(deadline=None)
@given(deaths=st.lists(st.integers(0, 14), min_size=1, max_size=2), seed=st.sampled_from([None, 7]))
def test_the_answer_is_the_same_whenever_replicas_are_lost(
    kind: str, deaths: list[int], seed: int | None
) -> None:
    fleet = Fleet([FakeReplica(0, after) for after in deaths] + [FakeReplica(0)])

    async def work(pool: ReplicaPool) -> None:
        ids, text, chunks = await answer(pool, call(kind=kind, seed=seed))
        assert ids == right_answer()
        assert text == "".join(f"{token} " for token in right_answer())
        assert chunks[-1].receipt is not None
        assert all(chunk.output.prompt_token_ids == [3, 1, 4, 1] for chunk in chunks)
        assert pool._where == {}

    with_pool(fleet, work)


def test_the_call_goes_on_at_once_on_another_replica_with_its_ticket() -> None:
    first, second = FakeReplica(0, dies_after=3), FakeReplica(1)
    tickets: list[Ticket] = []
    generate = second.generate

    def seen(asked: EngineCall) -> Any:
        tickets.append(asked.ticket)
        return generate(asked)

    second.generate = seen  # type: ignore[method-assign]
    ids, _, _ = with_pool(Fleet([first], [second]), lambda pool: answer(pool, call()))
    assert ids == right_answer()
    assert tickets == [call().ticket]
    assert tickets[0].attained_s == 3.5


def test_tokens_delivered_are_prefilled_not_generated_again() -> None:
    first, second = FakeReplica(0, dies_after=8), FakeReplica(1)
    with_pool(Fleet([first], [second]), lambda pool: answer(pool, call(tokens=12)))
    # Eight tokens were delivered, all with their text.
    assert second.dies_after == float("inf")
    assert second.served == ["c"]
    prompts: list[int] = []
    first, second = FakeReplica(0, dies_after=8), FakeReplica(1)
    generate = second.generate

    def seen(asked: EngineCall) -> Any:
        prompts.append(len(asked.prompt["prompt_token_ids"]))
        return generate(asked)

    second.generate = seen  # type: ignore[method-assign]
    with_pool(Fleet([first], [second]), lambda pool: answer(pool, call(tokens=12)))
    assert prompts == [4 + 8]


@pytest.mark.parametrize(
    "sampling",
    [
        {"stop": ["END"]},
        {"structured_outputs": object()},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.2},
        {"n": 2},
        {"min_tokens": 3},
    ],
)
def test_a_call_that_cannot_go_on_exactly_gets_an_error_that_says_so(
    sampling: dict[str, Any],
) -> None:
    fleet = Fleet([FakeReplica(0, dies_after=3)], [FakeReplica(1)])
    with pytest.raises(CallError, match=r"lost after 3 tokens.*set a seed"):
        with_pool(fleet, lambda pool: answer(pool, call(**sampling)))


@pytest.mark.parametrize("sampling", [{"seed": 1}, {"temperature": 0.0}])
def test_the_same_call_with_a_seed_or_greedy_is_answered_whole(sampling: dict[str, Any]) -> None:
    fleet = Fleet([FakeReplica(0, dies_after=3)], [FakeReplica(1)])
    asked = call(stop=["END"], **sampling)
    ids, text, _ = with_pool(fleet, lambda pool: answer(pool, asked))
    assert (ids, text) == (right_answer(), "".join(f"{token} " for token in right_answer()))


def test_another_answer_than_what_was_delivered_is_an_error_not_a_mixture() -> None:
    fleet = Fleet([FakeReplica(0, dies_after=3)], [FakeReplica(1)])
    other = fleet.lives[1]
    replica = next(other)
    replica.output = lambda asked, given, last: FakeReplica.output(  # type: ignore[method-assign]
        replica, asked, [token + 1 for token in given], last
    )
    fleet.lives[1] = iter([replica])
    with pytest.raises(CallError, match="answers differently"):
        with_pool(fleet, lambda pool: answer(pool, call(seed=1)))


def test_a_call_that_gets_nowhere_on_five_replicas_is_given_up() -> None:
    fleet = Fleet([*(FakeReplica(0, dies_after=0) for _ in range(5)), FakeReplica(0)])

    async def work(pool: ReplicaPool) -> Any:
        with pytest.raises(CallError, match="5 replicas were lost while they served this call"):
            await answer(pool, call())
        return await answer(pool, call("next"))

    restarts = Restarts(first_delay_s=0.0, longest_delay_s=0.0)
    # It has not taken the place with it.
    assert with_pool(fleet, work, restarts=restarts)[0] == right_answer()


def test_two_hundred_calls_all_end_while_replicas_are_lost() -> None:
    fleet = Fleet(
        [FakeReplica(0, dies_after=400), FakeReplica(0, dies_after=300), FakeReplica(0)],
        [FakeReplica(1, dies_after=700), FakeReplica(1)],
    )

    async def work(pool: ReplicaPool) -> list[Any]:
        asked = [call(f"c{i}", program=f"p{i}") for i in range(200)]
        return await asyncio.gather(*(answer(pool, one) for one in asked))

    answers = with_pool(fleet, work)
    assert [ids for ids, _, _ in answers] == [right_answer()] * 200
    # Each answer ends with one receipt.
    assert [sum(c.receipt is not None for c in chunks) for *_, chunks in answers] == [1] * 200


# ── restarts ─────────────────────────────────────────────────────────────────────────────────


def test_calls_wait_for_a_replica_that_is_being_started_again() -> None:
    coming = asyncio.Event
    fleet = Fleet([FakeReplica(0, dies_after=0), FakeReplica(0)])
    start = fleet.start

    async def work(pool: ReplicaPool) -> None:
        gate = coming()

        async def late(index: int) -> FakeReplica:
            await gate.wait()
            return await start(index)

        pool.slots[0]._start = late
        waiting = asyncio.create_task(answer(pool, call()))
        while pool.slots[0].state != "starting":
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.set()
        assert (await waiting)[0] == right_answer()
        assert pool.slots[0].restarts_done == 1

    with_pool(fleet, work)


def test_an_idle_replica_that_is_lost_is_started_again_too() -> None:
    fleet = Fleet([FakeReplica(0), FakeReplica(0)])

    async def work(pool: ReplicaPool) -> None:
        fleet.started[0].gone.set()
        while pool.slots[0].restarts_done == 0:
            await asyncio.sleep(0)
        assert pool.slots[0].replica is fleet.started[1]

    with_pool(fleet, work)


def test_a_replica_that_never_comes_up_again_is_given_up_and_said() -> None:
    fleet = Fleet([FakeReplica(0, dies_after=0)])
    with pytest.raises(EngineStoppedError, match="No replica serves any more"):
        with_pool(fleet, lambda pool: answer(pool, call()))


def test_one_that_hangs_under_calls_is_killed_and_its_calls_go_on() -> None:
    hanging = FakeReplica(0, hangs=True)
    fleet = Fleet([hanging], [FakeReplica(1)])
    restarts = Restarts(first_delay_s=0, longest_delay_s=0, tries=1, stall_s=0.02)

    async def work(pool: ReplicaPool) -> Any:
        hanging.go = asyncio.Event()
        waiting = asyncio.create_task(answer(pool, call()))
        await asyncio.wait_for(hanging.gone.wait(), 20)
        hanging.go.set()
        return await waiting

    assert with_pool(fleet, work, restarts=restarts)[0] == right_answer()


def test_one_that_dies_right_after_each_start_is_given_up() -> None:
    lives = [FakeReplica(0, dies_after=0) for _ in range(20)]
    fleet = Fleet(lives, [FakeReplica(1)])

    async def work(pool: ReplicaPool) -> list[int]:
        for number in range(30):
            if not pool.slots[0].may_serve_again:
                break
            for life in fleet.started:
                life.gone.set() if life.index == 0 else None
            await answer(pool, call(f"c{number}"))
            await asyncio.sleep(0)
        return (await answer(pool, call("last")))[0]

    assert with_pool(fleet, work) == right_answer()
    assert sum(life.index == 0 for life in fleet.started) == RESTARTS.tries


def test_one_that_answers_calls_is_started_again_however_often_it_is_lost() -> None:
    deaths = 4 * RESTARTS.tries
    fleet = Fleet([FakeReplica(0) for _ in range(deaths + 1)])

    async def work(pool: ReplicaPool) -> None:
        for number in range(deaths):
            await answer(pool, call(f"c{number}"))
            fleet.started[-1].gone.set()
            while pool.slots[0].restarts_done <= number:
                await asyncio.sleep(0)

    with_pool(fleet, work)
    assert len(fleet.started) == deaths + 1


def test_pauses_grow_with_losses_in_a_row_and_end_with_a_settled_one() -> None:
    losses = Losses(Restarts(first_delay_s=1.0, longest_delay_s=5.0, tries=9, settled_s=60.0))
    delays = []
    for _ in range(5):
        losses.lost(after_s=1.0, answered=True)
        delays.append(losses.delay_s)
    assert delays == [0.0, 1.0, 2.0, 4.0, 5.0]
    losses.lost(after_s=61.0, answered=False)
    assert (losses.delay_s, losses.in_vain) == (0.0, 0)
    losses.not_started()
    assert (losses.delay_s, losses.in_vain) == (1.0, 1)


def test_if_one_does_not_start_the_others_are_stopped() -> None:
    fleet = Fleet([FakeReplica(0)], [])
    with pytest.raises(EngineStartError, match="no more"):
        with_pool(fleet, lambda pool: answer(pool, call()))
    assert [replica.stopped for replica in fleet.started] == [True]


# ── places, scale, end ───────────────────────────────────────────────────────────────────────


def test_the_balancer_places_calls_and_forgets_programs_that_end() -> None:
    fleet = Fleet([FakeReplica(0)], [FakeReplica(1)])
    balancer = ProgramLocality(short_tokens=0)

    async def work(pool: ReplicaPool) -> None:
        await asyncio.gather(
            *(answer(pool, call(f"{p}{i}", program=p)) for p in "ab" for i in "12")
        )
        pool.forget("a")
        pool.away("b", (1.0, 2.0))
        pool.returns("b")

    with_pool(fleet, work, balancer=balancer)
    served = sorted(sorted(replica.served) for replica in fleet.started)
    assert served == [["a1", "a2"], ["b1", "b2"]]
    assert list(balancer._home) == ["b"]
    # Each replica hears of the programs that it has served.
    of_a, of_b = sorted(fleet.started, key=lambda replica: sorted(replica.served))
    assert (of_a.forgotten, of_a.told_away) == (["a"], [])
    assert (of_b.forgotten, of_b.told_away) == ([], ["b"])
    assert (of_a.told_return, of_b.told_return) == ([], ["b"])


def test_programs_whose_end_nobody_tells_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_slot, "_MOST_PROGRAMS", 20)
    fleet = Fleet([FakeReplica(0)])

    async def work(pool: ReplicaPool) -> None:
        for number in range(60):
            await answer(pool, call(f"once{number}", tokens=1, program=f"once{number}"))
            await answer(pool, call(f"often{number}", tokens=1, program="often"))
        assert len(pool.slots[0].programs) == 20
        for program in ("often", "once59", "once0"):
            pool.forget(program)
        assert len(pool.slots[0].programs) == 18

    with_pool(fleet, work)
    assert fleet.started[0].forgotten == ["often", "once59"]


def test_growing_starts_replicas_and_shrinking_drains_the_last_ones() -> None:
    fleet = Fleet([FakeReplica(0)], [FakeReplica(1)])

    async def work(pool: ReplicaPool) -> None:
        await pool.scale(1)
        assert pool.replicas == 1
        assert fleet.started[1].draining
        assert fleet.started[1].stopped
        fleet.lives[1] = iter([FakeReplica(1)])
        await pool.scale(2)
        assert [slot.state for slot in pool.slots] == ["serving", "serving"]

    with_pool(fleet, work)


def test_calls_go_on_while_replicas_come_and_go() -> None:
    fleet = Fleet([FakeReplica(0)], [FakeReplica(1)], [FakeReplica(2)], [FakeReplica(3)])

    async def work(pool: ReplicaPool) -> list[Any]:
        async def ask(number: int) -> Any:
            for _ in range(number % 17):
                await asyncio.sleep(0)
            return await answer(pool, call(f"c{number}", program=f"p{number}"))

        asked = [asyncio.create_task(ask(number)) for number in range(100)]
        await asyncio.sleep(0)
        for replicas in (1, 3, 2, 4):
            for index, life in enumerate(fleet.lives):
                fleet.lives[index] = iter([*life, FakeReplica(index)])
            await pool.scale(replicas)
            assert pool.replicas == replicas
        return [ids for ids, _, _ in await asyncio.gather(*asked)]

    assert with_pool(fleet, work) == [right_answer()] * 100


def test_all_that_leave_stop_taking_calls_at_once() -> None:
    first, second, third = FakeReplica(0), FakeReplica(1), FakeReplica(2)
    fleet = Fleet([first], [second], [third])

    async def work(pool: ReplicaPool) -> None:
        second.go = asyncio.Event()
        first_call = asyncio.create_task(answer(pool, call("a")))
        second_call = asyncio.create_task(answer(pool, call("b")))
        while not second.served:
            await asyncio.sleep(0)
        shrinking = asyncio.create_task(pool.scale(1))
        while not third.draining:
            await asyncio.sleep(0)
        assert [slot.state for slot in pool.slots[:2]] == ["serving", "draining"]
        assert not shrinking.done()
        second.go.set()
        await shrinking
        assert [(await one)[0] for one in (first_call, second_call)] == [right_answer()] * 2

    with_pool(fleet, work)


def test_a_new_replica_that_does_not_come_up_leaves_the_others_as_they_were() -> None:
    fleet = Fleet([FakeReplica(0)])

    async def work(pool: ReplicaPool) -> None:
        fleet.lives += [iter([FakeReplica(1)]), iter([])]
        with pytest.raises(EngineStartError, match="no more"):
            await pool.scale(3)
        assert pool.replicas == 1
        assert fleet.started[1].stopped
        assert (await answer(pool, call()))[0] == right_answer()
        with pytest.raises(SettingsError, match="replicas must be"):
            await pool.scale(0)

    with_pool(fleet, work)


def test_the_state_of_each_replica_comes_to_the_pool_unasked() -> None:
    fleet = Fleet([FakeReplica(0)], [FakeReplica(1)])

    async def work(pool: ReplicaPool) -> None:
        fleet.started[1].sink(EngineStats(running=3, waiting=2, kv_usage=0.4, step_s=0.02))
        first, second = pool.told
        assert (second.running, second.waiting, second.kv_usage, second.step_s) == (3, 2, 0.4, 0.02)
        assert (first.seats, second.seats) == (4, 4)  # sizes stay as they were at the start
        fleet.started[1].gone.set()
        while pool.slots[1].state == "serving":
            await asyncio.sleep(0)
        assert pool.told[1].state != "serving"

    with_pool(fleet, work)


def test_a_step_that_is_told_is_a_sign_of_life() -> None:
    fleet = Fleet([FakeReplica(0)])

    async def work(pool: ReplicaPool) -> None:
        pool.slots[0]._heard_s = 0.0
        fleet.started[0].sink(EngineStats(running=1))
        assert pool.slots[0]._heard_s > 0.0

    with_pool(fleet, work)


def test_what_was_told_last_stands_in_for_a_replica_that_does_not_answer_in_time() -> None:
    fleet = Fleet([FakeReplica(0)])

    async def work(pool: ReplicaPool) -> None:
        fleet.started[0].sink(EngineStats(running=5))
        fleet.started[0].hangs = True
        assert (await pool.slots[0].stats(0.0)).running == 5

    with_pool(fleet, work)


def test_a_loss_is_told_and_a_lost_replica_is_not_an_idle_one() -> None:
    fleet = Fleet([FakeReplica(0), FakeReplica(0)], [FakeReplica(1)])
    told: list[tuple[int, str]] = []
    seen: list[str] = []

    async def work(pool: ReplicaPool) -> None:
        pool.on_state = lambda replica, state: told.append((replica, state))
        start = pool.slots[0]._start
        gate = asyncio.Event()

        async def late(index: int) -> FakeReplica:
            await gate.wait()
            return await start(index)

        pool.slots[0]._start = late
        fleet.started[0].gone.set()
        while pool.slots[0].state == "serving":
            await asyncio.sleep(0)
        seen.extend(stats.state for stats in await pool.stats_of_replicas())
        gate.set()
        while pool.slots[0].state != "serving":
            await asyncio.sleep(0)

    with_pool(fleet, work)
    assert told[:3] == [(0, "lost"), (0, "starting"), (0, "serving")]
    assert seen[0] in ("lost", "starting")
    assert seen[1] == "serving"


def test_starts_that_fail_for_want_of_file_descriptors_are_tried_again_and_again() -> None:
    fleet = Fleet([FakeReplica(0), FakeReplica(0)], [FakeReplica(1)])

    async def work(pool: ReplicaPool) -> None:
        start = pool.slots[0]._start
        shortage = EngineStartError("too few")
        shortage.__cause__ = OSError(24, "Too many open files")
        failures = iter([OSError(24, "Too many open files"), shortage] * RESTARTS.tries)

        async def scarce(index: int) -> FakeReplica:
            if (failure := next(failures, None)) is not None:
                raise failure
            return await start(index)

        pool.slots[0]._start = scarce
        fleet.started[0].gone.set()
        while pool.slots[0].restarts_done == 0:
            await asyncio.sleep(0)

    with_pool(fleet, work)


def test_what_is_left_of_a_lost_replica_keeps_no_new_one_away() -> None:
    fleet = Fleet([FakeReplica(0), FakeReplica(0)])

    async def work(pool: ReplicaPool) -> list[int]:
        async def stuck() -> None:
            raise OSError(24, "Too many open files")

        fleet.started[0].kill = stuck  # type: ignore[method-assign]
        fleet.started[0].gone.set()
        while pool.slots[0].restarts_done == 0:
            await asyncio.sleep(0)
        return (await answer(pool, call()))[0]

    assert with_pool(fleet, work) == right_answer()


def test_a_place_that_cannot_be_kept_is_given_up_not_left_waiting() -> None:
    fleet = Fleet([FakeReplica(0)], [FakeReplica(1)])

    async def work(pool: ReplicaPool) -> list[int]:
        async def broken(index: int) -> FakeReplica:
            raise ZeroDivisionError

        pool.slots[0]._start = broken
        fleet.started[0].gone.set()
        while pool.slots[0].state != "failed":
            await asyncio.sleep(0)
        return (await answer(pool, call()))[0]

    assert with_pool(fleet, work) == right_answer()


def test_a_drained_pool_takes_no_calls_and_waits_for_those_it_has() -> None:
    fleet = Fleet([FakeReplica(0)])

    async def work(pool: ReplicaPool) -> None:
        fleet.started[0].go = asyncio.Event()
        under_way = asyncio.create_task(answer(pool, call()))
        while not fleet.started[0].served:
            await asyncio.sleep(0)
        draining = asyncio.create_task(pool.drain())
        await asyncio.sleep(0)
        with pytest.raises(EngineStoppedError, match="told to stop"):
            await answer(pool, call("late"))
        assert not draining.done()
        fleet.started[0].go.set()
        await draining
        assert (await under_way)[0] == right_answer()

    with_pool(fleet, work)


def test_an_abort_reaches_the_replica_of_the_call() -> None:
    fleet = Fleet([FakeReplica(0)])

    async def work(pool: ReplicaPool) -> Receipt | None:
        stream = pool.generate(call())
        await anext(stream)
        await stream.aclose()
        receipt = await pool.abort("c")
        assert await pool.abort("c") is None
        assert not pool.slots[0].calls
        return receipt

    receipt = with_pool(fleet, work)
    assert receipt is not None
    assert receipt.call == "c"


def test_the_state_of_all_is_their_sum() -> None:
    size: dict[str, Any] = {"seats": 4, "kv_tokens": 100, "block_tokens": 16, "token_budget": 64}
    one = EngineStats(running=2, running_by_level=(2,), kv_usage=0.5, step_s=0.1, **size)
    two = EngineStats(running=1, running_by_level=(0, 1), waiting_calls=["x"], step_s=0.3, **size)
    both = together([one, two])
    assert (both.running, both.seats, both.running_by_level) == (3, 8, (2, 1))
    assert (both.kv_tokens, both.block_tokens, both.token_budget) == (200, 16, 128)
    assert (both.kv_usage, both.step_s, list(both.waiting_calls)) == (0.25, 0.3, ["x"])
    assert (both.kv_host_usage, both.kv_host_tokens) == (None, 0)
    with_tier = replace(one, kv_host_usage=0.5, kv_host_tokens=1000)
    assert together([with_tier, two]).kv_host_usage == 0.5
    assert together([with_tier, with_tier]).kv_host_tokens == 2000
