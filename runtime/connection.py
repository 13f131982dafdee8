"""``autellix.connect``: the programs of this process run on a server's engine."""

from __future__ import annotations

import atexit
import contextlib
import os
from types import TracebackType
from typing import Self, cast

from autellix.errors import UsageError

from .program_scope import program
from .remote_engine import RemoteEngine, connected_host
from .remote_route import RemoteRoute
from .session import Session, running_session, use_session
from .settings import Settings


class Connection:
    """A server that the calls of this process go to, until it is closed.

    Attributes:
        program: as ``autellix.program``: marks a piece of plain Python as one program.
        base_url: what OpenAI clients take as their base URL; one that is told nothing takes it.
        session: the run that is recorded here.
    """

    program = program

    def __init__(self, url: str, key: str = "") -> None:
        running = running_session()
        if running is not None and running.is_started:
            raise UsageError(
                "This process has an engine of its own, or is connected, already: connect before "
                "the first call, or close the connection there is."
            )
        with contextlib.ExitStack() as stack:
            host = connected_host(url, key)
            stack.callback(host.stop)
            engine = cast("RemoteEngine", host.engine)
            settings = Settings.from_environment()
            self.session = Session(settings.merged(policy=engine.policy), host)
            stack.callback(self.session.close)
            route = RemoteRoute(self.session, engine)
            stack.enter_context(route)
            self.session.start()
            use_session(self.session)
            stack.callback(use_session, None)
            self.base_url = route.base_url
            self._undo = stack.pop_all()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what is under way, and write the trace where there is one; safe to call twice."""
        atexit.unregister(self.close)
        self._undo.close()


def connect(url: str, key: str | None = None) -> Connection:
    """Send the calls of this process to a server that ``autellix serve`` has started.

    Programs, graphs and the calls of ``ChatAutellix`` and of the ``openai`` package are recorded
    here, and reach the server with their program and the calls that they follow.

    Args:
        url: of the server, with or without ``/v1``.
        key: of a tenant; None takes ``AUTELLIX_KEY``, where there is one.

    Raises:
        UsageError: the URL or the key is wrong, or this process has an engine already.
        AutellixError: no server answers there.
    """
    return Connection(url, os.environ.get("AUTELLIX_KEY", "") if key is None else key)
