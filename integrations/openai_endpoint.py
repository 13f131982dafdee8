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

import hmac
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from autellix.errors import AutellixError

from .openai_calls import CALL_HEADER
from .openai_exchange import (
    GONE,
    STOPPED,
    App,
    Exchange,
    Receive,
    Send,
    cleaned,
    header_of,
    request_object,
    send_error,
)
from .recorder import Recorder

CALL_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
PLAIN_ROUTES = ("/v1/models", "/health")


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
        self._exchanges: set[Exchange] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refused = self._refusal(scope)
        if refused is not None:
            await send_error(send, *refused)
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
        sent = header_of(scope, b"authorization").removeprefix(b"Bearer ").strip()
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
        try:
            request = await request_object(receive)
        except ValueError as fault:
            await send_error(send, 400, str(fault), "invalid_json")
            return
        if request is None:
            return
        model = self._desk.model_for(request.get("model"))
        exchange = Exchange(cleaned(request, model), receive, send)
        named = header_of(scope, CALL_HEADER.encode()).decode("latin-1")
        if named and self._desk.is_over(named):
            await send_error(send, GONE, STOPPED, "call_stopped")
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


def new_key() -> str:
    """A key for one run."""
    return f"autellix-{secrets.token_urlsafe(32)}"
