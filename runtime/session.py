"""A session: engine, recorder, programs and trace of one run, composed.

``autellix run`` makes one for the run. In a plain ``python agent.py`` the first call of a
``ChatAutellix`` starts one from ``AUTELLIX_*``, shared by the process and stopped at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import multiprocessing
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autellix.errors import AutellixError, EngineStoppedError

from ..integrations.recorder import Recorder
from ..scheduler.policies import policy_named
from ..tracing.events import RunStarted
from ..tracing.record import RunRecord
from ..tracing.snapshot import ReplicaRow, RunSnapshot
from ..tracing.writer import TraceWriter
from .engine_loop import EngineLoop
from .models import DEFAULT_MODEL, resolve_model
from .programs import Programs
from .protocols import Engine, EngineStats
from .settings import Settings

if TYPE_CHECKING:
    from .chat_service import ChatService

log = logging.getLogger("autellix")

_STATS_TIMEOUT_S = 5.0


class Session:
    """One run. Satisfies ``ChatBackend``.

    Args:
        settings: what the run is made of.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = EngineLoop()
        self.engine: Engine | None = None
        self._chat: ChatService | None = None
        self._writer = TraceWriter(settings.trace) if settings.trace else None
        self.record = RunRecord(sink=self._writer.write if self._writer else None)
        self._origin_s = time.monotonic()
        self.programs = Programs(
            policy_named(settings.policy), self.record, self.now, self._stop_call
        )
        self.recorder = Recorder(self.programs)
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._other_models: set[str] = set()
        self._closed = False

    def now(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self._origin_s

    def start(self) -> None:
        """Start the engine and the recorder; the run's clock starts when both are ready.

        Raises:
            ModelError, EngineStartError, SettingsError: what they say.
        """
        name = self.settings.model or DEFAULT_MODEL
        model = resolve_model(self.settings.model, progress=not self.settings.quiet)
        try:
            self.loop.run(self._start_engine(str(model), name))
        except BaseException:
            self.close()
            raise
        self.recorder.install()
        self._origin_s = time.monotonic()
        assert self.engine is not None
        self.record.apply(
            RunStarted(
                clock_s=self._origin_s,
                engine=self.engine.kind,
                model=self.engine.model,
                replicas=self.engine.replicas,
                policy=self.settings.policy,
            )
        )

    async def _start_engine(self, model: str, served_name: str) -> None:
        from .chat_service import ChatService
        from .vllm_replica import VllmReplica

        replica = await VllmReplica.start(
            model,
            self.settings.engine_args,
            self.settings.scheduler_config(),
            served_name=served_name,
            debug=self.settings.debug,
        )
        self.engine = replica
        self._chat = await ChatService.create(replica, replica.llm, self.programs.receipt)

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    async def complete(self, body: Mapping[str, Any], call: str) -> dict[str, Any]:
        """Answer a chat request in the OpenAI form at once; runs on the engine's loop.

        Raises:
            CallError, EngineStoppedError: what they say.
        """
        with self._serving(call) as chat:
            return await chat.complete(self._with_model(body), self.programs.ticket(call))

    async def stream(
        self, body: Mapping[str, Any], call: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answer in chunks of the OpenAI form; runs on the engine's loop."""
        with self._serving(call) as chat:
            chunks = chat.stream(self._with_model(body), self.programs.ticket(call))
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    @contextlib.contextmanager
    def _serving(self, call: str):  # noqa: ANN202
        if self._chat is None:
            raise EngineStoppedError("The engine has been stopped; start a new session.")
        task = asyncio.current_task()
        assert task is not None
        self._tasks[call] = task
        error: str | None = None
        try:
            yield self._chat
        except BaseException as cause:
            error = str(cause) or type(cause).__name__
            raise
        finally:
            self._tasks.pop(call, None)
            self.programs.served(call, error)

    def _stop_call(self, call: str) -> None:
        task = self._tasks.get(call)
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _with_model(self, body: Mapping[str, Any]) -> dict[str, Any]:
        assert self.engine is not None
        wanted = body.get("model")
        if wanted and wanted != self.engine.model and wanted not in self._other_models:
            self._other_models.add(wanted)
            log.warning("model %r is served by the engine's model %s", wanted, self.engine.model)
        return {**body, "model": self.engine.model}

    # ── views ────────────────────────────────────────────────────────────────────────────────

    def snapshot(
        self, programs_total: int | None = None, *, with_engine: bool = True
    ) -> RunSnapshot:
        """The run at this moment; blocks for the engine's own state where that is wanted."""
        stats = self._engine_stats() if with_engine else EngineStats()
        return self.record.snapshot(
            self.now(),
            replicas=(_replica_row(0, stats),) if with_engine else (),
            levels=stats.call_levels,
            waiting=frozenset(stats.waiting_calls),
            programs_total=programs_total,
        )

    def _engine_stats(self) -> EngineStats:
        if self.engine is None or self._closed:
            return EngineStats()
        try:
            return self.loop.submit(self.engine.stats()).result(timeout=_STATS_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError, AutellixError):
            return EngineStats()

    # ── end ──────────────────────────────────────────────────────────────────────────────────

    def close(self) -> Path | None:
        """Stop the engine and write the trace; safe to call twice.

        Returns:
            Where the trace was written, None without one.
        """
        if self._closed:
            return None
        self._closed = True
        with contextlib.suppress(RuntimeError):
            self.recorder.uninstall()
        if self.engine is not None:
            with contextlib.suppress(TimeoutError):
                self.loop.submit(self.engine.stop()).result(timeout=30)
        else:
            # Interrupted while it started: what has been spawned so far ends here.
            for child in multiprocessing.active_children():
                child.kill()
        self._chat = None
        self.loop.close()
        if self._writer is None:
            return None
        if self.engine is None:
            self._writer.abandon()
            return None
        self._writer.close(self.record.document())
        return self.settings.trace


def _replica_row(index: int, stats: EngineStats) -> ReplicaRow:
    names = ("running", "waiting", "seats", "running_by_level", "waiting_by_level", "kv_usage")
    names += ("step_s", "preemptions", "promotions", "demotions")
    return ReplicaRow(index=index, **{name: getattr(stats, name) for name in names})


_current: Session | None = None
_lock = threading.Lock()


def use_session(session: Session | None) -> None:
    """Make ``session`` the process's; None leaves the next call to start its own."""
    global _current
    with _lock:
        _current = session


def running_session() -> Session | None:
    """The process's session if there is one."""
    return _current


def current_session(model: str | None = None) -> Session:
    """The process's session; one is started from ``AUTELLIX_*`` where there is none.

    Args:
        model: the model for a session that is started now and whose settings name none.
    """
    global _current
    with _lock:
        if _current is None:
            settings = Settings.from_environment()
            session = Session(settings.merged(model=settings.model or model))
            session.start()
            atexit.register(session.close)
            _current = session
        return _current
