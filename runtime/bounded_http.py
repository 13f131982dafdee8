"""Connections that cannot be held for nothing: bounds for clients that are slow or send too much.

uvicorn's own protocol bounds neither the size of a request's head nor the time it takes, and waits
for ever for a client that does not read. Here a connection is closed

1. when a head grows past ``head_bytes``, or is not complete ``head_s`` after it should have begun;
2. when a client has accepted nothing for ``stall_s`` while there is something to send.

Bodies are bounded where they are read, in the application.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LARGE = b"431 Request Header Fields Too Large"
_TOO_SLOW = b"408 Request Timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one connection may take.

    Attributes:
        head_bytes: size of a request's line and headers together.
        head_s: time for a request's line and headers, seconds.
        stall_s: time in which a client accepts nothing, seconds.
    """

    head_bytes: int = 32 * 1024
    head_s: float = 15.0
    stall_s: float = 60.0


def bounded_protocol(bounds: Bounds) -> type[HttpToolsProtocol]:
    """Uvicorn's protocol within bounds."""

    class BoundedProtocol(HttpToolsProtocol):
        _head_bytes = 0
        _in_body = False
        _head_timer: asyncio.TimerHandle | None = None
        _stall_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_timer = _cancelled(self._head_timer)
            self._stall_timer = _cancelled(self._stall_timer)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if not self._in_body:
                if self._head_timer is None:
                    self._expect_head()
                self._head_bytes += len(data)
            super().data_received(data)
            # A head that is complete by now was allowed this much in one piece with its body.
            if not self._in_body and self._head_bytes > bounds.head_bytes:
                self._refuse(_TOO_LARGE)

        def on_message_begin(self) -> None:
            self._in_body = False
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_body = True
            self._head_timer = _cancelled(self._head_timer)
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            self._head_bytes = 0
            if size > bounds.head_bytes:
                self._refuse(_TOO_LARGE)
                return
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            if self.cycle is not None:
                super().on_message_complete()
            self._in_body = False
            self._head_bytes = 0

        def on_body(self, body: bytes) -> None:
            if self.cycle is not None:
                super().on_body(body)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stall_timer is None:
                self._stall_timer = self.loop.call_later(bounds.stall_s, self.transport.abort)

        def resume_writing(self) -> None:
            self._stall_timer = _cancelled(self._stall_timer)
            super().resume_writing()

        def _expect_head(self) -> None:
            self._head_timer = self.loop.call_later(bounds.head_s, self._refuse, _TOO_SLOW)

        def _refuse(self, status: bytes) -> None:
            if not self.transport.is_closing():
                end = b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                self.transport.write(b"HTTP/1.1 " + status + end)
                self.transport.close()

    return BoundedProtocol


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
