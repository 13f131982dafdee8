"""An ASGI application served over HTTP on this machine only, by the engine's event loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import socket
from typing import Any

from autellix.errors import EngineStartError

from .engine_loop import EngineLoop

_HOST = "127.0.0.1"
# Longer than clients keep theirs: a server that closes first can do so under a request.
_KEEP_ALIVE_S = 300
_GRACE_S = 1
_STOP_TIMEOUT_S = 5.0


class HttpServer:
    """Has an address from the start; serves between ``start`` and ``stop``.

    Until then connections are refused rather than kept waiting.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.bind((_HOST, 0))
        except OSError as cause:
            self._socket.close()
            raise EngineStartError(
                f"No port on {_HOST} for the OpenAI endpoint: {cause}. It needs the loopback "
                "interface of this machine."
            ) from cause
        self.port: int = self._socket.getsockname()[1]
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None
        self._loop: EngineLoop | None = None

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://{_HOST}:{self.port}"

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

        config = uvicorn.Config(
            application,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
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


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})
