"""A server that is started again goes on with its sessions, and programs that wait for it too."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

import pytest

import autellix
from autellix import ChatAutellix
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.serve_settings import ServeSettings
from autellix.runtime.serving import Server
from autellix.runtime.settings import Settings
from tests.runtime.serve_client import Client


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(quiet=True, journal=tmp_path / "journal.sqlite", policy="atlas")


def server_at(port: int, settings: Settings, host: EngineHost) -> Server:
    return Server(settings, ServeSettings(port=port), host)


@pytest.fixture
def port() -> int:
    """One that was free a moment ago; the server is started at it again and again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_a_session_goes_on_with_the_service_it_had(
    engine_host: EngineHost, settings: Settings, port: int
) -> None:
    with server_at(port, settings, engine_host) as server:
        client = Client(server)
        for call in ("one", "two"):
            client.chat("worker", {"X-Autellix-Call": call})
        had = client.http.get("/v1/sessions/worker").json()
    with server_at(port, settings, engine_host) as server:
        client = Client(server)
        client.chat("worker", {"X-Autellix-Call": "three", "X-Autellix-Parents": "two"})
        client.chat("worker", {"X-Autellix-Call": "four"})
        program = server.run.record.dag("worker")
        first, second = (program.call(f"worker/{call}") for call in ("three", "four"))
        assert first["attained_s"] == pytest.approx(had["critical_path_s"])
        assert second["attained_s"] > first["attained_s"]
        table = server.run.programs.table.programs["worker"]
        assert table.service_s > had["service_s"] > 0


def test_a_session_that_was_ended_is_a_new_one_when_it_comes_again(
    engine_host: EngineHost, settings: Settings, port: int
) -> None:
    with server_at(port, settings, engine_host) as server:
        client = Client(server)
        client.chat("worker")
        assert client.http.delete("/v1/sessions/worker").status_code < 300
    with server_at(port, settings, engine_host) as server:
        client = Client(server)
        client.chat("worker", {"X-Autellix-Call": "new"})
        assert server.run.record.dag("worker").call("worker/new")["attained_s"] == 0


def test_programs_wait_while_the_server_is_away_and_go_on(
    engine_host: EngineHost, settings: Settings, port: int
) -> None:
    server = server_at(port, settings, engine_host)
    server.__enter__()
    back = threading.Event()
    answers: list[str] = []

    def work() -> None:
        async def agent() -> None:
            chat = ChatAutellix(max_tokens=6)
            async with autellix.program("agent"):
                answers.append((await chat.ainvoke("Say one.")).text)
                while not back.is_set():
                    await asyncio.sleep(0.01)
                answers.append((await chat.ainvoke("Say two.")).text)
                answers.append("".join([c.text async for c in chat.astream("Say three.")]))

        asyncio.run(agent())

    with autellix.connect(f"http://127.0.0.1:{port}"):
        working = threading.Thread(target=work)
        working.start()
        while not answers:
            time.sleep(0.01)
        server.close()
        back.set()  # the second call finds nobody there
        again = server_at(port, settings, engine_host)
        again.__enter__()
        working.join(60)
        assert not working.is_alive()
        assert len(answers) == 3
        assert all(answers)
    again.close()
