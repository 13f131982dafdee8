"""Replicas on a real Ray cluster: three nodes on this machine, of one core each.

The first part needs no engine: what is wrong is said within half a minute, and nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from autellix import ChatAutellix
from autellix.errors import (
    AutellixError,
    EngineStartError,
    ModelError,
    SettingsError,
    VersionError,
)
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="needs Ray: pip install 'autellix[ray]'")
pytest.importorskip("vllm", reason="needs the engine")
from ray.cluster_utils import Cluster  # noqa: E402

GIB = 2**30
NODE = {"num_cpus": 1, "memory": 4 * GIB, "object_store_memory": 80 * 2**20}
PROGRAMS = 100
WITHIN_S = 30.0
SMALL = {"max_num_seqs": 8, "max_model_len": 1024}


@pytest.fixture(autouse=True)
def little_kv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other engines of this process have set: the nodes here have little memory."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


@contextlib.contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """A cluster of so many nodes, its head among them."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


def replica_processes() -> list[psutil.Process]:
    """Processes of replicas on this test's nodes, and their engines."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "_OnNode" in " ".join(process.cmdline()):
                found += [process, *process.children(recursive=True)]
    return found


def wait_until_gone(processes: list[psutil.Process]) -> None:
    """What a killed parent has left dead and not collected does not count."""
    deadline = time.monotonic() + 20
    while any(map(runs, processes)):
        assert time.monotonic() < deadline, f"left running: {processes}"


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_node(node: Any) -> None:
    """The machine is gone, with all that ran on it."""
    for raylet in node.all_processes["raylet"]:
        process = psutil.Process(raylet.process.pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)


def start(address: str, **given: Any) -> EngineHost:
    settings = {"quiet": True, "engine": "ray", "ray_address": address, "engine_args": SMALL}
    return EngineHost.start(Settings(**settings | given))


@contextlib.contextmanager
def refused_soon(kind: type[AutellixError], match: str) -> Iterator[None]:
    """Inside, a start is refused in so many words, soon, and leaves nothing behind."""
    before = {process.pid for process in replica_processes()}
    began = time.monotonic()
    with pytest.raises(kind, match=match) as raised:
        yield
    assert time.monotonic() - began < WITHIN_S
    assert "\n" not in str(raised.value)
    assert not ray.is_initialized()
    wait_until_gone([p for p in replica_processes() if p.pid not in before])


# ── what is wrong is said ────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def one_node() -> Iterator[str]:
    with cluster_of(1) as cluster:
        yield cluster.address


def test_a_head_that_is_not_there_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with refused_soon(EngineStartError, rf"no Ray head at {address}: .*ray start --head"):
        start(address)


def test_a_server_that_is_no_head_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from autellix.runtime import ray_cluster

    monkeypatch.setattr(ray_cluster, "_ANSWERED_WITHIN_S", 4.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with refused_soon(EngineStartError, rf"{address} does not answer as the head"):
            start(address)


@pytest.mark.parametrize("address", ["ray://head:10001", ":6379", "head:port"])
def test_an_address_that_is_none_is_told(address: str) -> None:
    with refused_soon(SettingsError, r"--ray-address is HOST:PORT"):
        start(address)


def test_another_version_of_ray_is_told(one_node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.1.0")
    with refused_soon(VersionError, r"Ray: 2\.1\.0.*Install the same version"):
        start(one_node)


def test_another_version_of_the_engine_on_a_node_is_told(
    one_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autellix.runtime import ray_replicas

    ours = ray_replicas.versions()
    monkeypatch.setattr(ray_replicas, "versions", lambda: {**ours, "vllm": "0.1"})
    with refused_soon(VersionError, rf"vllm {ours['vllm']}, not 0\.1"):
        start(one_node)


def test_too_few_cores_are_told(one_node: str) -> None:
    with refused_soon(EngineStartError, r"2 CPUs are needed, the cluster has 1 CPU"):
        start(one_node, replicas=2)


def test_too_little_memory_is_told(one_node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    with refused_soon(EngineStartError, r"9\.0 GiB are needed, the cluster has 4\.0 GiB"):
        start(one_node)


def test_room_that_does_not_come_is_waited_for_no_longer_than_told(one_node: str) -> None:
    with refused_soon(EngineStartError, r"there is room for 1.*--ray-wait"):
        start(one_node, replicas=2, ray_wait=1.0)


def test_a_node_without_the_model_is_told(one_node: str) -> None:
    with refused_soon(ModelError, r"Node .* has no model in /no/such/model"):
        start(one_node, model="/no/such/model")


# ── three nodes ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Any]:
    with cluster_of(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def host(three_nodes: Any) -> Iterator[EngineHost]:
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    host = start(three_nodes.address, replicas=3, balancer="least-used")
    yield host
    started = replica_processes()
    host.stop()
    del os.environ["VLLM_CPU_KVCACHE_SPACE"]
    assert not ray.is_initialized()
    assert len(started) >= 6, "three replicas and their engines"
    wait_until_gone(started)


@pytest.fixture
def run(host: EngineHost) -> Iterator[Session]:
    session = Session(Settings(quiet=True), host)
    session.start()
    use_session(session)
    try:
        yield session
    finally:
        session.finish()
        use_session(None)


def calls(run: Session) -> list[dict[str, Any]]:
    return [call for program in run.record.document()["programs"] for call in program["calls"]]


async def program(number: int) -> str:
    chat = ChatAutellix(max_tokens=16, temperature=0.7, model_kwargs={"ignore_eos": True})
    first = await chat.ainvoke(f"Tell me something about the number {number}.")
    second = [chunk.text async for chunk in chat.astream(f"Repeat: {first.text}")]
    return first.text + "".join(second)


async def until_all_serve(host: EngineHost) -> None:
    while any(slot.state != "serving" for slot in host.engine.slots):
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_node_serves_its_share_of_the_calls(host: EngineHost, run: Session) -> None:
    async def all_programs() -> list[str]:
        return await asyncio.gather(*map(program, range(12)))

    assert all(asyncio.run(all_programs()))
    assert len({slot.replica.replica.started.node_id for slot in slots(host)}) == 3
    done = calls(run)
    assert {call["replica"] for call in done} == {0, 1, 2}
    assert all(call["service_s"] > 0 and call["levels"] for call in done)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_programs_finish_though_a_node_is_killed(
    host: EngineHost, run: Session, three_nodes: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = next(node for node in three_nodes.list_all_nodes() if not node.head)
    (index,) = [
        index
        for index, slot in enumerate(slots(host))
        if slot.replica.replica.started.node_id == victim.node_id
    ]

    async def killed_meanwhile() -> list[str]:
        asked = asyncio.gather(*map(program, range(PROGRAMS)))
        while len(slots(host)[index].calls) < SMALL["max_num_seqs"]:
            await asyncio.sleep(0.01)
        for raylet in victim.all_processes["raylet"]:
            os.kill(raylet.process.pid, signal.SIGKILL)
        return await asked

    answers = asyncio.run(killed_meanwhile())
    assert len(answers) == PROGRAMS
    assert all(answers)
    done = calls(run)
    assert len(done) == 2 * PROGRAMS
    assert {call["status"] for call in done} == {"done"}
    assert host.engine._where == {}
    # Its replica is placed again when there is room for it, and not before.
    assert slots(host)[index].state != "serving"
    three_nodes.remove_node(victim, allow_graceful=False)
    three_nodes.add_node(**NODE)
    asyncio.run(until_all_serve(host))
    assert slots(host)[index].restarts_done == 1
    assert "raylet" not in capfd.readouterr().out, "a program's output is its own"
    assert len({slot.replica.replica.started.node_id for slot in slots(host)}) == 3


def slots(host: EngineHost) -> list[Any]:
    return host.engine.slots
