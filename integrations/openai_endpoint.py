"""The OpenAI endpoint of a run: who may call, which call it is, and how it ends.

An ASGI application around the engine's own. In the order of a request's life:

1. a request without this run's key, or to a route that is not served, is refused in OpenAI's form;
2. what a client must not decide is taken out of it (priority, session, tickets); its model's name
   becomes the engine's;
3. its identity: an open call that its header names, else a call of the program "main"; a request
   of a call that has ended meanwhile is refused, since nobody waits for its answer;
4. the engine's application answers; the client leaving, or the call's program giving it up, both
   look to that application as if the client had gone, which aborts the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from autellix.errors import AutellixError

from ..runtime.protocols import CallEnd
from .openai_calls import CALL_HEADER
from .recorder import Recorder

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

CALL_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
PLAIN_ROUTES = ("/v1/models", "/health")
# What a client says of scheduling, or of how replicas pass on what they hold, is not its to say.
_OURS = ("priority", "session_id", "request_id", "kv_transfer_params", "kv_hints")
_TICKET_PREFIX = "autellix_"
_HEADERS_PASSED_ON = (b"host", b"content-type", b"accept", b"user-agent")
_STOPPED = "The call was stopped: its program has ended or has given it up."
_GONE = 499  # the client has closed the request; OpenAI's clients do not try such a one again


class CallDesk(Protocol):
    """What the endpoint asks of the run."""

    def application(self) -> App:
        """The engine's own OpenAI application."""
        ...

    def model_for(self, name: str | None) -> str:
        """The engine's model for a name that a client gave."""
        ...

    def is_over(self, call: str) -> bool:
        """Whether a call of this id has been in the run, and has ended."""
        ...

    def serving(self, call: str, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """What the application does inside is this call; it ends with its last token.

        Args:
            stop: stops it, from any thread.
        """
        ...


class OpenAIEndpoint:
    """The ASGI application.

    Args:
        recorder: knows the calls that a header can name.
        desk: the run.
        key: what clients must send.
    """

    def __init__(self, recorder: Recorder, desk: CallDesk, key: str) -> None:
        self._recorder = recorder
        self._desk = desk
        self._key = key.encode()
        self._serving: set[str] = set()
        self._exchanges: set[_Exchange] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refused = self._refusal(scope)
        if refused is not None:
            await _send_error(send, *refused)
        elif scope["path"] in PLAIN_ROUTES:
            await self._desk.application()(scope, receive, send)
        else:
            await self._call(scope, receive, send)

    def stop(self) -> None:
        """End the calls under way; runs on the endpoint's loop."""
        for exchange in self._exchanges:
            exchange.stop()

    # ── who may call ─────────────────────────────────────────────────────────────────────────

    def _refusal(self, scope: Any) -> tuple[int, str, str] | None:
        sent = _header(scope, b"authorization").removeprefix(b"Bearer ").strip()
        if not hmac.compare_digest(sent, self._key):
            what = "Wrong API key" if sent else "No API key"
            return (
                401,
                f"{what}: this endpoint serves one `autellix run` only, and its key is in the "
                "environment of that run. Leave api_key out, or pass os.environ['OPENAI_API_KEY'].",
                "invalid_api_key",
            )
        method, path = scope["method"], scope["path"]
        wanted = "POST" if path in CALL_ROUTES else "GET"
        if path not in CALL_ROUTES + PLAIN_ROUTES or method != wanted:
            return (
                404,
                f"{method} {path} is not served: the engine of this run answers POST "
                f"{', '.join(CALL_ROUTES)} and GET {PLAIN_ROUTES[0]}. For anything else (embeddings"
                ", images, audio, files ...) give that client its own base_url and api_key.",
                "not_served",
            )
        return None

    # ── which call it is, and how it ends ────────────────────────────────────────────────────

    async def _call(self, scope: Any, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        if body is None:
            return
        try:
            request = json.loads(body)
            if not isinstance(request, dict):
                raise ValueError("it is no object")
        except ValueError as fault:
            text = f"The body of the request is not a JSON object: {fault}."
            await _send_error(send, 400, text, "invalid_json")
            return
        model = self._desk.model_for(request.get("model"))
        exchange = _Exchange(_cleaned(request, model), receive, send)
        named = _header(scope, CALL_HEADER.encode()).decode("latin-1")
        if named and self._desk.is_over(named):
            await _send_error(send, _GONE, _STOPPED, "call_stopped")
            return
        call, own = self._identify(named, model)
        self._exchanges.add(exchange)
        self._serving.add(call)
        try:
            with self._desk.serving(call, exchange.stop_from_anywhere):
                application = self._desk.application()
                await application(exchange.scope(scope), exchange.receive, exchange.send)
                await exchange.finish()
        except AutellixError as fault:
            await exchange.fail(str(fault))
        except BaseException as fault:
            exchange.error = exchange.error or str(fault) or type(fault).__name__
            raise
        finally:
            self._serving.discard(call)
            self._exchanges.discard(exchange)
            if own:
                # An open call that a header named is ended by whoever announced it: a client that
                # tries again sends the same name.
                self._recorder.end_call(call, exchange.status, exchange.error)

    def _identify(self, named: str, model: str) -> tuple[str, bool]:
        """The call's id, and whether it was announced only here."""
        if named and named not in self._serving and self._recorder.is_open(named):
            return named, False
        call = self._recorder.begin_call(model, beside=named or None)
        return call or secrets.token_hex(16), True


class _Exchange:
    """One request and its reply, seen from between the client and the application."""

    def __init__(self, body: bytes, receive: Receive, send: Send) -> None:
        self._body: bytes | None = body
        self._length = len(body)
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._code = 0
        self._left = self._complete = False
        self.error: str | None = None

    @property
    def status(self) -> CallEnd:
        """How the call ended."""
        if self._stopped.is_set() or (self._left and not self._complete):
            return "aborted"
        return "failed" if self.error else "done"

    def stop(self) -> None:
        """End it as if the client had gone."""
        self._stopped.set()

    def stop_from_anywhere(self) -> None:
        """As ``stop``, from any thread."""
        with contextlib.suppress(RuntimeError):  # the engine has stopped, and its loop with it
            self._loop.call_soon_threadsafe(self._stopped.set)

    def scope(self, scope: Any) -> Any:
        """The request's scope, with the headers that may pass."""
        headers = [(k, v) for k, v in scope["headers"] if k.lower() in _HEADERS_PASSED_ON]
        headers.append((b"content-length", str(self._length).encode()))
        return {**scope, "headers": headers}

    async def receive(self) -> Message:
        """The body at once; then nothing, until the client leaves or the call is stopped."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        leaving = asyncio.ensure_future(self._receive())
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({leaving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            stopping.cancel()
        self._left = True
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Pass the reply on, and note what it says of the call."""
        if self._stopped.is_set():
            return
        if message["type"] == "http.response.start":
            self._code = message["status"]
        body = message.get("body", b"")
        if body and (self._code >= 400 or body.startswith(b'data: {"error"')):
            self.error = _error_text(body)
        self._complete = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)

    async def finish(self) -> None:
        """Tell a client that is still there that its call was stopped."""
        if self._complete or not self._stopped.is_set():
            return
        if not self._code:
            await _send_error(self._send, _GONE, _STOPPED, "call_stopped")
            return
        await self._break_off(_STOPPED, "call_stopped")

    async def fail(self, text: str) -> None:
        """Tell the client that the engine cannot serve it."""
        self.error = text
        if not self._code:
            await _send_error(self._send, 503, text, "engine_unavailable")
        else:
            await self._break_off(text, "engine_unavailable")

    async def _break_off(self, text: str, code: str) -> None:
        event = f"data: {json.dumps(_error(text, code))}\n\n".encode()
        await self._send({"type": "http.response.body", "body": event, "more_body": False})


def new_key() -> str:
    """A key for one run."""
    return f"autellix-{secrets.token_urlsafe(32)}"


def _cleaned(request: dict[str, Any], model: str) -> bytes:
    """The request as the engine may see it."""
    kept = {name: value for name, value in request.items() if name not in _OURS}
    kept["model"] = model
    extra = kept.get("vllm_xargs")
    if isinstance(extra, dict):
        kept["vllm_xargs"] = {k: v for k, v in extra.items() if not k.startswith(_TICKET_PREFIX)}
    return json.dumps(kept).encode()


def _header(scope: Any, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key.lower() == name), b"")


async def _read(receive: Receive) -> bytes | None:
    """The body; None where the client leaves before it is complete."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def _error(text: str, code: str) -> dict[str, Any]:
    return {
        "error": {"message": text, "type": "invalid_request_error", "param": None, "code": code}
    }


async def _send_error(send: Send, status: int, text: str, code: str) -> None:
    body = json.dumps(_error(text, code)).encode()
    headers = [(b"content-type", b"application/json"), (b"x-should-retry", b"false")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body.removeprefix(b"data: "))["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:200]
