"""The routes of sessions.

POST   /v1/sessions                  {"id": ..., "name": ...}, both optional; 201
GET    /v1/sessions?limit=&offset=   the tenant's own, the oldest first
GET    /v1/sessions/ID               one of them
DELETE /v1/sessions/ID               ends it, and stops its calls; 204
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from .client_calls import ClientCalls
from .client_sessions import MOST_NAME, ClientSession, Refusal
from .tenants import Tenant

SESSIONS = "/v1/sessions"
PAGE, LARGEST_PAGE = 100, 1_000
_Read = Callable[[], Awaitable[dict[str, Any] | None]]


def is_session_path(path: str) -> bool:
    """Whether a path is one of these routes."""
    return path == SESSIONS or path.startswith(f"{SESSIONS}/")


class SessionRoutes:
    """Answers for a tenant; what belongs to another is not there.

    Args:
        calls: the programs of the server.
    """

    def __init__(self, calls: ClientCalls) -> None:
        self._calls = calls

    async def answer(self, tenant: Tenant, scope: Any, read: _Read) -> tuple[int, Any]:
        """Status and value of the reply.

        Args:
            read: reads the request's body.

        Raises:
            Refusal: the request is none of these, or names a session that is not there.
        """
        path, method = scope["path"], scope["method"]
        if path == SESSIONS:
            if method == "POST":
                return await self._make(tenant, read)
            if method == "GET":
                return 200, self._page(tenant, scope.get("query_string", b"").decode("latin-1"))
            raise Refusal(405, f"{path} takes GET and POST.", "wrong_method")
        if method not in ("GET", "DELETE"):
            raise Refusal(405, f"{SESSIONS}/ID takes GET and DELETE.", "wrong_method")
        id, of_call, call = path.removeprefix(f"{SESSIONS}/").partition("/calls/")
        session = self._calls.sessions.find(tenant, id)
        if session is None:
            raise Refusal(404, "There is no such session.", "no_session")
        if of_call:
            if method != "GET":
                raise Refusal(405, f"{SESSIONS}/ID/calls/CALL takes GET.", "wrong_method")
            return 200, self._receipt(session, call)
        if method == "GET":
            return 200, self._wire(session)
        self._calls.close(session)
        return 204, None

    async def _make(self, tenant: Tenant, read: _Read) -> tuple[int, Any]:
        request = await read()
        if request is None:
            raise Refusal(400, "The client has left.", "invalid_json")
        values = {name: request.pop(name, None) for name in ("id", "name")}
        if request:
            raise Refusal(400, "A session has an id and a name, nothing else.", "invalid_request")
        for name, value in values.items():
            if value is not None and (not isinstance(value, str) or len(value) > MOST_NAME):
                text = f"A session's {name} is a text of at most {MOST_NAME} characters."
                raise Refusal(400, text, f"invalid_{'session_id' if name == 'id' else name}")
        named = values["name"] or ""
        if not named.isprintable():
            raise Refusal(400, "A session's name is printable.", "invalid_name")
        session = self._calls.open(tenant, values["id"] or "", name=named)
        return 201, self._wire(session)

    def _page(self, tenant: Tenant, query: str) -> Any:
        numbers = {"limit": PAGE, "offset": 0}
        for name, values in parse_qs(query, keep_blank_values=True).items():
            text = values[-1]
            if name not in numbers:
                raise Refusal(400, "Give limit or offset, nothing else.", "invalid_request")
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                raise Refusal(400, f"{name} is a whole number from 0.", "invalid_request")
            numbers[name] = int(text)
        if not 1 <= numbers["limit"] <= LARGEST_PAGE:
            raise Refusal(400, f"limit is from 1 to {LARGEST_PAGE}.", "invalid_request")
        sessions = self._calls.sessions.of(tenant)
        end = numbers["offset"] + numbers["limit"]
        return {
            "object": "list",
            "data": [self._wire(session) for session in sessions[numbers["offset"] : end]],
            "next_offset": end if end < len(sessions) else None,
        }

    def _receipt(self, session: ClientSession, call: str) -> Any:
        known = session.calls.get(call, "")
        receipt = self._calls.run.record.receipt(known) if known else None
        if receipt is None:
            raise Refusal(404, "There is no such call, or it has not ended.", "no_receipt")
        wire = {**receipt.to_wire(), "program": session.id, "call": call}
        wire["decisions"] = [[d.at_s, d.kind, d.level, d.reason] for d in receipt.decisions]
        return {"object": "receipt", "clock_s": self._calls.now(), "receipt": wire}

    def _wire(self, session: ClientSession) -> dict[str, Any]:
        now, run = self._calls.now(), self._calls.run
        dag = run.record.dag(session.program)
        return {
            "id": session.id,
            "object": "session",
            "name": session.name,
            "age_s": round(now - session.created_s, 3),
            "idle_s": 0.0 if session.open else round(now - session.used_s, 3),
            "calls_running": len(session.open),
            "calls_done": dag.llm_done,
            "prompt_tokens": dag.prompt_tokens,
            "cached_tokens": dag.cached_tokens,
            "output_tokens": dag.output_tokens,
            "service_s": dag.service_s,
            "wait_s": dag.wait_s,
            "critical_path_s": dag.critical_path_s,
        }
