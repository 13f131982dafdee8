"""What vLLM's front end asks for reaches the engine with tickets, and leaves nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams

from autellix.errors import ReplicaLostError
from autellix.runtime.engine_front import PromptSink, engine_front
from autellix.runtime.protocols import EngineCall, EngineChunk
from autellix.scheduler.tickets import Ticket
from tests.runtime.engine_contract import receipt_of


class Told:
    """An engine of which only what it is told counts; answers a token at a time.

    Attributes:
        heard: calls and programs, in the order in which it was told of them.
        tickets: of its calls.
    """

    def __init__(self, *, is_lost: bool = False) -> None:
        self.heard: list[tuple[str, str]] = []
        self.tickets: list[Ticket] = []
        self._is_lost = is_lost

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        ticket = call.ticket
        self.heard.append(("call", ticket.call))
        self.tickets.append(ticket)
        if self._is_lost:
            raise ReplicaLostError("lost")
        for last in (False, True):
            output: Any = SimpleNamespace(finished=last, outputs=[])
            yield EngineChunk(output=output, receipt=receipt_of(ticket) if last else None)

    async def abort(self, call_id: str) -> None:
        self.heard.append(("abort", call_id))

    def forget(self, program: str) -> None:
        self.heard.append(("forget", program))


async def ask(
    engine: Told, ticket: Ticket | None, *, pieces: int, on_prompt: PromptSink | None = None
) -> None:
    lent = SimpleNamespace(vllm_config=None, model_config=None, renderer=None, input_processor=None)
    front = engine_front(engine, lent)  # type: ignore[arg-type]
    front.on_prompt = on_prompt or front.on_prompt
    sampling = SamplingParams(extra_args=dict(ticket.to_flat()) if ticket else None)
    stream = front.generate({"prompt_token_ids": [1, 2]}, sampling, "request")
    for _ in range(pieces):
        if await anext(stream, None) is None:
            break
    await stream.aclose()


def test_a_call_without_a_ticket_is_a_program_that_ends_with_it() -> None:
    engine = Told()
    asyncio.run(ask(engine, None, pieces=3))
    assert engine.heard == [("call", "request"), ("forget", "request")]


def test_the_same_where_it_is_given_up_once_its_receipt_was_asked_for() -> None:
    engine = Told()
    asyncio.run(ask(engine, None, pieces=1))
    assert engine.heard == [("call", "request"), ("abort", "request"), ("forget", "request")]


def test_the_same_where_it_fails() -> None:
    engine = Told(is_lost=True)
    with pytest.raises(ReplicaLostError):
        asyncio.run(ask(engine, None, pieces=1))
    assert engine.heard[-1] == ("forget", "request")


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_program_with_a_ticket_goes_on_after_its_call(pieces: int) -> None:
    engine = Told()
    asyncio.run(ask(engine, Ticket(program="agent", call="agent/1"), pieces=pieces))
    assert "forget" not in [what for what, _ in engine.heard]


def test_the_ticket_that_the_engine_gets_knows_the_length_of_the_prompt() -> None:
    engine, asked = Told(), []

    def placed(ticket: Ticket, prompt_tokens: int) -> Ticket:
        asked.append(prompt_tokens)
        return ticket._replace(prompt_tokens=prompt_tokens, course=(0.0, 9.0))

    asyncio.run(ask(engine, Ticket(program="agent", call="agent/1"), pieces=3, on_prompt=placed))
    assert asked == [2]
    assert engine.tickets == [
        Ticket(program="agent", call="agent/1", prompt_tokens=2, course=(0.0, 9.0))
    ]
