"""Two real replicas: calls are spread, and nothing is lost when one is killed or hangs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from autellix import ChatAutellix
from autellix.runtime.engine_host import ENGINE_PROCESS, EngineHost
from autellix.runtime.replica_slot import ReplicaSlot
from autellix.runtime.session import Session
from autellix.runtime.settings import Settings
from tests.conftest import run_on

pytestmark = pytest.mark.slow

PROGRAMS = 200
KILLS = 10


@pytest.fixture(scope="module")
def two_replicas() -> Iterator[EngineHost]:
    arguments = {"max_num_seqs": 16, "max_model_len": 1024}
    settings = Settings(quiet=True, replicas=2, balancer="least-used", engine_args=arguments)
    host = EngineHost.start(settings)
    yield host
    host.stop()
    children = multiprocessing.active_children()
    assert not [child for child in children if child.name.startswith(ENGINE_PROCESS)]


@pytest.fixture
def run(two_replicas: EngineHost) -> Iterator[Session]:
    with run_on(two_replicas) as session:
        yield session


def core(slot: ReplicaSlot) -> int:
    """Process id of a replica's engine core."""
    from autellix.runtime.vllm_names import core_processes

    replica: Any = slot.replica
    (process,) = core_processes(replica.llm)
    assert process.pid is not None
    return process.pid


async def until_all_serve(host: EngineHost) -> None:
    while any(slot.state != "serving" for slot in host.engine.slots):
        await asyncio.sleep(0.1)


def calls(run: Session) -> list[dict[str, Any]]:
    return [call for program in run.record.document()["programs"] for call in program["calls"]]


def model(**settings: Any) -> ChatAutellix:
    return ChatAutellix(max_tokens=24, model_kwargs={"ignore_eos": True}, **settings)


async def programs(count: int, **settings: Any) -> list[str]:
    """So many programs of two calls each; what they answered."""

    async def program(number: int) -> str:
        chat = model(**settings)
        first = await chat.ainvoke(f"Tell me something about the number {number}.")
        second = [chunk.text async for chunk in chat.astream(f"Repeat: {first.text}")]
        return first.text + "".join(second)

    return await asyncio.gather(*(program(number) for number in range(count)))


def test_calls_are_spread_over_both(two_replicas: EngineHost, run: Session) -> None:
    asyncio.run(programs(8, temperature=0))
    served = {call["replica"] for call in calls(run)}
    assert served == {0, 1}


@pytest.mark.timeout(1800)
def test_all_programs_finish_whenever_a_replica_is_killed(
    two_replicas: EngineHost, run: Session
) -> None:
    async def killed_once(number: int) -> list[str]:
        await until_all_serve(two_replicas)
        asked = asyncio.create_task(programs(PROGRAMS // KILLS, temperature=0.7))
        victim = two_replicas.engine.slots[number % 2]
        while not victim.calls:
            await asyncio.sleep(0.01)
        os.kill(core(victim), signal.SIGKILL)
        return await asked

    answers = [answer for number in range(KILLS) for answer in asyncio.run(killed_once(number))]
    assert len(answers) == PROGRAMS
    assert all(answers)
    assert len(calls(run)) == 2 * PROGRAMS
    assert {call["status"] for call in calls(run)} == {"done"}
    assert sum(slot.restarts_done for slot in two_replicas.engine.slots) >= KILLS - 1
    assert two_replicas.engine._where == {}


def test_a_stream_goes_on_with_what_it_would_have_said(
    two_replicas: EngineHost, run: Session
) -> None:
    chat = model(temperature=0, seed=7)

    async def interrupted() -> tuple[str, str]:
        await until_all_serve(two_replicas)
        whole = (await chat.ainvoke("Count from one to ten.")).text
        text = ""
        async for chunk in chat.astream("Count from one to ten."):
            if not text and chunk.text:
                (busy,) = [slot for slot in two_replicas.engine.slots if slot.calls]
                os.kill(core(busy), signal.SIGKILL)
            text += chunk.text
        return whole, text

    whole, text = asyncio.run(interrupted())
    assert text == whole
