"""A server, put together and taken down again: engine, run, sessions, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import queue
from types import TracebackType
from typing import Self

from rich.console import Console

from autellix.errors import AutellixError

from ..integrations.openai_endpoint import new_key
from .client_calls import ClientCalls
from .client_sessions import ClientSessions
from .engine_host import EngineHost, check_machine
from .http_server import HttpServer
from .interrupts import Interrupts
from .progress import Steps
from .run_command import logging_to
from .run_watch import RunWatch
from .serve_application import ServeApplication
from .serve_metrics import ServeMetrics
from .serve_schema import serve_schema
from .serve_settings import ServeSettings
from .session import Session
from .settings import Settings
from .tenant_watch import TenantWatch
from .tenants import EVERYBODY, Keys, Tenant
from .top_route import Watch
from .top_runs import announced

_KEEP_ENDED = 500  # programs that have ended and are still shown
_END_WITHIN_S = 5.0
_OPERATOR = Tenant(name="operator", operator=True)


class Server:
    """Serves inside ``with``.

    Args:
        settings: of the engine and of the run.
        serving: of the server.
        host: a running engine to use; without, one is started and stopped again.
        keys: who may use it; None for everybody who reaches it.

    Raises:
        EngineStartError: the address cannot be had, which is found out before an engine starts.

    Attributes:
        run: the run that all programs belong to.
        key: lets the user who has started it in, for ``autellix top``.
    """

    def __init__(
        self,
        settings: Settings,
        serving: ServeSettings,
        host: EngineHost | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.serving = serving
        self.key = new_key()
        self._keys = keys
        if keys is not None:
            keys.add(self.key, _OPERATOR)
        self.run = Session(settings, host, keep_ended=_KEEP_ENDED, metrics=True)
        self.sessions = ClientSessions(
            max_sessions=serving.max_sessions,
            max_calls=serving.max_calls,
            max_session_calls=serving.max_session_calls,
        )
        self.calls = ClientCalls(self.run, self.sessions, idle_s=serving.session_idle_s)
        self.watch = RunWatch(self.run, title="serve")
        self._http = HttpServer(serving.address)
        self._undo = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return self._http.url

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self._http.stop)
            stack.callback(self.run.close)
            self.run.start()
            # Its programs are the clients': nothing that this process itself does is one.
            self.run.recorder.uninstall()
            tenants = [EVERYBODY] if self._keys is None else self._keys.tenants
            metrics = ServeMetrics(self.run, self.sessions, self.watch, tenants)
            stack.callback(metrics.close)
            application = ServeApplication(
                self.calls,
                self.serving,
                self._keys,
                watch=self._watch_of,
                metrics=metrics.page,
                schema=lambda: serve_schema(self.run.host.chat.application()),
            )
            # A server that is started again at its address goes on with the sessions it had.
            self.calls.store = f"serve:{self.url}"
            sweeping = self.run.loop.submit(self.calls.keep_swept())
            self._http.start(application, self.run.loop)
            stack.callback(self._http.stop)  # while the loop that it serves on still runs
            stack.callback(self._end, application)
            stack.callback(sweeping.cancel)
            self._undo = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all sessions, stop serving, and the engine where it is the server's own."""
        self._undo.close()

    def _watch_of(self, tenant: Tenant) -> Watch:
        return self.watch if tenant.operator else TenantWatch(self.watch, tenant)

    def _end(self, application: ServeApplication) -> None:
        """The clients learn that their calls have been stopped, before connections are closed."""

        async def end() -> None:
            self.calls.close_all()
            application.stop()
            deadline = asyncio.get_running_loop().time() + _END_WITHIN_S
            while self.sessions.open_calls:
                if asyncio.get_running_loop().time() > deadline:
                    return
                await asyncio.sleep(0.01)

        with contextlib.suppress(AutellixError):
            self.run.loop.run(end())


def serve_until_stopped(
    settings: Settings, serving: ServeSettings, host: EngineHost | None = None
) -> int:
    """Serve until Ctrl-C or SIGTERM; the exit code, which is 0.

    The first signal ends sessions and engine in order; a second one ends the process at once.

    Raises:
        SettingsError: the keys are wrong, or missing.
        AutellixError: the engine, the model or the address cannot be used.
    """
    console = Console(stderr=True)
    keys = serving.keys()
    if host is None:
        check_machine(settings)
    with logging_to(console, settings.debug), Interrupts() as interrupts:
        stopped: queue.SimpleQueue[None] = queue.SimpleQueue()  # fit for signal handlers
        server = Server(settings, serving, host, keys)
        with Steps("engine", shown=not settings.quiet, console=console) as steps:
            steps.note("starting, some 20 s on a CPU")
            server.__enter__()
            # From here on clients may have calls under way, which end in order.
            interrupts.instead = functools.partial(stopped.put, None)
        try:
            if host is None:
                # A full pass of the collector over all that has been imported would hold every
                # stream for half a second.
                gc.collect()
                gc.freeze()
            if not settings.quiet:
                who = "everybody on this machine" if keys is None else f"{_named(keys)}"
                console.print(f"serving {who} at {server.url}/v1", highlight=False)
            with announced(server.url, server.key, "serve"):
                stopped.get()
            if not settings.quiet:
                console.print("stopping; Ctrl-C again stops at once", highlight=False)
        finally:
            server.close()
            gc.unfreeze()  # else what libraries look for at their end looks leaked to them
    return 0


def _named(keys: Keys) -> str:
    names = [tenant.name for tenant in keys.tenants if tenant not in (_OPERATOR, EVERYBODY)]
    return f"{len(names)} tenant{'s' if len(names) != 1 else ''}"
