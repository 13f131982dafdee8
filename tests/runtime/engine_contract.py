"""What every ``Engine`` must do; a kind of engine is tested by a subclass that provides one.

A subclass defines the fixtures ``on_engine`` (an :class:`EngineUnderTest`), and is collected by
pytest; this module is not.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pytest

from autellix.errors import ContextLengthError
from autellix.runtime.protocols import Engine, EngineCall, EngineChunk
from autellix.scheduler.tickets import Receipt, Ticket

T = TypeVar("T")
WITHIN_S = 60.0
# Room for clocks read in two processes.
CLOCKS_S = 0.05
_numbers = itertools.count()


def receipt_of(ticket: Ticket) -> Receipt:
    """What a stand-in for an engine says that a call has cost."""
    return Receipt(
        program=ticket.program,
        call=ticket.call,
        service_s=1.0,
        wait_s=0.0,
        levels=(1,),
        preemptions=0,
    )


class Prompts(Protocol):
    """How to ask a kind of engine for something."""

    def call(self, ticket: Ticket, prompt_tokens: int, max_tokens: int, delta: bool) -> EngineCall:
        """A call with a prompt of that length and an answer of exactly ``max_tokens``."""
        ...

    def new_tokens(self, chunk: EngineChunk, delta: bool) -> int:
        """How many tokens the answer has by this chunk, or got in it if ``delta``."""
        ...


@dataclass
class EngineUnderTest:
    """An engine, the way into its loop, and how to ask it."""

    engine: Engine
    prompts: Prompts
    context: int
    run: Any

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run(asyncio.wait_for(work, WITHIN_S))


def ticket(program: str = "", **history: Any) -> Ticket:
    number = next(_numbers)
    return Ticket(program=program or f"contract-{number}", call=f"contract/{number}", **history)


@dataclass
class Answer:
    """A call as it was seen from outside."""

    chunks: list[EngineChunk]
    tokens: int
    wall_s: float

    @property
    def receipt(self) -> Receipt:
        receipt = self.chunks[-1].receipt
        assert receipt is not None
        return receipt


async def ask(
    on: EngineUnderTest,
    of: Ticket,
    *,
    prompt_tokens: int = 20,
    max_tokens: int = 8,
    delta: bool = True,
) -> Answer:
    began = time.monotonic()
    call = on.prompts.call(of, prompt_tokens, max_tokens, delta)
    chunks = [chunk async for chunk in on.engine.generate(call)]
    counts = [on.prompts.new_tokens(chunk, delta) for chunk in chunks]
    return Answer(chunks, sum(counts) if delta else counts[-1], time.monotonic() - began)


async def idle(on: EngineUnderTest) -> None:
    while (await on.engine.stats()).call_levels:
        pass


class EngineContract:
    """Tests of the protocol; none of them depends on how fast the engine is."""

    @pytest.mark.parametrize("delta", [True, False], ids=["delta", "cumulative"])
    def test_a_stream_ends_with_the_calls_receipt(
        self, on_engine: EngineUnderTest, delta: bool
    ) -> None:
        of = ticket("receipts")
        answer = on_engine(ask(on_engine, of, prompt_tokens=30, max_tokens=9, delta=delta))
        receipt = answer.receipt
        assert [chunk.receipt for chunk in answer.chunks[:-1]] == [None] * len(answer.chunks[:-1])
        assert (receipt.program, receipt.call) == (of.program, of.call)
        assert answer.tokens == receipt.output_tokens == 9
        assert receipt.prompt_tokens == 30
        assert 0 <= receipt.cached_tokens <= 30
        assert receipt.levels
        assert all(level >= 1 for level in receipt.levels)

    def test_service_and_wait_fit_into_the_wall_time(self, on_engine: EngineUnderTest) -> None:
        answer = on_engine(ask(on_engine, ticket(), max_tokens=12))
        receipt = answer.receipt
        assert receipt.service_s > 0
        assert receipt.wait_s >= 0
        assert receipt.service_s + receipt.wait_s <= answer.wall_s + CLOCKS_S

    def test_more_calls_than_seats_are_all_answered(self, on_engine: EngineUnderTest) -> None:
        async def crowd() -> tuple[list[Answer], int]:
            seats = (await on_engine.engine.stats()).seats
            calls = [ask(on_engine, ticket(), max_tokens=6) for _ in range(seats + 4)]
            return list(await asyncio.gather(*calls)), seats

        answers, seats = on_engine(crowd())
        assert seats > 0
        assert [answer.tokens for answer in answers] == [6] * (seats + 4)
        assert len({answer.receipt.call for answer in answers}) == seats + 4
        assert max(answer.receipt.wait_s for answer in answers) > 0

    def test_a_call_starts_in_the_level_of_its_attained_service(
        self, on_engine: EngineUnderTest
    ) -> None:
        fresh = on_engine(ask(on_engine, ticket(), max_tokens=2))
        old = on_engine(ask(on_engine, ticket(attained_s=1e6, program_service_s=1e6), max_tokens=2))
        assert fresh.receipt.levels[0] == 1
        assert old.receipt.levels[0] > 1

    @pytest.mark.parametrize("how", ["abort", "close", "cancel"])
    def test_a_call_that_is_given_up_is_freed_and_its_receipt_can_be_had(
        self, on_engine: EngineUnderTest, how: str
    ) -> None:
        of = ticket()

        async def give_up() -> Receipt | None:
            call = on_engine.prompts.call(of, 20, on_engine.context - 100, True)
            stream = on_engine.engine.generate(call)
            await anext(stream)
            assert of.call in (await on_engine.engine.stats()).call_levels
            if how == "close":
                await stream.aclose()
            elif how == "cancel":
                reading = asyncio.create_task(_drain(stream))
                await asyncio.sleep(0)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            receipt = await on_engine.engine.abort(of.call)
            await stream.aclose()
            await idle(on_engine)
            return receipt

        receipt = on_engine(give_up())
        assert receipt is not None
        assert (receipt.call, receipt.service_s > 0) == (of.call, True)
        assert 0 < receipt.output_tokens < on_engine.context - 100

    def test_aborting_what_is_not_known_does_nothing(self, on_engine: EngineUnderTest) -> None:
        assert on_engine(on_engine.engine.abort("nobody/0")) is None

    def test_a_prompt_longer_than_the_context_is_refused(self, on_engine: EngineUnderTest) -> None:
        with pytest.raises(ContextLengthError, match="Shorten"):
            on_engine(ask(on_engine, ticket(), prompt_tokens=on_engine.context + 10))
        on_engine(idle(on_engine))

    def test_stats_tell_what_runs_and_what_waits(self, on_engine: EngineUnderTest) -> None:
        async def look() -> Any:
            seats = (await on_engine.engine.stats()).seats
            tickets = [ticket() for _ in range(seats + 2)]
            streams = [
                on_engine.engine.generate(on_engine.prompts.call(of, 20, 400, True))
                for of in tickets
            ]
            reading = [asyncio.create_task(_drain(stream)) for stream in streams]
            while True:
                stats = await on_engine.engine.stats()
                if stats.running == seats and stats.waiting == 2:
                    break
            for of in tickets:
                await on_engine.engine.abort(of.call)
            await asyncio.gather(*reading, return_exceptions=True)
            await idle(on_engine)
            return stats, tickets, await on_engine.engine.stats()

        stats, tickets, after = on_engine(look())
        assert set(stats.call_levels) == {of.call for of in tickets}
        assert sum(stats.running_by_level) == stats.running
        assert sum(stats.waiting_by_level) == stats.waiting == len(stats.waiting_calls)
        assert set(stats.waiting_calls) <= set(stats.call_levels)
        assert 0 < stats.kv_usage <= 1
        assert stats.step_s > 0
        assert (after.running, after.waiting, after.kv_usage) == (0, 0, 0.0)

    def test_the_engine_says_what_it_is(self, on_engine: EngineUnderTest) -> None:
        engine = on_engine.engine
        assert (bool(engine.kind), bool(engine.model), engine.replicas >= 1) == (True, True, True)


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass
