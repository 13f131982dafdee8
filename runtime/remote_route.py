"""The way of a run's OpenAI clients to a server, put together and taken down again.

As :mod:`.openai_route`, but the endpoint is in another process: clients are led there, and their
requests say which program they belong to and which calls they follow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from autellix.errors import EngineStoppedError

from ..integrations.openai_calls import OpenAICall, OpenAICalls
from ..integrations.openai_environment import openai_environment
from ..integrations.openai_private import watch_requests
from .remote_engine import RemoteEngine
from .session import Session


class RemoteRoute:
    """Inside ``with``, OpenAI clients of this process and its children use the server.

    Args:
        session: the run.
        engine: the server.
    """

    def __init__(self, session: Session, engine: RemoteEngine) -> None:
        self.url = engine.url
        self.key = engine.key
        self._session = session
        self._engine = engine
        self._undo = contextlib.ExitStack()

    @property
    def base_url(self) -> str:
        """What OpenAI clients take as their base URL."""
        return f"{self.url}/v1"

    def __enter__(self) -> Self:
        record = self._session.record
        self._engine.parents_of = record.llm_parents
        self._engine.name_of, self._engine.node_of = record.name, record.node
        with contextlib.ExitStack() as stack:
            # Clients want some key, also where the server has none.
            stack.enter_context(openai_environment(self.base_url, self.key or "none"))
            stack.callback(watch_requests(RemoteCalls(self._session, self._engine)))
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
        """Lead clients elsewhere again; safe to call twice."""
        self._undo.close()


class RemoteCalls(OpenAICalls):
    """Gives the requests of the ``openai`` package the names of their program, call and parents."""

    def __init__(self, session: Session, engine: RemoteEngine) -> None:
        super().__init__(
            session.recorder,
            f"{engine.url}/v1",
            prepare=session.start,
            is_serving=lambda: session.is_started,
        )
        self._session = session
        self._engine = engine

    def begins(self, path: str, model: str) -> OpenAICall | None:
        """A request begins in the running context; None for one that is no call."""
        call = super().begins(path, model)
        return None if call is None else RemoteCall(call, self._session, self._engine, model)


class RemoteCall(OpenAICall):
    """One request. Satisfies ``SdkCall``."""

    def __init__(
        self, call: OpenAICall, session: Session, engine: RemoteEngine, model: str
    ) -> None:
        super().__init__(call.call, wants_usage=call.wants_usage)
        self._inner = call
        self._session = session
        self._engine = engine
        self._program = session.record.program_of(call.call)
        self.model = session.model_for(model)

    @property
    def headers(self) -> Mapping[str, str]:
        """The call's identity, and what it follows."""
        return self._engine.headers_of(self._program, self.call)

    def ended(self, error: BaseException | None, *, complete: bool = True) -> None:
        """The caller has the answer, an error, or has closed the stream."""
        self._inner.ended(error, complete=complete)
        with contextlib.suppress(EngineStoppedError):  # a stream that is closed after all is over
            self._session.loop.call(self._engine.fetch_receipt, self._program, self.call)
