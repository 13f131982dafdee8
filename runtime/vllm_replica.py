"""One vLLM replica: an ``AsyncLLM`` with its own processes, behind the ``Engine`` protocol."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import difflib
import multiprocessing
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autellix.errors import (
    CallError,
    EngineError,
    EngineStartError,
    EngineStoppedError,
    ReplicaLostError,
    SettingsError,
)

from ..scheduler.config import SchedulerConfig
from ..scheduler.step_log import Step
from ..scheduler.tickets import Receipt
from .call_errors import call_error
from .engine_loop import in_thread
from .engine_start import (
    EngineProcesses,
    log_vllm_to,
    state_folder,
    threads_are_bound,
)
from .machine import available_memory_gib
from .protocols import EngineCall, EngineChunk, EngineStats
from .vllm_names import (
    AsyncEngineArgs,
    AsyncLLM,
    EngineDeadError,
    EngineGenerateError,
    RequestOutput,
    VLLMClientError,
    core_processes,
    current_platform,
    device_count,
)

_SCHEDULER = "autellix.scheduler.vllm_adapter.ProgramScheduler"
# The model runs in the engine core's own process: one process less to start, and no two that wait
# for each other by spinning. vLLM's short name for it, "uni", is refused on CPUs for the sake of
# thread binding; this is for where threads are not bound.
_IN_ENGINE_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
# Memory of the engine's processes beside weights and KV cache, measured with the embedded model.
_PROCESSES_GIB = 2.0
# How long calls under way may take to hear that their engine is stopped.
_CALLS_END_S = 1.0
_NO_MODEL = ("repo id", "local folder", "offline", "huggingface", "outgoing traffic")
_OURS = {"scheduler_cls", "scheduling_policy", "additional_config", "model"}


def engine_args(
    model: str,
    given: Mapping[str, Any],
    scheduler: SchedulerConfig,
    *,
    served_name: str,
    scheduler_class: str = _SCHEDULER,
) -> AsyncEngineArgs:
    """Arguments of vLLM for a replica: what was given, our scheduler, and defaults for a CPU.

    Args:
        scheduler_class: dotted name of :class:`ProgramScheduler` or a kind of it.

    Raises:
        SettingsError: an argument that vLLM does not have, or that is ours to set.
    """
    known = {f.name for f in dataclasses.fields(AsyncEngineArgs)}
    for name in given:
        if name in _OURS:
            raise SettingsError(f"--engine-arg {name} is set by Autellix itself; leave it out.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SettingsError(
                f"vLLM has no engine argument {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else ".")
            )
    defaults: dict[str, Any] = {"served_model_name": [served_name], "disable_log_stats": True}
    if current_platform.is_cpu():
        defaults |= {"dtype": "bfloat16", "enforce_eager": True, "block_size": 32}
        defaults |= {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
        if given.get("tensor_parallel_size", 1) == 1 and not threads_are_bound():
            defaults["distributed_executor_backend"] = _IN_ENGINE_CORE
    values = defaults | dict(given)
    return AsyncEngineArgs(
        model=model,
        scheduler_cls=scheduler_class,
        scheduling_policy="priority",
        additional_config={"autellix": scheduler.to_dict()},
        **values,
    )


def compiles(args: AsyncEngineArgs) -> bool:
    """Whether the engine is to compile its model, rather than to run it as it is."""
    return not (args.enforce_eager and current_platform.is_cpu())


def devices_of(index: int, replicas: int, given: Mapping[str, Any]) -> list[int] | None:
    """GPUs of a replica: as many as one needs, beginning where the one before it ends.

    Args:
        index: of the replica.
        replicas: how many there are.
        given: arguments of vLLM's engine.

    Returns:
        None where vLLM is to choose: one replica, a CPU, or devices that were given by hand. With
        fewer GPUs than the replicas need, they share them in turns.
    """
    if replicas == 1 or current_platform.is_cpu() or "device_ids" in given:
        return None
    size = int(given.get("tensor_parallel_size", 1)) * int(given.get("pipeline_parallel_size", 1))
    count = device_count()
    return [(index * size + rank) % count for rank in range(size)]


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
        self._live: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._accepting = True
        self._stopped = False

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
        scheduler_class: str = _SCHEDULER,
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
            raise _start_error(model, cause, None) from cause
        if devices is not None:
            args.device_ids = list(devices)
        own = EngineProcesses(debug=False) if processes is None else None
        place = processes or own
        assert place is not None
        loggers = None if stat_logger is None else [stat_logger]

        def construct() -> AsyncLLM:
            with place.starting(compiling=compiles(args)) as log:
                try:
                    return AsyncLLM.from_engine_args(args, stat_loggers=loggers)
                except Exception as cause:
                    raise _start_error(model, cause, log) from cause
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
                receipt = self._take_receipt(output)
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
            raise CallError(f"The engine failed on a call: {cause.__cause__ or cause}.") from cause
        finally:
            with contextlib.suppress(RuntimeError):
                await stream.aclose()
            self._live.discard(call_id)
            if not self._live:
                self._idle.set()

    def _take_receipt(self, output: RequestOutput) -> Receipt | None:
        """The receipt that came with an output; it is removed, so that no reply shows it."""
        parameters = output.kv_transfer_params
        if not parameters or "autellix" not in parameters:
            return None
        wire = parameters.pop("autellix")
        output.kv_transfer_params = parameters or None
        return dataclasses.replace(Receipt.from_wire(wire), replica=self.index)

    async def abort(self, call_id: str) -> Receipt | None:
        """See ``Engine.abort``."""
        if self._stopped:
            return None
        await self.llm.abort(call_id)
        wire = await self._ask("autellix_receipt", call_id)
        if wire is None:
            return None
        return dataclasses.replace(Receipt.from_wire(wire), replica=self.index)

    def forget(self, program: str) -> None:
        """See ``Engine.forget``; a replica keeps nothing for a program but what its cache holds."""

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """See ``Engine.stats_of_replicas``."""
        return (await self.stats(),)

    async def stats(self) -> EngineStats:
        """See ``Engine.stats``."""
        found = await self._ask("autellix_stats")
        return EngineStats(**found) if found else EngineStats()

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
        return await self.llm.engine_core.call_utility_async(method, *args)

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
        self.llm.output_processor.propagate_error(EngineDeadError())
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
        for process in core_processes(self.llm):
            process.kill()
        self.llm.output_processor.propagate_error(EngineDeadError())
        self.llm.engine_core.shutdown()
        if self.llm.output_handler is not None:
            self.llm.output_handler.cancel()
        self.llm.shutdown = _nothing
        multiprocessing.active_children()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing(timeout: float | None = None) -> None:
    pass


def check_memory(replicas: int) -> None:
    """Refuse early, in words, what would otherwise end in the kernel's memory killer.

    Raises:
        EngineStartError: so many replicas do not fit.
    """
    if not current_platform.is_cpu():
        return
    kv_gib = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 4)
    need, have = replicas * (kv_gib + _PROCESSES_GIB), available_memory_gib()
    if have < need:
        who = "the engine needs" if replicas == 1 else f"{replicas} replicas need"
        raise EngineStartError(
            f"Not enough memory: {who} about {need:.1f} GiB, {replicas * kv_gib:.0f} GiB of them "
            f"for the KV cache, and {have:.1f} GiB are free. Free some, or set "
            "VLLM_CPU_KVCACHE_SPACE to fewer GiB."
        )


def _start_error(model: str, cause: Exception, logfile: Path | None) -> EngineStartError:
    text = " ".join(str(cause).split())
    last = _last_error(logfile)
    where = f" Its log is {logfile}." if logfile is not None and logfile.is_file() else ""
    lowered = f"{text} {last}".lower()
    if any(sign in lowered for sign in _NO_MODEL):
        return EngineStartError(
            f"There is no model {model!r}: it is neither a folder on this machine nor could it be "
            f"fetched from the model hub. Give the path of a model folder with --model, or leave "
            f"--model out for the embedded model.{where}"
        )
    if "memory" in lowered:
        return EngineStartError(
            f"Not enough memory for the engine: {last or text}. Use a smaller --engine-arg "
            f"max_model_len or max_num_seqs, or less KV cache (VLLM_CPU_KVCACHE_SPACE on a CPU, "
            f"--engine-arg gpu_memory_utilization=0.8 on a GPU).{where}"
        )
    return EngineStartError(
        f"The engine did not start: {last or text or type(cause).__name__}. `autellix doctor` "
        f"checks the machine; --debug shows the engine's own log.{where}"
    )


def _last_error(logfile: Path | None) -> str:
    """The last line of a log that names an exception, without the logger's prefix."""
    if logfile is None or not logfile.is_file():
        return ""
    for line in reversed(logfile.read_text(errors="replace").splitlines()):
        text = line.split("]", 1)[-1].strip() if " ERROR " in f" {line} " else line.strip()
        name = text.split(":", 1)[0]
        if name.endswith(("Error", "Exception")) and "Engine core initialization" not in text:
            return text[:400]
    return ""
