"""The routes by which ``autellix top`` watches a run; an ASGI application around the run's own.

    GET /v1/programs?order=interest&limit=100&offset=0    totals, queues, and a page of programs
    GET /v1/programs/ID                                   one program and its DAG
    GET /v1/queues                                        totals and queues

Programs are those that run and the last ones that have ended.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qs

from ..tracing.live_state import ORDERS
from ..tracing.live_wire import graph_to_wire, program_to_wire, queues_to_wire, run_to_wire
from ..tracing.snapshot import ProgramGraph, RunSnapshot

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

PROGRAMS, QUEUES = "/v1/programs", "/v1/queues"
PAGE, LARGEST_PAGE = 100, 1_000


class Watch(Protocol):
    """What the routes show: a run, or what somebody may see of it."""

    async def asnapshot(self) -> RunSnapshot:
        """The run at this moment."""
        ...

    def graph(self, program: str) -> ProgramGraph | None:
        """The DAG of a program; None where there is none."""
        ...


def is_watched(path: str) -> bool:
    """Whether a path is one of these routes."""
    return path in (PROGRAMS, QUEUES) or path.startswith(f"{PROGRAMS}/")


async def answer_watch(watch: Watch, scope: Any, send: Send) -> None:
    """Serve a request to one of these routes."""
    path = scope["path"]
    if scope["method"] != "GET":
        await _refuse(send, 405, f"{path} is for reading: GET it.")
    elif path.startswith(f"{PROGRAMS}/"):
        await _one(watch, path.removeprefix(f"{PROGRAMS}/"), send)
    else:
        await _page_of(watch, path, scope.get("query_string", b"").decode("latin-1"), send)


async def _page_of(watch: Watch, path: str, query: str, send: Send) -> None:
    try:
        order, limit, offset = _page(query)
    except ValueError as fault:
        await _refuse(send, 400, str(fault))
        return
    snapshot = await watch.asnapshot()
    body = {"run": run_to_wire(snapshot), "queues": queues_to_wire(snapshot)}
    if path == PROGRAMS:
        rows = sorted(snapshot.programs, key=ORDERS[order])
        end = offset + limit
        body["programs"] = [program_to_wire(row) for row in rows[offset:end]]
        body["next_offset"] = end if end < len(rows) else None
    await _send(send, 200, body)


async def _one(watch: Watch, program: str, send: Send) -> None:
    graph = watch.graph(program)
    if graph is None:
        await _refuse(send, 404, f"There is no program {program!r} in this run.")
        return
    await _send(send, 200, {"program": program, "dag": graph_to_wire(graph)})


class WatchedApplication:
    """Serves the routes of ``top``; every other request is the inner application's.

    Args:
        inner: what the run serves.
        watch: the run.
        key: what clients must send.
    """

    def __init__(self, inner: App, watch: Watch, key: str) -> None:
        self._inner = inner
        self._watch = watch
        self._key = key.encode()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not is_watched(scope.get("path", "")):
            await self._inner(scope, receive, send)
        elif not self._may(scope):
            await _refuse(send, 401, "Wrong or no API key; it is in the file of the run.")
        else:
            await answer_watch(self._watch, scope, send)

    def _may(self, scope: Any) -> bool:
        headers = {key.lower(): value for key, value in scope["headers"]}
        sent = headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip()
        return hmac.compare_digest(sent, self._key)


def _page(query: str) -> tuple[str, int, int]:
    """Order, limit and offset of a query.

    Raises:
        ValueError: a value is impossible; the message says which would not be.
    """
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    order = given.pop("order", "interest")
    numbers = {"limit": PAGE, "offset": 0}
    for name, value in given.items():
        if name not in numbers:
            raise ValueError(f"There is no parameter {name!r}; give order, limit or offset.")
        if not value.isascii() or not value.isdigit() or len(value) > 9:
            raise ValueError(f"{name} is a whole number from 0, got {value!r}.")
        numbers[name] = int(value)
    if order not in ORDERS:
        raise ValueError(f"There is no order {order!r}; choose one of: {', '.join(ORDERS)}.")
    if not 1 <= numbers["limit"] <= LARGEST_PAGE:
        raise ValueError(f"limit is from 1 to {LARGEST_PAGE}, got {numbers['limit']}.")
    return order, numbers["limit"], numbers["offset"]


async def _refuse(send: Send, status: int, text: str) -> None:
    await _send(send, status, {"error": {"message": text, "type": "invalid_request_error"}})


async def _send(send: Send, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
