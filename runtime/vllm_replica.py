"""One vLLM replica: an ``AsyncLLM`` with its own processes, behind the ``Engine`` protocol."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from autellix.errors import (
    CallError,
    EngineError,
    EngineStoppedError,
    ReplicaLostError,
    SettingsError,
)

from ..scheduler.config import SchedulerConfig
from ..scheduler.step_log import Step
from ..scheduler.tickets import Receipt
from .call_errors import call_error
from .engine_loop import in_thread
from .engine_start import EngineProcesses, check_file_descriptors, log_vllm_to, state_folder
from .process_tree import descendants, kill_all
from .protocols import EngineCall, EngineChunk, EngineStats
from .start_errors import start_error
from .told_stats import ToldStats
from .vllm_arguments import SCHEDULER, compiles, engine_args
from .vllm_names import (
    AsyncLLM,
    EngineDeadError,
    EngineGenerateError,
    RequestOutput,
    VLLMClientError,
    core_processes,
    listen_to_stats,
    load_for_calls,
    questions_to,
)

# How long calls under way may take to hear that their engine is stopped.
_CALLS_END_S = 1.0


class VllmReplica:
    """One vLLM replica; satisfies ``Engine``. Its methods belong to the engine's event loop."""

    kind = "vllm"
    replicas = 1

    def __init__(
        self, llm: AsyncLLM, model: str, index: int = 0, own: EngineProcesses | None = None
    ) -> None:
        self.llm = llm
        self._own = own
        self.model = model
        self.index = index
        self._told = listen_to_stats(llm, ToldStats)
        self._questions = questions_to(llm)
        self._live: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._accepting = True
        self._stopped = False
        self._news: list[tuple[Any, ...]] = []
        self._telling: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(
        cls,
        model: str,
        given: Mapping[str, Any],
        scheduler: SchedulerConfig,
        *,
        served_name: str,
        processes: EngineProcesses | None = None,
        devices: Sequence[int] | None = None,
        scheduler_class: str = SCHEDULER,
        stat_logger: Any = None,
    ) -> VllmReplica:
        """Start the replica's processes and wait until they serve.

        Args:
            model: name or folder of the model.
            given: arguments of vLLM's engine.
            scheduler: settings; they name the replica's index.
            served_name: what requests call the model.
            processes: where they start; None makes a place of the replica's own.
            devices: indices of the GPUs that are the replica's own; None leaves them to vLLM.
            scheduler_class: dotted name of :class:`ProgramScheduler` or a kind of it.
            stat_logger: what vLLM makes to tell its metrics; None for no metrics.

        Raises:
            EngineStartError: it did not come up; the message names the likely cause and the log.
            SettingsError: bad engine arguments.
        """
        try:
            args = engine_args(
                model, given, scheduler, served_name=served_name, scheduler_class=scheduler_class
            )
        except SettingsError:
            raise
        except Exception as cause:  # it looks the model up
            raise start_error(model, cause, None) from cause
        if devices is not None:
            args.device_ids = list(devices)
        check_file_descriptors()
        own = EngineProcesses(debug=False) if processes is None else None
        place = processes or own
        assert place is not None
        loggers = None if stat_logger is None else [stat_logger]

        def construct() -> AsyncLLM:
            with place.starting(compiling=compiles(args)) as log:
                try:
                    llm = AsyncLLM.from_engine_args(args, stat_loggers=loggers)
                    load_for_calls(llm)
                    return llm
                except Exception as cause:
                    raise start_error(model, cause, log) from cause
                finally:
                    if log is not None:
                        # Not earlier: vLLM sets its loggers up anew when an engine starts.
                        log_vllm_to(log)

        try:
            llm = await in_thread(construct, name=f"autellix-start-{scheduler.replica}")
        except BaseException:
            if own is not None:
                own.close()
            raise
        return cls(llm, served_name, scheduler.replica, own)

    @property
    def is_serving(self) -> bool:
        """See ``Engine.is_serving``."""
        return self._accepting and not self.llm.errored

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """See ``Engine.generate``."""
        if not self._accepting:
            raise EngineStoppedError("The engine takes no new calls: it was told to stop.")
        call_id = call.ticket.call
        self._live.add(call_id)
        self._idle.clear()
        stream = self.llm.generate(
            call.prompt,
            call.sampling,
            call_id,
            session_id=call.ticket.program,
            **call.options,
        )
        try:
            async for output in stream:
                receipt = self._take_receipt(output) if output.kv_transfer_params else None
                yield EngineChunk(output=output, receipt=receipt)
        except EngineDeadError as cause:
            if not self._accepting:
                raise EngineStoppedError("The engine was stopped while the call ran.") from cause
            raise ReplicaLostError(
                "The engine's process died; its log is in the folder "
                f"{state_folder()}. Start the run again; --debug shows the engine's log."
            ) from cause
        except VLLMClientError as cause:
            raise call_error(str(cause)) from cause
        except EngineGenerateError as cause:
            if isinstance(cause.__cause__, OverflowError):  # a number that is too large to be sent
                raise call_error(str(cause.__cause__)) from cause
            raise CallError(f"The engine failed on a call: {cause.__cause__ or cause}.") from cause
        finally:
            with contextlib.suppress(RuntimeError):
                await stream.aclose()
            self._live.discard(call_id)
            if not self._live:
                self._idle.set()

    def _take_receipt(self, output: RequestOutput) -> Receipt | None:
        """The receipt that came with an output; it is removed, so that no reply shows it."""
        parameters: dict[str, Any] = output.kv_transfer_params or {}
        if "autellix" not in parameters:
            return None
        wire = parameters.pop("autellix")
        output.kv_transfer_params = parameters or None
        return self._receipt(wire)

    async def abort(self, call_id: str) -> Receipt | None:
        """See ``Engine.abort``."""
        if self._stopped:
            return None
        await self.llm.abort(call_id)
        wire = await self._ask("autellix_receipt", call_id)
        return None if wire is None else self._receipt(wire)

    def _receipt(self, wire: dict[str, Any]) -> Receipt:
        return Receipt.from_wire({**wire, "replica": self.index})

    def forget(self, program: str) -> None:
        """See ``Engine.forget``: what only this program has of the caches is free."""
        self._tell("forget", program)

    def away(self, program: str, absence_s: Sequence[float]) -> None:
        """See ``Engine.away``: its KV stays where that is cheapest."""
        self._tell("away", program, list(absence_s))

    def returns(self, program: str) -> None:
        """See ``Engine.returns``: its KV is brought back to the device meanwhile."""
        self._tell("returns", program)

    def _tell(self, what: str, *about: Any) -> None:
        """Tell the engine core something whose answer nobody waits for.

        Calls that end with the same step have much to tell at once: it goes in one message.
        """
        self._news.append((what, *about))
        if len(self._news) == 1 or not self._telling:
            telling = asyncio.create_task(self._send_news())
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def _send_news(self) -> None:
        news, self._news = self._news, []
        with contextlib.suppress(Exception):  # an engine that dies is noticed elsewhere
            await self._ask("autellix_tell", news)

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """See ``Engine.stats_of_replicas``."""
        return (await self.stats(),)

    async def stats(self) -> EngineStats:
        """See ``Engine.stats``."""
        found = await self._ask("autellix_stats")
        return EngineStats(**found) if found else EngineStats()

    def tell_stats_to(self, sink: Callable[[EngineStats], None]) -> None:
        """See ``Replica.tell_stats_to``."""
        self._told.sink = sink

    async def configure(self, scheduler: SchedulerConfig) -> None:
        """Go on with other scheduling settings, and counters at 0.

        Raises:
            EngineError: calls are running; let them end first.
        """
        if not await self._ask("autellix_configure", scheduler.to_dict()):
            raise EngineError(
                "The scheduler's settings can be changed only while no call runs; drain first."
            )

    async def take_steps(self) -> list[Step]:
        """The steps since this was asked last, of a replica that runs ``LOGGING_SCHEDULER``."""
        return [Step(*step) for step in await self._ask("autellix_steps") or ()]

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache.

        Raises:
            EngineError: calls are running; let them end first.
        """
        if not await self.llm.reset_prefix_cache():
            raise EngineError(
                "The prefix cache can be emptied only while no call runs; drain first."
            )

    async def _ask(self, method: str, *args: Any) -> Any:
        """Call the engine core; None where it is not there any more."""
        if self._stopped or self.llm.errored:
            return None
        try:
            return await self.llm.engine_core.call_utility_async(method, *args)
        except EngineDeadError:
            return None

    async def drain(self) -> None:
        """See ``Engine.drain``."""
        self._accepting = False
        await self._idle.wait()

    async def stop(self) -> None:
        """See ``Engine.stop``."""
        self._accepting = False
        if self._stopped:
            return
        self._stopped = True
        self._end_calls()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), _CALLS_END_S)
        self.llm.shutdown()
        # Once more when it is collected, which at the interpreter's end is too late.
        self.llm.shutdown = _nothing
        multiprocessing.active_children()  # collects those that have ended
        if self._own is not None:
            self._own.close()

    async def lost(self) -> None:
        """See ``Replica.lost``."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        sentinels = [process.sentinel for process in core_processes(self.llm)]
        for sentinel in sentinels:
            loop.add_reader(sentinel, _resolve, ended)
        try:
            await ended
        finally:
            for sentinel in sentinels:
                loop.remove_reader(sentinel)

    async def kill(self) -> None:
        """See ``Replica.kill``; its tokenizer lives on, which the chat front end may have lent."""
        self._stopped = True
        cores = core_processes(self.llm)
        # A worker that is stopped (SIGSTOP) cannot see that its engine core has ended.
        workers = descendants(core.pid for core in cores if core.pid and core.is_alive())
        for core in cores:
            core.kill()
        kill_all(workers)
        self._end_calls()
        self.llm.engine_core.shutdown()
        if self.llm.output_handler is not None:
            self.llm.output_handler.cancel()
        self.llm.shutdown = _nothing
        multiprocessing.active_children()

    def _end_calls(self) -> None:
        """Those who wait for an answer hear that none comes, whatever they have asked."""
        self.llm.output_processor.propagate_error(EngineDeadError())
        for question in self._questions.values():
            if not question.done():
                question.set_exception(EngineDeadError())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing(timeout: float | None = None) -> None:
    pass
