"""A server is killed, or its cluster's head is, and it goes on when it is started again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

import autellix
from autellix import ChatAutellix
from autellix.runtime.process_tree import environment_of
from tests.runtime.test_processes import ROOT, Runs, until

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]

RAYS_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
SERVES_WITHIN_S, GONE_WITHIN_S = 150.0, 60.0


class Served:
    """A server as a process, at an address that it keeps when it is started again."""

    def __init__(self, runs: Runs, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self._runs = runs
        self._options = options

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start it and return when it serves."""
        command = ("-m", "autellix", "serve", "--port", str(self.port), *self._options, *options)
        process = self._runs.start(*command, VLLM_CPU_KVCACHE_SPACE="1")

        def serves() -> bool:
            assert process.poll() is None, process.communicate()
            try:
                return self.http.get("/v1/models").status_code == 200
            except httpx.HTTPError:
                return False

        until(serves, SERVES_WITHIN_S)
        return process

    def chat(self, session: str) -> None:
        body = {
            "messages": [{"role": "user", "content": "Say something."}],
            "max_tokens": 8,
        }
        reply = self.http.post("/v1/chat/completions", json=body, headers={"X-Session-ID": session})
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["content"]

    def session(self, name: str) -> dict[str, Any]:
        return self.http.get(f"/v1/sessions/{name}").json()

    def living(self) -> list[psutil.Process]:
        """All processes that it has started, those of a cluster among them.

        But for Ray's agents, which outlive a raylet that was killed and have no engine in them.
        """
        mark = f"TMPDIR={self._runs.temporary.name}"
        found = [p for p in psutil.process_iter() if mark in environment_of(p.pid)]
        return [p for p in found if runs_still(p)]


def runs_still(process: psutil.Process) -> bool:
    try:
        ended = process.status() == psutil.STATUS_ZOMBIE
        return not ended and process.name() not in RAYS_AGENTS
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def runs(tmp_path: Any) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    mark = f"TMPDIR={runs.temporary.name}"
    for process in psutil.process_iter():
        if mark in environment_of(process.pid):
            process.kill()
    runs.temporary.cleanup()


@pytest.fixture(params=["vllm", "ray"])
def served(runs: Runs, request: pytest.FixtureRequest) -> Served:
    if request.param == "ray":
        pytest.importorskip("ray", reason="needs Ray: pip install 'autellix[ray]'")
    return Served(runs, "--engine", request.param)


def test_nothing_outlives_it_its_sessions_go_on_and_so_do_programs_that_wait(
    served: Served,
) -> None:
    process = served.start()
    for _ in range(4):
        served.chat("worker")
    had = served.session("worker")["critical_path_s"]
    assert had > 0
    away, answers = threading.Event(), []

    def work() -> None:
        async def agent() -> None:
            chat = ChatAutellix(max_tokens=6)
            async with autellix.program("agent"):
                answers.append((await chat.ainvoke("Say one.")).text)
                await asyncio.to_thread(away.wait)
                answers.append((await chat.ainvoke("Say two.")).text)
                answers.append("".join([c.text async for c in chat.astream("Say three.")]))

        asyncio.run(agent())

    with autellix.connect(served.url):
        working = threading.Thread(target=work)
        working.start()
        until(lambda: bool(answers), 60)
        os.kill(process.pid, signal.SIGKILL)
        away.set()  # the second call finds nobody there
        until(lambda: not served.living(), GONE_WITHIN_S, lambda: f"left: {served.living()}")
        again = served.start()
        working.join(90)
        assert not working.is_alive()
    assert len(answers) == 3
    assert all(answers)
    served.chat("worker")
    assert served.session("worker")["critical_path_s"] > had
    again.send_signal(signal.SIGTERM)
    assert again.wait(60) == 0
    until(lambda: not served.living(), GONE_WITHIN_S, lambda: f"left: {served.living()}")


def test_without_its_clusters_head_it_says_so_and_ends_and_goes_on_with_another(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'autellix[ray]'")
    from tests.runtime.test_ray import cluster_of

    # Of Ray's own processes, which take a minute otherwise.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "20")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for replicas on its machines
    served = Served(runs, "--engine", "ray", "--ray-address")
    with cluster_of(1) as cluster:
        address = cluster.address
        process = served.start(address)
        for _ in range(3):
            served.chat("worker")
        (head,) = cluster.head_node.all_processes["gcs_server"]
        os.kill(head.process.pid, signal.SIGKILL)
        served.chat("worker")  # its machines are there still
        had = served.session("worker")["critical_path_s"]
        _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"The head of the Ray cluster at {address} does not answer" in " ".join(said.split())
    until(lambda: not served.living(), GONE_WITHIN_S, lambda: f"left: {served.living()}")
    with cluster_of(1) as cluster:
        again = served.start(cluster.address)
        served.chat("worker")
        assert served.session("worker")["critical_path_s"] > had
        again.send_signal(signal.SIGTERM)
        assert again.wait(60) == 0
