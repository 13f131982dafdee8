"""A server's engine as the engine of a run in this process: calls go there over HTTP.

Programs of the run are sessions of the server, named so that they meet nobody else's; calls go
with their id and the ids of the LLM calls they follow, so that the server's DAG is the run's. When
a call has ended, its receipt is fetched; when a program has ended, so has its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any
from urllib.parse import quote

import httpx

from autellix.errors import AutellixError, EngineStoppedError, UsageError

from ..integrations.openai_calls import (
    CALL_HEADER,
    NAME_HEADER,
    NODE_HEADER,
    PARENTS_HEADER,
    SESSION_HEADER,
)
from ..scheduler.tickets import Decision, Receipt, Ticket
from .call_errors import call_error
from .client_sessions import ID, in_header
from .engine_host import EngineHost
from .engine_loop import EngineLoop
from .protocols import EngineCall, EngineChunk, EngineStats
from .server_return import ServerReturn, gone
from .web_address import check_key, web_address

Receipts = Callable[[Receipt], None]
Parents = Callable[[str], Sequence[str]]
Names = Callable[[str], str | None]
_CONNECT_S, _ASK_S = 10.0, 30.0
_RECEIPT_TRIES, _RECEIPT_AGAIN_S = 20, 0.05
_LONGEST_ID = 100
_MOST_AGAIN = 6
_STATS = {f.name for f in fields(EngineStats)}


class RemoteEngine:
    """The server, over HTTP. Satisfies ``Engine`` and ``ChatFront``, on the engine's loop.

    Args:
        url: of the server, without a path.
        key: of a tenant; empty for a server without keys.
        model: what the server's model is called.
        policy: the server's.
        http: a client of the loop.

    Attributes:
        parents_of: gives the LLM calls that a call follows; set by whoever records them.
        name_of, node_of: give the name of a program, and the node that makes a call; set likewise.
    """

    kind = "remote"

    def __init__(
        self, url: str, key: str, model: str, policy: str, http: httpx.AsyncClient
    ) -> None:
        self.url = url
        self.key = key
        self.model = model
        self.policy = policy
        self.replicas = 1
        self.parents_of: Parents = lambda call: ()
        self.name_of: Names = lambda program: None
        self.node_of: Names = lambda call: None
        self._http = http
        self._run = secrets.token_hex(4)
        self._on_receipt: Receipts = lambda receipt: None
        self._fetching: dict[str, set[asyncio.Task[None]]] = {}
        self._sessions: set[str] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._return = ServerReturn(url, http)

    # ── names ────────────────────────────────────────────────────────────────────────────────

    def session_of(self, program: str) -> str:
        """What the program is called on the server: nobody else has a session of that name."""
        self._sessions.add(program)
        named = f"{self._run}.{program}"
        if len(named) <= _LONGEST_ID and ID.fullmatch(named):
            return named
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", program)[:40]
        return f"{self._run}.{plain}.{hashlib.sha256(program.encode()).hexdigest()[:16]}"

    def headers_of(self, program: str, call: str) -> dict[str, str]:
        """What says whose call it is, what it follows, and what both are called."""
        names = {NAME_HEADER: self.name_of(program), NODE_HEADER: self.node_of(call)}
        return {
            SESSION_HEADER: self.session_of(program),
            CALL_HEADER: call,
            PARENTS_HEADER: ",".join(self.parents_of(call)),
            **{header: in_header(name) for header, name in names.items() if name},
        }

    # ── the chat front ───────────────────────────────────────────────────────────────────────

    async def complete(self, body: Mapping[str, Any], ticket: Ticket) -> dict[str, Any]:
        """Answer a chat request in the OpenAI form at once."""
        try:
            while True:
                try:
                    async with self._asked({**body, "stream": False}, ticket) as reply:
                        return _without_none(json.loads(await reply.aread()))
                except httpx.TransportError as cause:
                    await self._return.wait(cause)
        finally:
            self.fetch_receipt(ticket.program, ticket.call)

    async def stream(
        self, body: Mapping[str, Any], ticket: Ticket
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answer in chunks of the OpenAI form; the last one carries the usage."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        begun = False
        try:
            while True:
                try:
                    async with (
                        self._asked({**body, **options}, ticket) as reply,
                        contextlib.aclosing(_events(reply)) as chunks,
                    ):
                        async for chunk in chunks:
                            begun = True
                            yield chunk
                    return
                except httpx.TransportError as cause:
                    if begun:  # what the caller has had cannot be taken back
                        raise self._gone(cause) from cause
                    await self._return.wait(cause)
        finally:
            self.fetch_receipt(ticket.program, ticket.call)

    def _asked(self, body: dict[str, Any], ticket: Ticket) -> _Reply:
        headers = self.headers_of(ticket.program, ticket.call)
        return _Reply(self, self._http, {"model": self.model, **body}, headers)

    def application(self) -> Any:
        """There is none here."""
        raise AutellixError(f"The calls of this process go to {self.url}; it serves none itself.")

    def send_receipts_to(self, sink: Receipts) -> None:
        """From now on every call's receipt goes to ``sink``."""
        self._on_receipt = sink

    def send_prompts_to(self, sink: Any) -> None:
        """Prompts are the server's to tokenise."""

    def send_contents_to(self, sink: Any) -> None:
        """Contents are the server's to record."""

    async def settled(self) -> None:
        """Return when the receipts of the calls that have ended are here."""
        while fetching := [task for tasks in self._fetching.values() for task in tasks]:
            await asyncio.wait(fetching)

    def fetch_receipt(self, program: str, call: str) -> None:
        """A call has ended: its receipt will be here soon."""
        task = asyncio.create_task(self._fetch(program, call))
        tasks = self._fetching.setdefault(program, set())
        tasks.add(task)
        task.add_done_callback(lambda done: self._fetched(program, done))

    def _fetched(self, program: str, task: asyncio.Task[None]) -> None:
        tasks = self._fetching.get(program, set())
        tasks.discard(task)
        if not tasks:
            self._fetching.pop(program, None)

    async def _fetch(self, program: str, call: str) -> None:
        path = f"/v1/sessions/{self.session_of(program)}/calls/{quote(call, safe='')}"
        for _ in range(_RECEIPT_TRIES):  # one that was given up has its receipt a moment later
            try:
                reply = await self._http.get(path)
            except httpx.HTTPError:
                return
            if reply.status_code == 200:
                self._on_receipt(_receipt_of(reply.json(), program, call))
                return
            await asyncio.sleep(_RECEIPT_AGAIN_S)

    # ── the engine ───────────────────────────────────────────────────────────────────────────

    @property
    def is_serving(self) -> bool:
        """Whether calls are taken."""
        return not self._stopped

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """Tokens do not cross the wire.

        Raises:
            EngineStoppedError: always.
        """
        raise EngineStoppedError("A server takes requests, not tokens.")
        yield

    async def abort(self, call_id: str) -> Receipt | None:
        """A call is given up by leaving its request."""
        return None

    def forget(self, program: str) -> None:
        """The program has ended, and its session with it once its receipts are here."""
        if program in self._sessions:
            self._sessions.discard(program)
            task = asyncio.create_task(self._end(program))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        """The server knows its own sessions."""

    def returns(self, program: str) -> None:
        """See :meth:`away`."""

    async def _end(self, program: str) -> None:
        if tasks := self._fetching.get(program):
            await asyncio.wait(set(tasks))
        path = f"/v1/sessions/{self.session_of(program)}"
        self._sessions.discard(program)
        try:
            await self._http.delete(path)
        except httpx.HTTPError:
            return

    async def drain(self) -> None:
        """Return when receipts are here and sessions have ended."""
        await self.settled()
        if self._ending:
            await asyncio.wait(self._ending)

    async def stop(self) -> None:
        """End what is left of this run on the server; safe to call twice."""
        if not self._stopped:
            self._stopped = True
            self._return.give_up()
            for program in list(self._sessions):
                self.forget(program)
            await self.drain()
            await self._http.aclose()

    async def stats(self) -> EngineStats:
        """The first replica's state."""
        return (await self.stats_of_replicas())[0]

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """What the server tells of its replicas; not where single calls are."""
        try:
            reply = await self._http.get("/v1/queues")
            rows = reply.json()["queues"] if reply.status_code == 200 else []
        except httpx.HTTPError as cause:
            raise self._gone(cause) from cause
        known = [{k: v for k, v in row.items() if k in _STATS} for row in rows]
        self.replicas = max(len(known), 1)
        return [EngineStats(**row) for row in known] or [EngineStats()]

    def _gone(self, cause: Exception) -> EngineStoppedError:
        return gone(self.url, cause)


async def _events(reply: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a streamed reply, to its end."""
    async for line in reply.aiter_lines():
        data = line.removeprefix("data: ").strip()
        if data == "[DONE]":
            return
        if not data:
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            raise call_error(str(chunk["error"].get("message", data)))
        yield chunk


class _Reply:
    """One request and its reply; entering it waits for the reply's head."""

    def __init__(
        self,
        engine: RemoteEngine,
        http: httpx.AsyncClient,
        body: dict[str, Any],
        headers: dict[str, str],
    ) -> None:
        self._engine = engine
        self._http = http
        self._body = body
        self._headers = headers
        self._reply: httpx.Response | None = None

    async def __aenter__(self) -> httpx.Response:
        for again in range(_MOST_AGAIN):
            request = self._http.build_request(
                "POST", "/v1/chat/completions", json=self._body, headers=self._headers
            )
            try:
                reply = self._reply = await self._http.send(request, stream=True)
                if reply.status_code == 200:
                    return reply
                text = (await reply.aread()).decode(errors="replace")
            finally:
                if self._reply is not None and self._reply.status_code != 200:
                    await self._reply.aclose()
            if reply.status_code != 429 or again + 1 == _MOST_AGAIN:
                raise _refusal(reply.status_code, text)
            await asyncio.sleep(float(reply.headers.get("retry-after", 1)) * (again + 1))
        raise AssertionError("unreachable")

    async def __aexit__(self, *error: object) -> None:
        if self._reply is not None:
            await self._reply.aclose()


def connected_host(url: str, key: str = "") -> EngineHost:
    """The engine of a server, for the runs of this process.

    Args:
        url: of the server, with or without ``/v1``.
        key: of a tenant; empty for a server without keys.

    Raises:
        UsageError: the URL is none, or the key is not one of the server's.
        AutellixError: nobody answers there, or no such server.
    """
    parts = web_address(url)
    check_key(key)
    if parts is None:
        raise UsageError(f"{url!r} is no URL of a server; give one like http://127.0.0.1:8000.")
    base = f"{parts.scheme}://{parts.netloc}"
    loop = EngineLoop("autellix-remote")
    try:
        engine = loop.run(_connect(base, key))
    except BaseException:
        loop.close()
        raise
    return EngineHost(loop, engine, engine)


async def _connect(url: str, key: str) -> RemoteEngine:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # A call may take as long as it takes: only connecting has a limit.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    timeout = httpx.Timeout(None, connect=_CONNECT_S)
    http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits)
    try:
        reply = await http.get("/v1/models", timeout=_ASK_S)
        if reply.status_code == 401:
            raise UsageError(f"{url} wants a key of one of its tenants; give it in AUTELLIX_KEY.")
        queues = await http.get("/v1/queues", timeout=_ASK_S)
        if reply.status_code != 200 or queues.status_code != 200:
            raise AutellixError(f"What answers at {url} is no server of Autellix.")
        model, policy = reply.json()["data"][0]["id"], queues.json()["run"]["policy"]
        return RemoteEngine(url, key, str(model), str(policy), http)
    except httpx.HTTPError as cause:
        await http.aclose()
        raise AutellixError(
            f"Nothing answers at {url}: {str(cause) or type(cause).__name__}. Start it with "
            "`autellix serve`."
        ) from cause
    except (ValueError, KeyError, IndexError, TypeError) as cause:
        await http.aclose()
        raise AutellixError(f"What answers at {url} is no server of Autellix.") from cause
    except BaseException:
        await http.aclose()
        raise


def _receipt_of(wire: Mapping[str, Any], program: str, call: str) -> Receipt:
    """The receipt in this process's names, and on this machine's clock."""
    receipt = replace(Receipt.from_wire(wire["receipt"]), program=program, call=call)
    later_s = time.monotonic() - float(wire["clock_s"])
    decisions = tuple(
        Decision(d.at_s + later_s, d.kind, d.level, d.reason) for d in receipt.decisions
    )
    return replace(receipt, decisions=decisions)


def _refusal(status: int, text: str) -> AutellixError:
    try:
        said = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = text[:200] or f"status {status}"
    if status in (401, 403, 404):
        return UsageError(said)
    return EngineStoppedError(said) if status >= 500 else call_error(said)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
