"""A server on the shared engine, and a plain HTTP client of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.serve_settings import ServeSettings
from autellix.runtime.serving import Server
from autellix.runtime.settings import Settings
from autellix.runtime.tenants import Keys
from tests.conftest import idle_stats

ASK = [{"role": "user", "content": "Say hi."}]
SMALL = {"messages": ASK, "max_tokens": 6, "temperature": 0}
ENDLESS = {"messages": ASK, "max_tokens": 1900, "ignore_eos": True}


@contextmanager
def serving(
    host: EngineHost, keys: str = "", settings: Settings | None = None, **options: Any
) -> Iterator[Server]:
    """A server with the tests' engine, at a port of its own; at its end nothing is left open."""
    known = Keys.parse(keys.splitlines(), where="the test") if keys else None
    run = settings or Settings(quiet=True)
    with Server(run, ServeSettings(port=0, **options), host, known) as server:
        yield server
    assert not len(server.sessions)
    assert not server.run.programs.table.programs
    idle_stats(host)


class Client:
    """Speaks plain HTTP to a server."""

    def __init__(self, server: Server, key: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=120)

    def chat(self, session: str = "", headers: dict[str, str] | None = None, **more: Any) -> Any:
        """The reply to a small chat request."""
        named = {"X-Session-ID": session} if session else {}
        body = {**SMALL, **more}
        return self.http.post(
            "/v1/chat/completions", json=body, headers={**named, **(headers or {})}
        )

    def events(self, session: str = "", **more: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed reply."""
        lines = self.chat(session, stream=True, **more).text.splitlines()
        found = [line.removeprefix("data: ") for line in lines if line]
        assert found[-1] == "[DONE]"
        return [json.loads(line) for line in found[:-1]]

    def program(self, program: str) -> list[dict[str, Any]]:
        """The calls of a program, as ``autellix top`` is shown them."""
        return self.http.get(f"/v1/programs/{program}").json()["dag"]["nodes"]


def code_of(reply: Any) -> tuple[int, str]:
    """Status and code of a refusal in OpenAI's form."""
    return reply.status_code, reply.json()["error"]["code"]
