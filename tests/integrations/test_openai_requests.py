"""The endpoint's rules, on an application that only notes what reaches it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from autellix.errors import EngineStoppedError
from autellix.integrations.openai_calls import CALL_HEADER
from autellix.integrations.openai_endpoint import OpenAIEndpoint, new_key
from autellix.integrations.openai_environment import openai_environment
from tests.integrations.recording import World

KEY = new_key()
CHAT = "/v1/chat/completions"


class Desk:
    """Serves with a function instead of an engine."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.over: set[str] = set()
        self.stops: dict[str, Callable[[], None]] = {}
        self.answer: Callable[..., Any] = say_hello

    def application(self) -> Any:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            self.headers.append(dict(scope["headers"]))
            message = await receive()
            if message.get("body"):
                self.bodies.append(json.loads(message["body"]))
            await self.answer(receive, send)

        return application

    def is_over(self, call: str) -> bool:
        return call in self.over

    def model_for(self, name: str | None) -> str:
        return "the model"

    @contextmanager
    def serving(self, call: str, stop: Callable[[], None]) -> Iterator[None]:
        self.served.append(call)
        self.stops[call] = stop
        yield


async def say_hello(receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def wait_for_the_client_to_go(receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "http.disconnect"


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def endpoint(world: World, desk: Desk) -> OpenAIEndpoint:
    return OpenAIEndpoint(world.recorder, desk, KEY)


def request(
    endpoint: OpenAIEndpoint,
    method: str = "POST",
    path: str = CHAT,
    *,
    key: str | None = KEY,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=endpoint)
        sent = {"Authorization": f"Bearer {key}"} if key is not None else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, path, headers=sent | (headers or {}), **more)

    return asyncio.run(main())


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"], error["message"]


@pytest.mark.parametrize(("key", "said"), [(None, "No API key"), ("sk-mine", "Wrong API key")])
def test_without_the_runs_key_nothing_is_served(
    endpoint: OpenAIEndpoint, desk: Desk, key: str | None, said: str
) -> None:
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health"), ("GET", "/")):
        status, code, message = error_of(request(endpoint, method, path, key=key, json={}))
        assert (status, code) == (401, "invalid_api_key")
        assert message.startswith(said)
        assert "OPENAI_API_KEY" in message
    assert not desk.headers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/audio/speech"),
        ("GET", CHAT),
        ("POST", "/scale_elastic_ep"),
        ("POST", "/inference/v1/abort_requests"),
        ("GET", "/metrics"),
    ],
)
def test_other_routes_are_refused_with_what_there_is(
    endpoint: OpenAIEndpoint, desk: Desk, method: str, path: str
) -> None:
    status, code, message = error_of(request(endpoint, method, path, json={}))
    assert (status, code) == (404, "not_served")
    assert f"{method} {path} is not served" in message
    assert CHAT in message and "base_url" in message
    assert not desk.headers


def test_a_body_that_is_no_object_is_refused(endpoint: OpenAIEndpoint, world: World) -> None:
    for body in (b"{", b"[1]", b""):
        assert error_of(request(endpoint, content=body))[:2] == (400, "invalid_json")
    assert not world.seen.starts


def test_what_a_client_must_not_decide_is_taken_out(endpoint: OpenAIEndpoint, desk: Desk) -> None:
    body = {
        "model": "gpt-4o",
        "priority": -100,
        "session_id": "someone",
        "request_id": "x",
        "kv_transfer_params": {"a": 1},
        "vllm_xargs": {"autellix_program": "theirs", "autellix_attained_s": 0.0, "mine": 1},
        "temperature": 0,
    }
    headers = {"X-Session-ID": "someone", "X-data-parallel-rank": "1", "X-Request-Id": "x"}
    assert request(endpoint, json=body, headers=headers).status_code == 200
    assert desk.bodies == [{"model": "the model", "vllm_xargs": {"mine": 1}, "temperature": 0}]
    passed_on = set(desk.headers[0])
    assert passed_on <= {b"host", b"content-type", b"accept", b"user-agent", b"content-length"}


def test_a_request_without_identity_is_a_call_of_main(
    endpoint: OpenAIEndpoint, world: World
) -> None:
    request(endpoint, json={})
    request(endpoint, json={}, headers={CALL_HEADER: "no such call"})
    assert world.seen.programs() == {"main"}
    assert list(world.seen.ends.values()) == ["done", "done"]


def test_a_named_open_call_is_that_call_and_is_ended_by_who_announced_it(
    endpoint: OpenAIEndpoint, world: World, desk: Desk
) -> None:
    world.recorder.enter_program("p", "p")
    call = str(world.recorder.begin_call("a"))
    for _ in range(2):  # a client that tries again sends the same name
        request(endpoint, json={}, headers={CALL_HEADER: call})
    assert desk.served == [call, call]
    assert world.seen.programs() == {"p"}
    assert not world.seen.ends
    world.recorder.end_call(call, "done")


def test_a_request_of_a_call_that_has_ended_is_not_served(
    endpoint: OpenAIEndpoint, world: World, desk: Desk
) -> None:
    call = str(world.recorder.begin_call("a"))
    world.recorder.end_call(call, "aborted")
    desk.over.add(call)
    response = request(endpoint, json={}, headers={CALL_HEADER: call})
    assert error_of(response)[:2] == (499, "call_stopped")
    assert (desk.served, world.seen.statuses()) == ([], {"a": "aborted"})


def test_a_second_request_beside_the_first_is_a_call_of_the_same_program(
    endpoint: OpenAIEndpoint, world: World, desk: Desk
) -> None:
    world.recorder.enter_program("p", "p")
    call = str(world.recorder.begin_call("a"))

    async def once_more(receive: Any, send: Any) -> None:
        desk.answer = say_hello
        await asyncio.to_thread(request, endpoint, json={}, headers={CALL_HEADER: call})
        await say_hello(receive, send)

    desk.answer = once_more
    request(endpoint, json={}, headers={CALL_HEADER: call})
    assert desk.served[0] == call != desk.served[1]
    assert world.seen.programs() == {"p"}
    world.recorder.end_call(call, "done")


def test_a_refused_call_failed_with_the_engines_words(
    endpoint: OpenAIEndpoint, world: World, desk: Desk
) -> None:
    async def refuse(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        body = json.dumps({"error": {"message": "too long"}}).encode()
        await send({"type": "http.response.body", "body": body})

    desk.answer = refuse
    assert request(endpoint, json={}).status_code == 400
    assert [*world.seen.errors.values()] == ["too long"]
    assert [*world.seen.ends.values()] == ["failed"]


def test_an_engine_that_has_stopped_is_said_in_words(
    endpoint: OpenAIEndpoint, world: World, desk: Desk
) -> None:
    async def stopped(receive: Any, send: Any) -> None:
        raise EngineStoppedError("The engine has been stopped.")

    desk.answer = stopped
    status, code, message = error_of(request(endpoint, json={}))
    assert (status, code, message) == (503, "engine_unavailable", "The engine has been stopped.")
    assert [*world.seen.ends.values()] == ["failed"]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_stopped_call_is_aborted_and_its_client_told(
    endpoint: OpenAIEndpoint, world: World, desk: Desk, streaming: bool
) -> None:
    async def begin(receive: Any, send: Any) -> None:
        if streaming:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            part = {"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True}
            await send(part)
        threading.Thread(target=desk.stops[desk.served[-1]]).start()
        await wait_for_the_client_to_go(receive, send)

    desk.answer = begin
    response = request(endpoint, json={})
    assert response.status_code == (200 if streaming else 499)
    assert "call_stopped" in response.text
    assert "[DONE]" not in response.text
    assert [*world.seen.ends.values()] == ["aborted"]


def test_a_client_that_leaves_aborts_its_call(
    endpoint: OpenAIEndpoint, world: World, desk: Desk
) -> None:
    desk.answer = wait_for_the_client_to_go
    messages = [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
    asyncio.run(endpoint(scope, receive, send))
    assert [*world.seen.ends.values()] == ["aborted"]
    assert not sent


def test_the_environment_is_the_runs_and_then_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("NO_PROXY", "intern")
    with openai_environment("http://127.0.0.1:9/v1", "key"):
        assert os.environ["OPENAI_BASE_URL"] == os.environ["OPENAI_API_BASE"]
        assert os.environ["OPENAI_API_KEY"] == "key"
        assert os.environ["NO_PROXY"] == "intern,127.0.0.1"
        assert os.environ["no_proxy"] == "127.0.0.1"
    assert os.environ["OPENAI_API_KEY"] == "sk-mine"
    assert os.environ["NO_PROXY"] == "intern"
    assert not {"OPENAI_BASE_URL", "no_proxy"} & set(os.environ)
