"""One request to the engine's OpenAI application, seen from between the client and it.

Beside the exchange itself: reading a request, cleaning it, and refusing it in OpenAI's form.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..runtime.protocols import CallEnd

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

STOPPED = "The call was stopped: its program has ended or has given it up."
GONE = 499  # the client has closed the request; OpenAI's clients do not try such a one again
# What a client says of scheduling, or of how replicas pass on what they hold, is not its to say.
_OURS = ("priority", "session_id", "request_id", "kv_transfer_params", "kv_hints")
_TICKET_PREFIX = "autellix_"
_HEADERS_PASSED_ON = (b"host", b"content-type", b"accept", b"user-agent")


class BodyTooLargeError(ValueError):
    """The body of a request exceeds what the server reads."""


class Exchange:
    """One request and its reply.

    Args:
        body: what the application is to read.
        receive, send: lead to the client.
        headers: to be added to the reply.

    Attributes:
        error: what the reply says went wrong; None where nothing did.
    """

    def __init__(
        self,
        body: bytes,
        receive: Receive,
        send: Send,
        headers: tuple[Header, ...] = (),
    ) -> None:
        self._headers = headers
        self._body: bytes | None = body
        self._length = len(body)
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._code = 0
        self._left = self._complete = False
        self.error: str | None = None

    @property
    def status(self) -> CallEnd:
        """How the call ended."""
        if self._stopped.done() or (self._left and not self._complete):
            return "aborted"
        return "failed" if self.error else "done"

    def stop(self) -> None:
        """End it as if the client had gone."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    def stop_from_anywhere(self) -> None:
        """As ``stop``, from any thread."""
        with contextlib.suppress(RuntimeError):  # the engine has stopped, and its loop with it
            self._loop.call_soon_threadsafe(self.stop)

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
        try:
            await asyncio.wait({leaving, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
        self._left = True
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Pass the reply on, and note what it says of the call."""
        if self._stopped.done():
            return
        if message["type"] == "http.response.start":
            self._code = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        elif message["type"] == "http.response.body":
            body = message.get("body")
            if body and (self._code >= 400 or body.startswith(b'data: {"error"')):
                self.error = _text_of(body)
            self._complete = not message.get("more_body")
        await self._send(message)

    async def finish(self) -> None:
        """Tell a client that is still there that its call was stopped."""
        if self._complete or not self._stopped.done():
            return
        if not self._code:
            await send_error(self._send, GONE, STOPPED, "call_stopped")
            return
        await self._break_off(STOPPED, "call_stopped")

    async def fail(self, text: str) -> None:
        """Tell the client that the engine cannot serve it."""
        self.error = text
        if self._complete:
            return
        if not self._code:
            await send_error(self._send, 503, text, "engine_unavailable")
        else:
            await self._break_off(text, "engine_unavailable")

    async def _break_off(self, text: str, code: str) -> None:
        event = f"data: {json.dumps(error_body(text, code))}\n\n".encode()
        await self._send({"type": "http.response.body", "body": event, "more_body": False})


def cleaned(request: dict[str, Any], model: str) -> bytes:
    """The request as the engine may see it."""
    kept = {name: value for name, value in request.items() if name not in _OURS}
    kept["model"] = model
    extra = kept.get("vllm_xargs")
    if isinstance(extra, dict):
        kept["vllm_xargs"] = {k: v for k, v in extra.items() if not k.startswith(_TICKET_PREFIX)}
    return json.dumps(kept).encode()


def header_of(scope: Any, name: bytes) -> bytes:
    """The first header of that name (in small letters); empty where there is none."""
    return next((value for key, value in scope["headers"] if key.lower() == name), b"")


async def request_object(receive: Receive, most_bytes: int | None = None) -> dict[str, Any] | None:
    """The JSON object that is a request's body; None where the client leaves before it is complete.

    Raises:
        BodyTooLargeError: it has more than ``most_bytes``.
        ValueError: it is no JSON object; the message says so in words.
    """
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if most_bytes is not None and size > most_bytes:
            raise BodyTooLargeError(f"The body of the request exceeds {most_bytes} bytes.")
        more = message.get("more_body", False)
    try:
        found = json.loads(b"".join(pieces))
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"The body of the request is not a JSON object: {fault}.") from fault
    if not isinstance(found, dict):
        raise ValueError("The body of the request is not a JSON object: it is no object.")
    # vLLM looks into it before it has looked at what it is.
    if not isinstance(found.get("structured_outputs") or {}, dict):
        raise ValueError("structured_outputs in the body of the request is no JSON object.")
    return found


def error_body(text: str, code: str) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {
        "error": {"message": text, "type": "invalid_request_error", "param": None, "code": code}
    }


async def send_error(send: Send, status: int, text: str, code: str) -> None:
    """Refuse a request; clients are told not to try it again."""
    body = json.dumps(error_body(text, code)).encode()
    headers = [(b"content-type", b"application/json"), (b"x-should-retry", b"false")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _text_of(body: bytes) -> str:
    try:
        return str(json.loads(body.removeprefix(b"data: "))["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:200]
