"""Two real replicas: calls are spread, and nothing is lost when one is killed or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from autellix import ChatAutellix
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.process_tree import descendants
from autellix.runtime.replica_slot import ReplicaSlot
from autellix.runtime.restarts import Restarts
from autellix.runtime.run_watch import RunWatch
from autellix.runtime.session import Session
from autellix.runtime.settings import Settings
from autellix.tracing.show import replica_lines
from autellix.tracing.trace_fields import trace_from_document
from tests.conftest import run_on
from tests.runtime.serve_client import Client, serving

pytestmark = pytest.mark.slow

PROGRAMS = 200
KILLS = 10


@pytest.fixture(scope="module")
def two_replicas() -> Iterator[EngineHost]:
    arguments = {"max_num_seqs": 16, "max_model_len": 1024}
    settings = Settings(quiet=True, replicas=2, balancer="least-used", engine_args=arguments)
    host = EngineHost.start(settings, restarts=Restarts(stall_s=5.0), metrics=True)
    cores = {core(slot) for slot in host.engine.slots}
    yield host
    cores |= {core(slot) for slot in host.engine.slots}
    cores |= set(descendants(cores))
    host.stop()
    asyncio.run(until_gone(cores))


@pytest.fixture
def run(two_replicas: EngineHost) -> Iterator[Session]:
    with run_on(two_replicas) as session:
        asyncio.run(until_all_serve(two_replicas))
        yield session


async def until_gone(pids: set[int]) -> None:
    """A killed process may stay in the table until whoever adopts it has heard."""
    while any(lives(pid) for pid in pids):
        await asyncio.sleep(0.05)


def lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def core(slot: ReplicaSlot) -> int:
    """Process id of a replica's engine core."""
    from autellix.runtime.vllm_names import core_processes

    gated: Any = slot.replica
    (process,) = core_processes(getattr(gated, "replica", gated).llm)
    assert process.pid is not None
    return process.pid


async def until_all_serve(host: EngineHost) -> None:
    while any(slot.state != "serving" for slot in host.engine.slots):
        assert not [slot.index for slot in host.engine.slots if slot.state == "failed"]
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


def test_the_metrics_of_a_server_have_both(two_replicas: EngineHost) -> None:
    asyncio.run(until_all_serve(two_replicas))
    with serving(two_replicas) as server:

        def finished() -> dict[str, float]:
            """Calls that vLLM and we have counted, by replica."""
            page = Client(server).http.get("/metrics").text
            found = {"0": 0.0, "1": 0.0, "ours": 0.0}
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    if sample.name == "vllm:request_success_total":
                        found[sample.labels["engine"]] += sample.value
                    if sample.name == "autellix_calls_total":
                        found["ours"] += sample.value
                    if sample.name == "autellix_replica_up":
                        assert sample.value == 1
            return found

        def ask(number: int) -> None:
            assert Client(server).chat(f"session-{number}").status_code == 200

        before = finished()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
        grown = {key: value - before[key] for key, value in finished().items()}
    assert grown["ours"] == 8
    assert grown["0"] + grown["1"] == 8
    assert min(grown["0"], grown["1"]) > 0


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
    lost = [c for c in run.record.document()["replica_changes"] if c["state"] == "lost"]
    assert len(lost) == KILLS


async def killed_under_calls(
    host: EngineHost, sign: int, count: int = 12
) -> tuple[list[str], ReplicaSlot]:
    """Send a signal to a replica while it serves; what its programs answer all the same."""
    asked = asyncio.create_task(programs(count, temperature=0))
    victim = host.engine.slots[0]
    while not victim.calls:
        await asyncio.sleep(0.01)
    os.kill(core(victim), sign)
    return await asked, victim


@pytest.mark.timeout(600)
def test_a_replica_that_is_stopped_is_killed_and_its_calls_go_on(
    two_replicas: EngineHost, run: Session
) -> None:
    before = two_replicas.engine.slots[0].restarts_done
    stopped = core(two_replicas.engine.slots[0])
    answers, victim = asyncio.run(killed_under_calls(two_replicas, signal.SIGSTOP))
    assert all(answers)
    assert {call["status"] for call in calls(run)} == {"done"}
    asyncio.run(until_all_serve(two_replicas))
    assert victim.restarts_done == before + 1
    asyncio.run(until_gone({stopped}))


def test_a_lost_replica_is_seen_as_lost(two_replicas: EngineHost, run: Session) -> None:
    watch = RunWatch(run)

    async def states() -> list[str]:
        os.kill(core(two_replicas.engine.slots[1]), signal.SIGKILL)
        while two_replicas.engine.slots[1].state == "serving":
            await asyncio.sleep(0.01)
        return [row.state for row in (await asyncio.to_thread(watch.snapshot)).replicas]

    first, second = asyncio.run(states())
    assert first == "serving"
    assert second in ("lost", "starting")
    asyncio.run(until_all_serve(two_replicas))
    changes = run.record.document()["replica_changes"]
    assert [(c["replica"], c["state"]) for c in changes] == [
        (1, "lost"),
        (1, "starting"),
        (1, "serving"),
    ]
    assert replica_lines(trace_from_document(run.record.document(), "t"))[0].startswith(
        "replica 1 was lost at"
    )


@pytest.mark.timeout(600)
def test_what_a_replica_was_asked_before_it_was_killed_is_awaited_by_nobody(
    two_replicas: EngineHost, run: Session
) -> None:
    slot = two_replicas.engine.slots[0]
    replica: Any = getattr(slot.replica, "replica", slot.replica)

    async def ask() -> list[Any]:
        return await asyncio.gather(replica.abort("a call"), replica._ask("autellix_stats"))

    async def asked() -> list[Any]:
        os.kill(core(slot), signal.SIGSTOP)
        asking = asyncio.create_task(run.loop.arun(ask()))
        while len(replica._questions) < 2:
            await asyncio.sleep(0.01)
        os.kill(core(slot), signal.SIGKILL)
        return await asking

    assert asyncio.run(asked()) == [None, None]
    asyncio.run(until_all_serve(two_replicas))


@pytest.mark.timeout(600)
def test_without_a_file_descriptor_left_calls_go_on_and_the_replica_comes_back_later(
    two_replicas: EngineHost, run: Session
) -> None:
    victim = two_replicas.engine.slots[0]
    failed: list[str] = []

    async def scarce() -> list[str]:
        asked = asyncio.create_task(programs(12, temperature=0))
        while not victim.calls:
            await asyncio.sleep(0.01)
        with no_file_descriptors():
            os.kill(core(victim), signal.SIGKILL)
            answers = await asked
            while victim.state == "serving":
                await asyncio.sleep(0.01)
            failed.append(victim.state)
        return answers

    assert all(asyncio.run(scarce()))
    assert failed[0] in ("lost", "starting")
    asyncio.run(until_all_serve(two_replicas))


@contextmanager
def no_file_descriptors() -> Iterator[None]:
    """Not a file, socket or process can be opened inside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(600)
def test_replicas_can_be_taken_away_and_added_while_programs_run(
    two_replicas: EngineHost, run: Session
) -> None:
    pool = two_replicas.engine
    gone = core(pool.slots[1])

    async def scaled() -> list[str]:
        asked = asyncio.create_task(programs(16, temperature=0))
        while not all(slot.calls for slot in pool.slots):
            await asyncio.sleep(0.01)
        await run.loop.arun(pool.scale(1))
        await until_gone({gone})
        answers = await asked
        again = asyncio.create_task(programs(4, temperature=0))
        await run.loop.arun(pool.scale(2))
        return answers + await again + await programs(8, temperature=0)

    assert all(asyncio.run(scaled()))
    assert {call["status"] for call in calls(run)} == {"done"}
    states = [(c["replica"], c["state"]) for c in run.record.document()["replica_changes"]]
    assert states == [(1, "draining"), (1, "stopped"), (1, "serving")]


@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_takes_its_replica_along_and_nothing_stays() -> None:
    """With workers of their own, as with several GPUs: here the engine core's one child."""
    arguments = {
        "max_num_seqs": 8,
        "max_model_len": 1024,
        "distributed_executor_backend": "mp",
    }
    host = EngineHost.start(Settings(quiet=True, engine_args=arguments))
    try:
        with run_on(host) as run:
            slot = host.engine.slots[0]
            (worker,) = [
                pid
                for pid in descendants([core(slot)])
                if psutil.Process(pid).memory_info().rss > 2**29
            ]

            async def killed() -> list[str]:
                asked = asyncio.create_task(programs(4, temperature=0))
                while not slot.calls:
                    await asyncio.sleep(0.01)
                os.kill(worker, signal.SIGKILL)
                return await asked

            before = set(descendants([core(slot)]))
            assert all(asyncio.run(killed()))
            assert {call["status"] for call in calls(run)} == {"done"}
            assert slot.restarts_done == 1
            asyncio.run(until_gone(before))
            os.kill(core(slot), signal.SIGSTOP)
            stopped = {core(slot), *descendants([core(slot)])}
    finally:
        host.stop()
    asyncio.run(until_gone(stopped))


@pytest.mark.timeout(600)
def test_an_engine_that_is_stopped_while_a_replica_comes_back_leaves_nothing() -> None:
    arguments = {"max_num_seqs": 8, "max_model_len": 1024}
    host = EngineHost.start(Settings(quiet=True, replicas=2, engine_args=arguments))
    slot = host.engine.slots[0]
    os.kill(core(slot), signal.SIGKILL)
    other = core(host.engine.slots[1])
    while slot.state != "starting":
        time.sleep(0.01)
    before = set(descendants([os.getpid()]))
    while not (new := set(descendants([os.getpid()])) - before):
        time.sleep(0.01)  # until the start has spawned its process
    host.stop()
    asyncio.run(until_gone({other, *new}))


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
