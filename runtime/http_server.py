"""An ASGI application served over HTTP by the engine's event loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autellix.errors import EngineStartError

from .engine_loop import EngineLoop

if TYPE_CHECKING:
    from .bounded_http import Bounds

LOOPBACK = "127.0.0.1"
# Longer than clients keep theirs: a server that closes first can do so under a request.
_KEEP_ALIVE_S = 300
_GRACE_S = 1
_STOP_TIMEOUT_S = 5.0
_BACKLOG = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to serve, and how.

    Attributes:
        host: an address of this machine, or a name of one.
        port: 0 for any that is free.
        bounds: for connections from outside; None trusts them.
        connections: how many there may be at once; None for any number.
        certificate, certificate_key: files for TLS; None for plain HTTP.
    """

    host: str = LOOPBACK
    port: int = 0
    bounds: Bounds | None = None
    connections: int | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None

    @property
    def scheme(self) -> str:
        """Of its URL."""
        return "http" if self.certificate is None else "https"


class HttpServer:
    """Has an address from the start; serves between ``start`` and ``stop``.

    Until then connections are refused rather than kept waiting.

    Args:
        address: where; by default any free port of this machine that no other machine reaches.

    Raises:
        EngineStartError: the address cannot be had.
    """

    def __init__(self, address: Address | None = None) -> None:
        self.address = address or Address()
        self._socket = _bound(self.address.host, self.address.port)
        self.port: int = self._socket.getsockname()[1]
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None
        self._loop: EngineLoop | None = None

    @property
    def url(self) -> str:
        """Its address, without a path."""
        host = self.address.host
        host = f"[{host}]" if ":" in host else host
        return f"{self.address.scheme}://{host}:{self.port}"

    @property
    def is_serving(self) -> bool:
        """Whether it takes connections."""
        return self._server is not None

    def start(self, application: Any, loop: EngineLoop) -> None:
        """Serve ``application`` on ``loop``; returns when it does."""
        # An empty context: requests must not inherit the program of whoever starts the server.
        contextvars.Context().run(lambda: loop.run(self._start(application)))
        self._loop = loop

    def stop(self) -> None:
        """Close every connection and free the port; safe to call twice."""
        server, self._server = self._server, None
        if server is not None and self._loop is not None and self._task is not None:
            server.should_exit = True
            self._loop.submit(_ended(self._task)).result(_STOP_TIMEOUT_S)
        self._socket.close()

    async def _start(self, application: Any) -> None:
        import uvicorn

        up = asyncio.Event()

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                up.set()

        address = self.address
        http: Any = "auto"
        if address.bounds is not None:
            from .bounded_http import bounded_protocol

            http = bounded_protocol(address.bounds)
        config = uvicorn.Config(
            application,
            http=http,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=address.connections,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.certificate_key,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        server = Server(config)
        # Its "started" and "finished" would appear among the program's own messages.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._task = asyncio.create_task(server.serve(sockets=[self._socket]))
        rising = asyncio.create_task(up.wait())
        await asyncio.wait({self._task, rising}, return_when=asyncio.FIRST_COMPLETED)
        if not up.is_set():
            rising.cancel()
            await self._task
            raise EngineStartError("The OpenAI endpoint did not start.")
        self._server = server


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, number, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, number)
    except OSError as cause:
        raise EngineStartError(
            f"This machine has no address {host!r} to serve at: {cause}. 127.0.0.1 serves this "
            "machine alone, 0.0.0.0 all its networks."
        ) from cause
    try:
        if port:  # not for a port of the system's choice, which must be nobody else's
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
    except OSError as cause:
        made.close()
        if port:
            raise EngineStartError(
                f"Port {port} of {host} cannot be had: {cause}. Another program may serve there; "
                "give another --port."
            ) from cause
        raise EngineStartError(
            f"No port on {host} for the OpenAI endpoint: {cause}. It needs the loopback "
            "interface of this machine."
        ) from cause
    return made


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})
