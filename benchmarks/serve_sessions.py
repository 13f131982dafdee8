"""What a server's own layer costs: memory of a session, and processor time of a call.

    python -m benchmarks.serve_sessions --json benchmarks/results/serve_sessions.json

No engine: behind the server stands an application that answers at once, so that what is left is
HTTP, sessions, the record and the tickets. `benchmarks.serve_overhead` measures with the engine.

- ``bytes_each``: growth of Python's heap for each of so many open sessions, without a call and with
  one call each;
- ``call_us``: processor time of this process per call, over HTTP, client included, through the
  server and through the bare application; medians of rounds in turns.
"""

from __future__ import annotations

import argparse
import gc
import http.client
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.engine_loop import EngineLoop
from autellix.runtime.http_server import Address, HttpServer
from autellix.runtime.protocols import EngineStats
from autellix.runtime.serve_settings import ServeSettings
from autellix.runtime.served_call import served_call
from autellix.runtime.serving import Server
from autellix.runtime.settings import Settings
from autellix.scheduler.tickets import Receipt
from benchmarks.result_file import result_document, write_result

MESSAGE = {"role": "assistant", "content": "At once."}
CHOICE = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
REPLY = json.dumps({"object": "chat.completion", "choices": [CHOICE]}).encode()
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi." * 50}], "max_tokens": 4})


class AtOnce:
    """Stands for the engine and its front: every call is answered at once."""

    kind, model, replicas, is_serving = "none", "none", 1, True

    def __init__(self) -> None:
        self._sink: Callable[[Receipt], None] = lambda receipt: None

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """One replica that does nothing."""
        return [EngineStats(seats=1)]

    def forget(self, program: str) -> None:
        """Nothing is kept."""

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        """Nothing is kept."""

    def returns(self, program: str) -> None:
        """Nothing is kept."""

    async def stop(self) -> None:
        """Nothing runs."""

    async def settled(self) -> None:
        """All receipts are in."""

    def send_receipts_to(self, sink: Callable[[Receipt], None]) -> None:
        """Receipts go there."""
        self._sink = sink

    def send_prompts_to(self, sink: Any) -> None:
        """There are none."""

    def send_contents_to(self, sink: Any) -> None:
        """There are none."""

    def application(self) -> Any:
        """The application."""
        return self.answer

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a call, and tell what it has cost."""
        json.loads((await receive())["body"])
        served = served_call.get()
        if served is not None:
            ticket = served.ticket()
            spent = {"service_s": 0.01, "wait_s": 0.0, "levels": (1,), "preemptions": 0}
            self._sink(Receipt(program=ticket.program, call=ticket.call, **spent))
            served.answered(ticket.call)
        headers = [(b"content-type", b"application/json")]
        headers.append((b"content-length", str(len(REPLY)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": REPLY, "more_body": False})


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: str, session: str = "") -> None:
        """Send a request and read its reply, which has to be a good one."""
        headers = {"Content-Type": "application/json", "Host": "127.0.0.1"}
        self._http.request(
            "POST", path, body, {**headers, **({"X-Session-ID": session} if session else {})}
        )
        reply = self._http.getresponse()
        assert reply.status in (200, 201), reply.read()
        reply.read()


def memory(server: Server, count: int) -> dict[str, float]:
    """Bytes of Python's heap for a session, without and with a call."""
    client = Client(int(server.url.rsplit(":", 1)[1]))

    def grown(prefix: str, *, call: bool) -> float:
        def make(name: str) -> None:
            client.post("/v1/sessions", json.dumps({"id": name}))
            if call:
                client.post("/v1/chat/completions", BODY, name)

        for number in range(50):
            make(f"warm-{prefix}-{number}")
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            make(f"{prefix}-{number}")
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / count

    tracemalloc.start()
    try:
        return {"opened": grown("open", call=False), "with_a_call": grown("call", call=True)}
    finally:
        tracemalloc.stop()


def processor_time(ports: dict[str, int], *, calls: int, rounds: int) -> dict[str, Any]:
    """Microseconds of this process for a call, of every round and the medians."""
    clients = {side: Client(port) for side, port in ports.items()}
    found: dict[str, list[float]] = {side: [] for side in ports}
    for number in range(rounds + 1):
        for side, client in clients.items():
            began = time.process_time()
            for _ in range(calls):
                client.post("/v1/chat/completions", BODY, f"round-{number}")
            if number:  # the first is for warming up
                found[side].append((time.process_time() - began) / calls * 1e6)
    medians = {side: statistics.median(each) for side, each in found.items()}
    added = medians["served"] - medians["bare"]
    return {"rounds": found, "medians": medians, "added_us": added}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=300, help="calls a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    stand_in: Any = AtOnce()
    host = EngineHost(EngineLoop(), stand_in, stand_in)
    bare = HttpServer(Address(bounds=ServeSettings().bounds))
    bare.start(stand_in.answer, host.loop)
    with Server(Settings(quiet=True), ServeSettings(port=0), host) as server:
        ports = {"bare": bare.port, "served": int(server.url.rsplit(":", 1)[1])}
        call_us = processor_time(ports, calls=args.calls, rounds=args.rounds)
        bytes_each = memory(server, args.sessions)
    bare.stop()
    host.stop()
    sizes = {"sessions": args.sessions, "calls": args.calls}
    write_result(args.json, result_document(**sizes, bytes_each=bytes_each, call_us=call_us))


if __name__ == "__main__":
    main()
