"""The HTTP application of ``autellix serve``: an OpenAI API with sessions.

    POST   /v1/chat/completions, /v1/completions, /v1/responses    calls
    GET    /v1/models        POST /tokenize, /detokenize           the engine's own
    POST   /v1/sessions      GET /v1/sessions                      see ``session_routes``
    GET    /v1/sessions/ID   DELETE /v1/sessions/ID
    GET    /v1/programs, /v1/programs/ID, /v1/queues               see ``top_route``
    GET    /metrics          for operators                         see ``serve_metrics``
    GET    /openapi.json, /health                                  for everybody

In the order of a request's life:

1. who asks is known by the key; without keys, everybody who reaches the server is one tenant, and
   what a web page could send on behalf of its reader is refused;
2. the body is read within bounds of size and time;
3. what a client must not decide is taken out of it; its session becomes a program, and the call a
   call of it;
4. the engine's own application answers; the client leaving, or its session ending, both look to
   that application as if the client had gone, which aborts the call.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from autellix.errors import AutellixError, CallError

from ..integrations.openai_calls import (
    CALL_HEADER,
    NAME_HEADER,
    NODE_HEADER,
    PARENTS_HEADER,
    SESSION_HEADER,
)
from ..integrations.openai_endpoint import CALL_ROUTES
from ..integrations.openai_exchange import (
    BodyTooLargeError,
    Exchange,
    Receive,
    Send,
    cleaned,
    error_body,
    header_of,
    request_object,
)
from .client_calls import ClientCalls
from .client_sessions import ID, ID_IN_WORDS, Refusal, name_in, parents_of
from .serve_settings import ServeSettings
from .session_routes import SessionRoutes, is_session_path
from .tenants import EVERYBODY, Keys, Tenant
from .top_route import Watch, answer_watch, is_watched

ENGINE_ROUTES = {"/v1/models": "GET", "/tokenize": "POST", "/detokenize": "POST"}
OPEN_ROUTES = ("/health", "/openapi.json")
_SALT = "cache_salt"
_Reply = tuple[int, bytes, str]


class ServeApplication:
    """The ASGI application.

    Args:
        calls: the programs of the server.
        settings: bounds.
        keys: who may use it; None for everybody who reaches it.
        watch: what a tenant may see of the run.
        metrics: the metrics page, made in a thread.
        schema: the document that describes these routes.
    """

    def __init__(
        self,
        calls: ClientCalls,
        settings: ServeSettings,
        keys: Keys | None,
        *,
        watch: Callable[[Tenant], Watch],
        metrics: Callable[[], tuple[bytes, str]],
        schema: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._calls = calls
        self._settings = settings
        self._keys = keys
        self._watch = watch
        self._metrics = metrics
        self._schema = functools.cache(lambda: json.dumps(schema()).encode())
        self._sessions = SessionRoutes(calls)
        self._exchanges: set[Exchange] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            if scope["path"] in OPEN_ROUTES:
                await self._open(scope, receive, send)
                return
            tenant = self._tenant(scope)
            await self._route(scope)(tenant, scope, receive, send)
        except Refusal as refusal:
            await _refuse(send, refusal)
        except CallError as fault:
            await _refuse(send, Refusal(400, str(fault), "call_refused"))
        except AutellixError as fault:
            await _refuse(send, Refusal(503, str(fault), "engine_unavailable"))

    def stop(self) -> None:
        """End the calls under way; runs on the server's loop."""
        for exchange in self._exchanges:
            exchange.stop()

    # ── who asks, and what for ───────────────────────────────────────────────────────────────

    def _tenant(self, scope: Any) -> Tenant:
        if self._keys is None:
            _check_host(scope)
            return EVERYBODY
        sent = header_of(scope, b"authorization").removeprefix(b"Bearer ").strip()
        tenant = self._keys.tenant_of(sent)
        if tenant is None:
            what = "Wrong API key" if sent else "No API key"
            raise Refusal(401, f"{what}: send Authorization: Bearer KEY.", "invalid_api_key")
        return tenant

    def _route(self, scope: Any) -> Callable[..., Awaitable[None]]:
        path, method = scope["path"], scope["method"]
        if path in CALL_ROUTES:
            _check_method(scope, "POST")
            return self._call
        if path in ENGINE_ROUTES:
            _check_method(scope, ENGINE_ROUTES[path])
            return self._engine if method == "GET" else self._engine_with_body
        if is_session_path(path):
            return self._session
        if is_watched(path):
            return self._watched
        if path == "/metrics":
            _check_method(scope, "GET")
            return self._measured
        raise Refusal(
            404,
            f"{method} {path} is not served; GET /openapi.json tells what is.",
            "not_served",
        )

    # ── what is not a call ───────────────────────────────────────────────────────────────────

    async def _open(self, scope: Any, receive: Receive, send: Send) -> None:
        _check_method(scope, "GET")
        if scope["path"] == "/health":
            await self._application()(scope, receive, send)
        else:
            await respond(send, 200, self._schema())

    async def _engine(self, tenant: Tenant, scope: Any, receive: Receive, send: Send) -> None:
        await self._application()(scope, receive, send)

    async def _engine_with_body(
        self, tenant: Tenant, scope: Any, receive: Receive, send: Send
    ) -> None:
        request = await self._body(scope, receive)
        if request is None:
            return
        model = self._calls.model_for(_text(request, "model"))
        exchange = Exchange(cleaned(request, model), receive, send)
        await self._application()(exchange.scope(scope), exchange.receive, exchange.send)

    async def _session(self, tenant: Tenant, scope: Any, receive: Receive, send: Send) -> None:
        read = functools.partial(self._body, scope, receive)
        status, value = await self._sessions.answer(tenant, scope, read)
        await respond(send, status, json.dumps(value).encode() if value is not None else b"")

    async def _watched(self, tenant: Tenant, scope: Any, receive: Receive, send: Send) -> None:
        await answer_watch(self._watch(tenant), scope, send)

    async def _measured(self, tenant: Tenant, scope: Any, receive: Receive, send: Send) -> None:
        if not tenant.operator:
            raise Refusal(403, "The metrics are for an operator's key.", "operators_only")
        page, kind = await asyncio.to_thread(self._metrics)
        await respond(send, 200, page, kind)

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    async def _call(self, tenant: Tenant, scope: Any, receive: Receive, send: Send) -> None:
        request = await self._body(scope, receive)
        if request is None:
            return
        calls = self._calls
        named, given = _session_of(request, scope), _call_of(scope)
        parents = _header(scope, PARENTS_HEADER)
        claimed = parents_of(parents) if _has(scope, PARENTS_HEADER) else None
        name = name_in(_header(scope, NAME_HEADER), "program")
        node = name_in(_header(scope, NODE_HEADER), "node")
        model = calls.model_for(_text(request, "model"))
        _salt(request, tenant)
        session = calls.session_for(tenant, named, name)
        try:
            call = calls.begin(session, model, given, claimed, node=node or None)
        except Refusal:
            calls.finish(session, "failed")
            raise
        names = (
            (SESSION_HEADER.encode(), session.id.encode()),
            (CALL_HEADER.encode(), call.id.encode()),
        )
        exchange = Exchange(cleaned(request, model), receive, send, headers=names)
        self._exchanges.add(exchange)
        try:
            with calls.serving(session, call, model, exchange.stop_from_anywhere):
                application = self._application()
                await application(exchange.scope(scope), exchange.receive, exchange.send)
                await exchange.finish()
        except AutellixError as fault:
            await exchange.fail(str(fault))
        except BaseException as fault:
            exchange.error = exchange.error or str(fault) or type(fault).__name__
            raise
        finally:
            self._exchanges.discard(exchange)
            calls.end(session, call.call, exchange.status, exchange.error)
            calls.finish(session, exchange.status)

    def _application(self) -> Any:
        return self._calls.run.host.chat.application()

    async def _body(self, scope: Any, receive: Receive) -> dict[str, Any] | None:
        """The JSON object that a request brings; None where the client has left.

        Raises:
            Refusal: it is none, too large or too slow.
        """
        kind = header_of(scope, b"content-type").split(b";")[0].strip().lower()
        if kind != b"application/json":
            # A form or plain text is what a web page can send to anywhere unasked.
            raise Refusal(415, "Send Content-Type: application/json.", "not_json")
        most = self._settings.max_body_bytes
        too_large = Refusal(413, f"The body exceeds {most} bytes.", "body_too_large")
        length = header_of(scope, b"content-length")
        if length.isdigit() and int(length) > most:
            raise too_large
        try:
            async with asyncio.timeout(self._settings.body_s):
                return await request_object(receive, most)
        except BodyTooLargeError as fault:
            raise too_large from fault
        except TimeoutError as fault:
            seconds = f"{self._settings.body_s:g} s"
            text = f"The body was not complete within {seconds}."
            raise Refusal(408, text, "body_too_slow") from fault
        except ValueError as fault:
            raise Refusal(400, str(fault), "invalid_json") from fault


def _check_host(scope: Any) -> None:
    """Refuse what a web page sends here through a name of its own that leads to this machine."""
    if not _is_local(header_of(scope, b"host")):
        raise Refusal(
            403, "A server without keys answers to names of this machine alone.", "wrong_host"
        )


@functools.lru_cache(maxsize=64)  # every request asks, and clients name few hosts
def _is_local(given: bytes) -> bool:
    """Whether a Host header names this machine."""
    host = given.decode("latin-1")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_method(scope: Any, method: str) -> None:
    if scope["method"] != method:
        text = f"{scope['path']} takes {method}, not {scope['method']}."
        raise Refusal(405, text, "wrong_method")


def _session_of(request: Mapping[str, Any], scope: Any) -> str:
    """The session that a request names, in its body or its header."""
    named = request.get("session_id")
    if named is None:
        named = _header(scope, SESSION_HEADER)
    if not isinstance(named, str) or (named and ID.fullmatch(named) is None):
        raise Refusal(400, f"A session's id has {ID_IN_WORDS}.", "invalid_session_id")
    return named


def _call_of(scope: Any) -> str:
    given = _header(scope, CALL_HEADER)
    if given and ID.fullmatch(given) is None:
        raise Refusal(400, f"A call's id has {ID_IN_WORDS}.", "invalid_call_id")
    return given


def _header(scope: Any, name: str) -> str:
    return header_of(scope, name.encode()).decode("latin-1")


def _text(request: Mapping[str, Any], name: str) -> str | None:
    value = request.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(400, f"{name} is a text.", "invalid_request")
    return value


def _salt(request: dict[str, Any], tenant: Tenant) -> None:
    """Let no tenant learn from cached tokens, or from their time, what another has asked."""
    if tenant.name:
        own = _text(request, _SALT)
        request[_SALT] = f"{tenant.name}:{own}" if own else tenant.name


def _has(scope: Any, name: str) -> bool:
    wanted = name.encode()
    return any(key.lower() == wanted for key, _ in scope["headers"])


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = json.dumps(error_body(str(refusal), refusal.code)).encode()
    headers = [(b"x-should-retry", b"true" if refusal.status == 429 else b"false")]
    if refusal.status == 429:
        headers.append((b"retry-after", b"1"))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.status in (408, 413):
        headers.append((b"connection", b"close"))  # what is left of the body is not read
    await respond(send, refusal.status, body, headers=headers)


async def respond(
    send: Send,
    status: int,
    body: bytes,
    kind: str = "application/json",
    *,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Send a whole reply."""
    own = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    if status == 204:
        own = []
    await send(
        {"type": "http.response.start", "status": status, "headers": [*own, *(headers or [])]}
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})
