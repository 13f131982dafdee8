"""A session: engine, recorder, programs and trace of one run, composed.

``autellix run`` makes one for the run. In a plain ``python agent.py`` the first call of a
``ChatAutellix`` starts one from ``AUTELLIX_*``, shared by the process and stopped at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from autellix.errors import AutellixError, EngineStoppedError, SettingsError, TraceError

from ..integrations.recorder import Recorder
from ..scheduler.policies import policy_named
from ..tracing.events import ContentRecorded, Event, ReplicaChanged, RunStarted
from ..tracing.record import RunRecord
from ..tracing.writer import TraceWriter
from .chat_front import ChatFront
from .engine_host import EngineHost
from .engine_loop import EngineLoop
from .journal_threads import ThreadAccounts, default_journal
from .lessons import Lessons, lessons_beside
from .model_map import ModelMap
from .models import DEFAULT_MODEL
from .programs import Programs
from .protocols import Engine, EngineStats, ReplicaState
from .settings import Settings
from .span_sender import span_sender
from .tool_lessons import ToolLessons, tool_lessons_beside

_BEAT_S = 0.25
_RECEIPTS_TIMEOUT_S = 2.0
_LOOK_AGAIN_S = 0.01


class Session:
    """One run. Satisfies ``ChatBackend``.

    Args:
        settings: what the run is made of.
        host: a running engine to use; without, the session starts and stops its own.
        keep_ended: how many ended programs are kept in the record; None keeps all. A trace needs
            all.
        metrics: whether an engine of its own keeps vLLM's metrics.
    """

    def __init__(
        self,
        settings: Settings,
        host: EngineHost | None = None,
        *,
        keep_ended: int | None = None,
        metrics: bool = False,
    ) -> None:
        self._metrics = metrics
        self.settings = settings
        self._host, self._owns_host = host, host is None
        self._writer = _trace_writer(settings.trace)
        keep = None if settings.trace else keep_ended
        self.record = RunRecord(sink=self._told, keep_ended=keep)
        self._spans = span_sender(self.record)
        self._origin_s = time.monotonic()
        policy = policy_named(settings.policy)
        self._journal = settings.journal or default_journal()
        self._lessons: Lessons | None = None
        self._tool_lessons = ToolLessons(tool_lessons_beside(self._journal))
        self.programs = Programs(
            policy,
            self.record,
            self.now,
            self._stop_call,
            self._forget,
            ThreadAccounts(self._journal),
            away=self._away,
            returns=self._returns,
            tool_times=self._tool_lessons.times,
        )
        self.recorder = Recorder(self.programs, self.programs)
        self._stops: dict[str, Callable[[], None]] = {}
        self._models: ModelMap | None = None
        self._when_started: list[Callable[[], None]] = []
        self._starting = threading.Lock()
        self._beating: Future[None] | None = None
        self._started = self._closed = False

    def _told(self, event: Event) -> None:
        """What the record is told, the trace file and the spans are told too."""
        if self._writer is not None:
            self._writer.write(event)
        if self._spans is not None:
            self._spans.take(event)

    def now(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self._origin_s

    @property
    def is_started(self) -> bool:
        """Whether the engine runs."""
        return self._started

    def start(self, model: str | None = None) -> None:
        """Start the engine and the recorder; returns at once where they run.

        The run's clock starts when both are ready, unless programs have begun before.

        Args:
            model: the model to start with where the settings name none.

        Raises:
            ModelError, EngineStartError, SettingsError: what they say.
        """
        with self._starting:
            if self._started:
                return
            if self._closed:
                raise EngineStoppedError("The session has ended; start a new one.")
            self.settings = self.settings.merged(model=self.settings.model or model)
            if self._host is None:  # before an engine starts, which takes long
                ModelMap(self.settings.model or DEFAULT_MODEL, self.settings.model_map)
            self._host = self._host or EngineHost.start(self.settings, metrics=self._metrics)
            self._models = ModelMap(self._host.engine.model, self.settings.model_map)
            self._host.chat.send_receipts_to(self.programs.receipt)
            self._host.chat.send_prompts_to(self.programs.prompt_known)
            self._host.chat.send_contents_to(
                self._content if self.settings.record_content else None
            )
            self._host.send_states_to(self._replica_changed)
            self.recorder.install()
            if self.record.is_empty:
                self._origin_s = time.monotonic()
            (held, *_) = self._host.loop.run(self._host.engine.stats_of_replicas())
            self._learn(held.seats)
            self.record.apply(self._run_started(self._host.engine, held))
            self._beating = self._host.loop.submit(self._beat())
            for begin in self._when_started:
                begin()
            self._started = True

    def _replica_changed(self, replica: int, state: ReplicaState) -> None:
        self.record.apply(ReplicaChanged(at_s=self.now(), replica=replica, state=state))

    def _content(self, call: str, prompt: str, answer: str) -> None:
        event = ContentRecorded(at_s=self.now(), call=call, prompt=prompt, answer=answer)
        self.record.apply(event)

    def _learn(self, seats: int) -> None:
        """Learn from now on what programs do, after what earlier runs on such seats learned."""
        recall = self.programs.table.policy.remembers
        self._lessons = Lessons(lessons_beside(self._journal), recall=recall, seats=seats)
        self.programs.learn_in(self._lessons.history)

    def _run_started(self, engine: Engine, held: EngineStats) -> RunStarted:
        return RunStarted(
            clock_s=self._origin_s,
            engine=engine.kind,
            model=engine.model,
            replicas=engine.replicas,
            policy=self.settings.policy,
            started_at=time.time() - self.now(),
            seats=held.seats,
            kv_tokens=held.kv_tokens,
            block_tokens=held.block_tokens,
            token_budget=held.token_budget,
            scheduler=self.settings.scheduler_config().to_dict(),
        )

    async def _beat(self) -> None:
        """While the engine's loop runs, nodes that wait for a call do not count as idle."""
        while True:
            await asyncio.sleep(_BEAT_S)
            self.recorder.beat()

    def when_started(self, begin: Callable[[], None]) -> None:
        """Have ``begin`` called when the engine runs, before the first call; at once if it does."""
        if self._started:
            begin()
        else:
            self._when_started.append(begin)

    @property
    def loop(self) -> EngineLoop:
        """The engine's event loop."""
        return self.host.loop

    @property
    def host(self) -> EngineHost:
        """The running engine.

        Raises:
            EngineStoppedError: there is none, or the session has ended.
        """
        if self._host is None or self._closed:
            raise EngineStoppedError("The engine has been stopped; start a new session.")
        return self._host

    def current_call(self) -> str | None:
        """Id of the call that the caller is in."""
        return self.recorder.current_call()

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    async def complete(self, body: Mapping[str, Any], call: str) -> dict[str, Any]:
        """Answer a chat request in the OpenAI form at once; runs on the engine's loop.

        Raises:
            CallError, EngineStoppedError: what they say.
        """
        with self.serving(call) as chat:
            return await chat.complete(self._with_model(body), self.programs.ticket(call))

    async def stream(
        self, body: Mapping[str, Any], call: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answer in chunks of the OpenAI form; runs on the engine's loop."""
        with self.serving(call) as chat:
            chunks = chat.stream(self._with_model(body), self.programs.ticket(call))
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    @contextlib.contextmanager
    def serving(self, call: str, stop: Callable[[], None] | None = None) -> Iterator[ChatFront]:
        """What happens inside, on the engine's loop, is the serving of a call.

        Args:
            stop: stops it, from any thread; by default the running task is cancelled.
        """
        chat = self.host.chat
        self._stops[call] = stop or _stopping_current_task()
        error: str | None = None
        try:
            yield chat
        except BaseException as cause:
            error = str(cause) or type(cause).__name__
            raise
        finally:
            self._stops.pop(call, None)
            self.programs.served(call, error)

    def _stop_call(self, call: str) -> None:
        stop = self._stops.get(call)
        if stop is not None:
            stop()

    def _forget(self, program: str) -> None:
        if self._started and not self._closed:
            self.loop.call(self.host.engine.forget, program)

    def _away(self, program: str, absence_s: Sequence[float]) -> None:
        if self._started and not self._closed:
            self.loop.call(self.host.engine.away, program, absence_s)

    def _returns(self, program: str) -> None:
        if self._started and not self._closed:
            self.loop.call(self.host.engine.returns, program)

    def model_for(self, name: str | None) -> str:
        """The engine's model for the name that a request gives."""
        assert self._models is not None, "the session has started"
        return self._models.model_for(name)

    def _with_model(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "model": self.model_for(body.get("model"))}

    # ── end ──────────────────────────────────────────────────────────────────────────────────

    def finish(self) -> Path | None:
        """End the recording and write the trace; the engine runs on. Safe to call twice.

        Returns:
            Where the trace was written, None without one.
        """
        if not self._started:
            if self._writer is not None:
                self._writer.abandon()
            return None
        if self._beating is not None:
            self._beating.cancel()
        self.recorder.close_main("done")
        self._wait_for_receipts()
        self.host.send_states_to(None)
        self.recorder.retire()
        if self._spans is not None:
            self._spans.close()
        if self._writer is None:
            return None
        self._writer.close(self.record.streamed_document())
        return self.settings.trace

    def _wait_for_receipts(self) -> None:
        """Calls that were given up a moment ago still tell what they cost."""

        async def ended() -> None:
            async with asyncio.timeout(_RECEIPTS_TIMEOUT_S):
                while self._stops:
                    await asyncio.sleep(_LOOK_AGAIN_S)
                await self.host.chat.settled()

        with contextlib.suppress(TimeoutError, AutellixError):
            self.loop.run(ended())

    def close(self) -> None:
        """Write the trace and stop the engine if it is this session's own; safe to call twice."""
        if self._closed:
            return
        try:
            self.finish()
        finally:
            self._closed = True
            self.programs.threads.close()
            if self._lessons is not None:
                self._lessons.keep()
            self._tool_lessons.keep()
            if self._host is not None and self._owns_host:
                self._host.stop()


def _trace_writer(path: Path | None) -> TraceWriter | None:
    try:
        return TraceWriter(path) if path else None
    except TraceError as cause:  # the option is wrong, not the run
        raise SettingsError(str(cause)) from cause


def _stopping_current_task() -> Callable[[], None]:
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # the engine has stopped, and its loop with it
            task.get_loop().call_soon_threadsafe(task.cancel)

    return stop


_current: Session | None = None
_lock = threading.Lock()


def use_session(session: Session | None) -> None:
    """Make ``session`` the process's; None leaves the next call to start its own."""
    global _current
    with _lock:
        _current = session


def running_session() -> Session | None:
    """The process's session, None where there is none yet."""
    return _current


def current_session() -> Session:
    """The process's session; one is made from ``AUTELLIX_*`` where there is none.

    It records from then on; its engine starts with the first call.
    """
    global _current
    with _lock:
        if _current is None:
            _current = Session(Settings.from_environment())
            _current.recorder.install()
            atexit.register(_current.close)
        return _current


def started_session(model: str | None = None) -> Session:
    """The process's session with its engine running.

    Args:
        model: the model to start with where the settings name none.
    """
    session = current_session()
    session.start(model)
    return session
