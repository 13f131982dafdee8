"""A run of another process as the views see it, asked over HTTP."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode

from autellix.errors import AutellixError, UsageError

from ..tracing.live_wire import graph_from_wire, snapshot_from_wire
from ..tracing.snapshot import ProgramGraph, RunSnapshot
from ..tracing.view import RunOver
from .top_route import LARGEST_PAGE, PROGRAMS
from .web_address import check_key, web_address

_TIMEOUT_S = 5.0


class RemoteRun:
    """Satisfies ``RunSource``.

    Args:
        url: of the run, without a path.
        key: lets its user in.
        most: programs that are asked for at most; the others are counted only.

    Raises:
        UsageError: the URL is none that can be asked.
    """

    def __init__(self, url: str, key: str = "", *, most: int = 1_000) -> None:
        parts = web_address(url)
        if parts is None:
            raise UsageError(f"{url!r} is no URL of a run; give one like http://127.0.0.1:8000.")
        check_key(key)
        port = parts.port
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._connection = kind(parts.hostname or "", port, timeout=_TIMEOUT_S)
        self._headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
        self._most = most
        self._seen = False

    def snapshot(self) -> RunSnapshot:
        """The run at this moment.

        Raises:
            RunOver: it does not answer any more.
            AutellixError: it never answered, or not as a run does.
        """
        programs: list[dict[str, Any]] = []
        offset: int | None = 0
        first: dict[str, Any] | None = None
        while offset is not None and len(programs) < self._most:
            limit = min(LARGEST_PAGE, self._most - len(programs))
            page = self._get(f"{PROGRAMS}?{urlencode({'limit': limit, 'offset': offset})}")
            first = first or page
            try:
                programs += page["programs"]
                offset = page["next_offset"]
            except (KeyError, TypeError) as cause:
                raise self._no_run() from cause
        assert first is not None
        try:
            snapshot = snapshot_from_wire(first["run"], first["queues"], programs)
        except (KeyError, TypeError, ValueError) as cause:
            raise self._no_run() from cause
        self._seen = True
        return snapshot

    def graph(self, program: str) -> ProgramGraph | None:
        """The DAG of a program; None of one that has gone meanwhile."""
        try:
            return graph_from_wire(self._get(f"{PROGRAMS}/{quote(program, safe='')}")["dag"])
        except _Missing:
            return None
        except (KeyError, TypeError, ValueError) as cause:
            raise self._no_run() from cause

    def close(self) -> None:
        """Ask no more."""
        self._connection.close()

    def _get(self, path: str) -> Any:
        try:
            status, body = self._ask(path)
        except TimeoutError as cause:
            raise AutellixError(
                f"{self.url} has not answered within {_TIMEOUT_S:g} s; it may be busy, try again."
            ) from cause
        except (OSError, http.client.HTTPException) as cause:
            if self._seen:
                raise RunOver from cause
            raise AutellixError(
                f"Nothing answers at {self.url}: {cause}. `autellix top` without a URL finds the "
                "runs of this machine."
            ) from cause
        if status == 401:
            raise UsageError(
                f"{self.url} wants another key; give it in AUTELLIX_KEY, or leave the URL out for "
                "a run of yours on this machine."
            )
        if status == 404 and path.startswith(f"{PROGRAMS}/"):
            raise _Missing
        if status != 200:
            raise self._no_run()
        try:
            return json.loads(body)
        except ValueError as cause:
            raise self._no_run() from cause

    def _ask(self, path: str) -> tuple[int, bytes]:
        for again in (True, False):
            try:
                self._connection.request("GET", path, headers=self._headers)
                reply = self._connection.getresponse()
                return reply.status, reply.read()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self._connection.close()  # it was kept for too long; a fresh one may do
                if not again:
                    raise
            except BaseException:
                self._connection.close()
                raise
        raise AssertionError("unreachable")

    def _no_run(self) -> AutellixError:
        return AutellixError(f"What answers at {self.url} is no run of Autellix of this version.")


class _Missing(Exception):
    """There is no such program."""
