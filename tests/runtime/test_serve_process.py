"""``autellix serve`` as a process: what it refuses, and how it stops. No engine is started here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-alice-0123456789"
# A server whose calls give one token and then last until they are stopped.
ENDLESS = """
import sys
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.engine_loop import EngineLoop
from autellix.runtime.serve_settings import ServeSettings
from autellix.runtime.serving import serve_until_stopped
from autellix.runtime.settings import Settings
from benchmarks.serve_sessions import AtOnce

class Endless(AtOnce):
    async def answer(self, scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: {}\\n\\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

engine = Endless()
host = EngineHost(EngineLoop(), engine, engine)
EngineHost.start = lambda *given, **more: host
given = host if sys.argv[2] == "given" else None
sys.exit(serve_until_stopped(Settings(), ServeSettings(port=int(sys.argv[1])), given))
"""


class Started:
    """Starts processes, and sees to it that none is left."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def started() -> Iterator[Started]:
    started = Started()
    yield started
    started.end()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def connected(process: subprocess.Popen[str], port: int) -> httpx.Client:
    http = httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {KEY}"}, timeout=60
    )
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, process.communicate()
        try:
            http.get("/v1/sessions")
            return http
        except httpx.HTTPError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("engine", ["given", "own"])
def test_the_first_signal_ends_it_in_order_and_tells_the_clients(
    started: Started, number: signal.Signals, engine: str
) -> None:
    port = free_port()
    process = started("-c", ENDLESS, str(port), engine, AUTELLIX_KEYS=f"alice {KEY}")
    http = connected(process, port)
    body = {"messages": [], "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        assert next(lines) == "data: {}"
        process.send_signal(number)
        rest = [line for line in lines if line]
    assert "call_stopped" in rest[-1]
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert f"serving 1 tenant at http://127.0.0.1:{port}/v1" in " ".join(err.split())
    assert KEY not in out + err


def test_a_signal_ends_it_in_order_from_the_moment_it_serves(started: Started) -> None:
    # Between the first reply that it can give and the words that say where it serves.
    at_once = ENDLESS.replace(
        "EngineHost.start",
        "import gc, os, signal\ngc.collect = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "EngineHost.start",
        1,
    )
    process = started("-c", at_once, str(free_port()), "own")
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "stopping; Ctrl-C again stops at once" in err) == (0, True), err


def test_a_second_signal_ends_it_at_once(started: Started) -> None:
    # Nothing would make this one stop: what it waits for does not come.
    stuck = ENDLESS.replace(
        "EngineHost.start",
        "from autellix.runtime.serving import Server\n"
        "import threading\n"
        "Server.close = lambda self: threading.Event().wait()\n"
        "EngineHost.start",
        1,
    )
    port = free_port()
    process = started("-c", stuck, str(port), "given", AUTELLIX_KEYS=f"alice {KEY}")
    connected(process, port).close()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    told = iter(process.stderr.readline, "")
    assert any("Ctrl-C again stops at once" in line for line in told)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_what_cannot_be_is_refused_before_an_engine_starts(started: Started) -> None:
    def refusal(*options: str) -> str:
        process = started("-m", "autellix", "serve", *options)
        _, err = process.communicate(timeout=60)
        assert process.returncode in (1, 2)
        assert "starting" not in err
        return " ".join(err.split())

    assert "who may use the server must be said" in refusal("--host", "0.0.0.0")
    assert "belong together" in refusal("--tls-cert", __file__)
    assert "no certificate with its key" in refusal("--tls-cert", __file__, "--tls-key", __file__)
    assert "--host is an address of this machine" in refusal("--host", "")
    assert "holds no keys" in refusal("--host", "0.0.0.0", "--keys-file", "/dev/null")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"Port {port} of 127.0.0.1 cannot be had" in refusal("--port", port)
