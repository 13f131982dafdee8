"""What one client can take of a server is bounded."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from autellix.runtime.bounded_http import Bounds
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.engine_loop import EngineLoop
from autellix.runtime.http_server import Address, HttpServer
from autellix.runtime.serving import Server
from tests.runtime.serve_client import ASK, Client, code_of, serving

HEAD_S, BODY_S, STALL_S = 0.3, 0.3, 0.3


@pytest.fixture(scope="module")
def server(engine_host: EngineHost) -> Iterator[Server]:
    with serving(
        engine_host,
        max_sessions=3,
        max_calls=2,
        max_session_calls=3,
        max_body_mib=0.01,
        bounds=Bounds(head_bytes=4096, head_s=HEAD_S, stall_s=STALL_S),
        body_s=BODY_S,
    ) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)


def raw(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), timeout=20)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def answer_of(connection: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found


def head_of(length: int, path: str = "/v1/chat/completions") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def test_a_body_that_is_too_large_is_refused_before_it_is_read(
    server: Server, client: Client
) -> None:
    many = [{"role": "user", "content": "x" * 20_000}]
    assert code_of(client.chat(messages=many)) == (413, "body_too_large")
    with raw(server) as connection:
        connection.sendall(head_of(10_000_000))
        assert b"413" in answer_of(connection)


def test_a_body_of_unknown_length_is_bounded_too(server: Server) -> None:
    with raw(server) as connection:
        head = head_of(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        connection.sendall(head)
        try:
            for _ in range(100):
                connection.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
            reply = answer_of(connection)
        except ConnectionError:
            reply = b" 413 "
        assert b" 413 " in reply


def test_a_head_that_is_too_large_ends_the_connection(server: Server) -> None:
    with raw(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * 5000)
        assert b" 431 " in answer_of(connection)
    with raw(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * 5000 + b"\r\n\r\n")
        assert b" 431 " in answer_of(connection)


def test_whoever_is_slow_to_ask_is_not_waited_for(server: Server) -> None:
    silent, slow, slower = raw(server), raw(server), raw(server)
    with silent, slow, slower:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost:")
        slower.sendall(head_of(1000) + b"{")
        assert b" 408 " in answer_of(silent)
        assert b" 408 " in answer_of(slow)
        reply = answer_of(slower)
        assert b" 408 " in reply
        assert b"body_too_slow" in reply


def test_a_client_that_does_not_read_is_left() -> None:
    """Without an engine: an application that has more to say than the kernel's buffers take."""
    told: list[str] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not told:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            if (await asyncio.wait({asyncio.ensure_future(receive())}, timeout=0))[0]:
                told.append("left")

    loop = EngineLoop()
    server = HttpServer(Address(bounds=Bounds(stall_s=STALL_S)))
    server.start(endless, loop)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            deadline = time.monotonic() + 20
            while not told:
                assert time.monotonic() < deadline, "it is waited for"
                time.sleep(0.02)
    finally:
        server.stop()
        loop.close()


def test_sessions_are_bounded(client: Client) -> None:
    for number in range(3):
        assert client.http.post("/v1/sessions", json={"id": f"s{number}"}).status_code == 201
    assert code_of(client.http.post("/v1/sessions", json={})) == (429, "too_many_sessions")
    refused = client.chat("s4")
    assert code_of(refused) == (429, "too_many_sessions")
    assert refused.headers["retry-after"] == "1"
    assert client.chat("s1").status_code == 200
    for number in range(3):
        client.http.delete(f"/v1/sessions/s{number}")


def test_calls_of_a_session_are_bounded(client: Client) -> None:
    for _ in range(3):
        assert client.chat("long").status_code == 200
    assert code_of(client.chat("long")) == (409, "session_too_long")
    client.http.delete("/v1/sessions/long")


def test_calls_at_once_are_bounded_also_within_a_request(client: Client) -> None:
    prompts = {"prompt": ["a", "b", "c"], "max_tokens": 4}
    reply = client.http.post("/v1/completions", json=prompts)
    assert reply.status_code == 400
    assert "2 calls are under way" in reply.text
    assert client.chat().status_code == 200


def test_connections_are_bounded(engine_host: EngineHost) -> None:
    with serving(engine_host, max_connections=4) as server:
        held = [raw(server) for _ in range(4)]
        try:
            for connection in held:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert any(b" 503 " in connection.recv(4096) for connection in held)
        finally:
            for connection in held:
                connection.close()


@pytest.mark.parametrize(
    "header",
    [
        {"X-Session-ID": "a b"},
        {"X-Session-ID": "../etc"},
        {"X-Session-ID": "x" * 129},
        {"X-Autellix-Call": "a/b"},
        {"X-Autellix-Parents": "a," * 1001 + "a"},
        {"X-Autellix-Parents": "a;b"},
        {"X-Autellix-Node": "x" * 129},
        {"X-Autellix-Name": "x" * 129},
        {"X-Autellix-Name": "a%00b"},
        {"X-Autellix-Node": "a%0Ab"},
        {"X-Autellix-Node": "a%1B[2Jb"},
    ],
)
def test_ids_from_outside_are_checked(client: Client, header: dict[str, str]) -> None:
    reply = client.http.post("/v1/chat/completions", json={"messages": ASK}, headers=header)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"].startswith(("invalid_", "too_many_parents"))


@pytest.mark.parametrize("content", [[], [{"type": "refusal", "refusal": "no"}]])
def test_an_answer_of_before_without_a_text_is_no_fault_of_the_server(
    client: Client, content: list[dict[str, str]]
) -> None:
    before = {"type": "message", "role": "assistant", "id": "m", "status": "completed"}
    body = {"input": [{**before, "content": content}], "max_output_tokens": 2}
    reply = client.http.post("/v1/responses", json=body)
    assert reply.status_code == 400, reply.text
    assert "shape" in reply.json()["error"]["message"]


def test_deep_json_is_no_fault_of_the_server(client: Client) -> None:
    nested = b"[" * 5000 + b"]" * 5000
    body = b'{"messages": ' + nested + b"}"
    json_type = {"Content-Type": "application/json"}
    reply = client.http.post("/v1/chat/completions", content=body[:9000], headers=json_type)
    assert code_of(reply) == (400, "invalid_json")
    full = b'{"messages": ' + b"[" * 4000 + b"]" * 4000 + b"}"
    assert (
        400
        <= client.http.post("/v1/chat/completions", content=full, headers=json_type).status_code
        < 500
    )
