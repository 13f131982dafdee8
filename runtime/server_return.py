"""A server that does not answer: calls that it had not begun to answer wait for it to come back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import httpx

from autellix.errors import EngineStoppedError

log = logging.getLogger("autellix")

_WITHIN_S = 120.0
_LOOK_AGAIN_S = 0.5
_ASK_S = 30.0


class ServerReturn:
    """One look at a time, whoever waits.

    Args:
        url: of the server.
        http: a client of it.
    """

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url
        self._http = http
        self._looking: asyncio.Task[bool] | None = None
        self._given_up = False

    async def wait(self, cause: Exception) -> None:
        """Return when the server answers again.

        Args:
            cause: why it does not.

        Raises:
            EngineStoppedError: it has not, in two minutes.
        """
        if self._looking is None or self._looking.done():
            log.warning("%s does not answer; calls wait for it.", self._url)
            self._looking = asyncio.create_task(self._look())
        if not await asyncio.shield(self._looking):
            raise gone(self._url, cause) from cause

    def give_up(self) -> None:
        """Nobody is to wait any more."""
        self._given_up = True

    async def _look(self) -> bool:
        deadline = time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline and not self._given_up:
            with contextlib.suppress(httpx.HTTPError):
                if (await self._http.get("/v1/models", timeout=_ASK_S)).status_code == 200:
                    return True
            await asyncio.sleep(_LOOK_AGAIN_S)
        return False


def gone(url: str, cause: Exception) -> EngineStoppedError:
    """The error of a server that is not there any more."""
    what = str(cause) or type(cause).__name__
    return EngineStoppedError(f"{url} does not answer any more: {what}.")
