"""The way of a run's OpenAI clients to its engine, put together and taken down again.

Composed of: environment variables that lead the clients here (``openai_environment``), hooks that
give their calls an identity (``openai_calls``), a server (``http_server``), the endpoint that lets
them in (``openai_endpoint``), and vLLM's application (``openai_application``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from ..integrations.openai_calls import OpenAICalls
from ..integrations.openai_endpoint import OpenAIEndpoint, new_key
from ..integrations.openai_environment import openai_environment
from ..integrations.openai_private import watch_requests
from ..scheduler.tickets import Ticket
from .http_server import HttpServer
from .run_watch import RunWatch
from .served_call import ServedCall, served_call
from .session import Session
from .top_route import WatchedApplication


class OpenAIRoute:
    """Inside ``with``, OpenAI clients of this process and its children use the session's engine.

    Enter it before the user's modules are imported: many set their clients up then. It serves from
    the moment when the engine runs; a call made in this process before then starts the engine.

    Args:
        session: the run.
        watch: what ``autellix top`` is shown of it; None lets nobody watch.
    """

    def __init__(self, session: Session, watch: RunWatch | None = None) -> None:
        self.key = new_key()
        self._watch = watch
        self._session = session
        self._server = HttpServer()
        self._endpoint = OpenAIEndpoint(session.recorder, self, self.key)
        self._undo = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return self._server.url

    @property
    def base_url(self) -> str:
        """What OpenAI clients take as their base URL."""
        return f"{self._server.url}/v1"

    def __enter__(self) -> Self:
        session, server = self._session, self._server
        with contextlib.ExitStack() as stack:
            stack.callback(server.stop)
            stack.enter_context(openai_environment(self.base_url, self.key))
            calls = OpenAICalls(
                session.recorder,
                self.base_url,
                prepare=session.start,
                is_serving=lambda: server.is_serving,
            )
            stack.callback(watch_requests(calls))
            session.when_started(self._serve)
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
        """End the calls under way, stop serving and restore the environment; safe to call twice."""
        if self._server.is_serving:
            self._session.loop.run(self._stop_calls())
        self._undo.close()

    def _serve(self) -> None:
        application: Any = self._endpoint
        if self._watch is not None:
            application = WatchedApplication(application, self._watch, self.key)
        self._server.start(application, self._session.loop)

    async def _stop_calls(self) -> None:
        self._endpoint.stop()

    # ── what the endpoint asks of the run ────────────────────────────────────────────────────

    def application(self) -> Any:
        """VLLM's application."""
        return self._session.host.chat.application()

    def model_for(self, name: str | None) -> str:
        """The engine's model for a name that a client gave."""
        return self._session.model_for(name)

    def is_over(self, call: str) -> bool:
        """Whether a call of this id has been in the run, and has ended."""
        session = self._session
        return call in session.record and not session.recorder.is_open(call)

    @contextlib.contextmanager
    def serving(self, call: str, stop: Callable[[], None]) -> Iterator[None]:
        """What vLLM's application does inside is this call; a list of prompts makes several."""
        session = self._session
        with contextlib.ExitStack() as stack:

            def ticket_of(call: str) -> Ticket:
                stack.enter_context(session.serving(call, stop))
                return session.programs.ticket(call)

            def further() -> Ticket:
                name, recorder = session.host.engine.model, session.recorder
                another = recorder.claim_beside(call) or recorder.begin_call(name, beside=call)
                assert another is not None
                stack.callback(session.recorder.end_call, another, "aborted")
                return ticket_of(another)

            def answered(call: str) -> None:
                session.recorder.end_call(call, "done")

            token = served_call.set(ServedCall(ticket_of(call), further, answered))
            stack.callback(served_call.reset, token)
            yield
