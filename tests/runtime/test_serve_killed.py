"""A server that is killed leaves nothing and goes on when it is started again."""

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
from tests.runtime.test_processes import Runs, until

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(600)]

SERVES_WITHIN_S, GONE_WITHIN_S = 150.0, 60.0


class Served:
    """A server as a process, at an address that it keeps when it is started again."""

    def __init__(self, runs: Runs) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self._runs = runs

    def start(self) -> subprocess.Popen[str]:
        """Start it and return when it serves."""
        command = ("-m", "autellix", "serve", "--port", str(self.port))
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
        """All processes that it has started."""
        mark = f"TMPDIR={self._runs.temporary.name}"
        found = [p for p in psutil.process_iter() if mark in environment_of(p.pid)]
        return [p for p in found if runs_still(p)]


def runs_still(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
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


@pytest.fixture
def served(runs: Runs) -> Served:
    return Served(runs)


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
