"""The real engine as a benchmark's: the embedded model, started once, one policy after the other.

Between two runs the scheduler gets the next policy's settings and the prefix cache is emptied.
``vllm``, the baseline without a prefix cache, runs on the same engine: its calls do not read it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from autellix.errors import UsageError
from autellix.runtime.calibrate import engine_limits, engine_shape
from autellix.runtime.calibrate_sweep import Sweep
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.engine_loop import EngineLoop
from autellix.runtime.engine_start import set_engine_environment
from autellix.runtime.gated_replica import GatedReplica
from autellix.runtime.host_tier import with_host_tier
from autellix.runtime.models import DEFAULT_MODEL, resolve_model
from autellix.runtime.session import Session
from autellix.runtime.settings import Settings
from autellix.scheduler.engine_model import EngineModel, preset_named
from autellix.scheduler.sim_orders import SimPolicy, sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import ProgramRecord, SimResult
from autellix.scheduler.step_log import LOGGING_SCHEDULER, Step
from benchmarks.real_programs import RealProgram

if TYPE_CHECKING:
    from autellix.runtime.chat_service import ChatService
    from autellix.runtime.vllm_replica import VllmReplica

PRESET = "cpu-smollm2"
LONGEST_CONTEXT = 8192  # of the embedded model, tokens
_IDLE_LOOK_S = 0.02
_WARM_UP_LENGTHS = (16, 64, 256, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """What a run on the real engine gave.

    Attributes:
        result: in the simulator's form.
        spans: when each call came and when it ended.
        steps: the engine's.
    """

    result: SimResult
    spans: list[tuple[float, float]]
    steps: list[Step]


def require_real(policy: SimPolicy) -> None:
    """Refuse what only a simulated engine can run.

    Raises:
        UsageError: the policy knows the future, or is the simulator's own.
    """
    if policy.order != "core":
        why = "knows the future" if policy.order == "srpt" else "is the simulator's own"
        raise UsageError(
            f"policy {policy.name!r} {why}: it runs on simulated engines only; leave it out of "
            "--policies or take --engine sim:PRESET"
        )


class RealEngine:
    """The engine with the embedded model, and what is asked of it between runs.

    Attributes:
        model: the preset of the embedded model with this engine's seats and KV capacity.
    """

    def __init__(self, host: EngineHost, replica: VllmReplica, model: EngineModel) -> None:
        self.model = model
        self._host = host
        self._replica = replica
        self._folder = TemporaryDirectory(prefix="autellix-benchmark-")

    @classmethod
    def start(
        cls,
        *,
        seats: int | None = None,
        kv_tokens: int | None = None,
        host_gib: float = 0.0,
        vllm_books: bool = False,
    ) -> RealEngine:
        """Start it and let it run a little, so that nothing is done for the first time later.

        Args:
            seats: most calls in a step; what ``autellix run`` has by default.
            kv_tokens: KV capacity; as much as the machine has room for by default.
            host_gib: host memory for KV, GiB.
            vllm_books: whether vLLM's own offloading manager keeps its books (see ``VllmBooks``).

        Raises:
            ModelError, EngineStartError: what they say.
        """
        preset = preset_named(PRESET)
        given: dict[str, Any] = {}
        if seats is not None:
            given["max_num_seqs"] = seats
        if kv_tokens is not None:
            given["num_gpu_blocks_override"] = kv_tokens // preset.block_tokens
            given["max_model_len"] = min(LONGEST_CONTEXT, kv_tokens - 2 * preset.block_tokens)
        given = with_host_tier(given, host_gib)
        if vllm_books and host_gib:
            from benchmarks.vllm_books import vllm_books_config

            given["kv_transfer_config"] = vllm_books_config(int(host_gib * 2**30))
        model = str(resolve_model())
        loop = EngineLoop()
        try:
            replica, chat = loop.run(_start(model, given))
        except BaseException:
            loop.close()
            raise
        shape = engine_shape(replica.llm.vllm_config)
        engine = cls(EngineHost(loop, replica, chat), replica, replace(preset, **shape))
        engine._warm_up()
        return engine

    @property
    def context_tokens(self) -> int:
        """Longest prompt with its output."""
        return self._replica.llm.model_config.max_model_len

    def now(self) -> float:
        """The clock, seconds."""
        return time.monotonic()

    def stop(self) -> None:
        """Leave no process and no file behind."""
        self._host.stop()
        self._folder.cleanup()

    def sweep(
        self, note: Callable[[int, int, str], None], *, context_tokens: int | None = None
    ) -> Sweep:
        """Measure steps of many shapes.

        Args:
            context_tokens: the longest context of interest; the engine's longest by default.
        """
        limits = engine_limits(self._replica.llm.vllm_config)
        if context_tokens is not None:
            longest = min(limits.context_tokens, context_tokens)
            limits = replace(limits, context_tokens=longest)
        sweep = Sweep(self._replica, limits)
        self._host.loop.run(sweep.run(note))
        return sweep

    def serve(self, arrivals: Iterable[tuple[float, SimProgram]], policy: SimPolicy) -> RealRun:
        """Serve programs that arrive at given times, seconds from the start."""
        waiting = list(arrivals)

        async def work(session: Session) -> None:
            loop = asyncio.get_running_loop()
            began_s = loop.time()

            async def one(at_s: float, program: SimProgram) -> None:
                await asyncio.sleep(max(0.0, began_s + at_s - loop.time()))
                await self._run(session, program, policy)

            async with asyncio.TaskGroup() as group:
                for at_s, program in waiting:
                    group.create_task(one(at_s, program))

        document, start_s, steps = self._under(policy, work)
        return self._measured(document, start_s, steps, waiting)

    def run_closed(
        self, programs: Iterator[SimProgram], live: int, on_tokens: Callable[[int], None]
    ) -> None:
        """Serve programs so that ``live`` of them are under way, until there are no more to come.

        Those under way then are given up.

        Args:
            on_tokens: is told the number of tokens of every call that has ended.
        """

        async def work(session: Session) -> None:
            exhausted = asyncio.Event()

            async def worker() -> None:
                for program in programs:
                    await self._run(session, program, sim_policy("vllm-opt"), on_tokens)
                exhausted.set()

            tasks = [asyncio.create_task(worker()) for _ in range(live)]
            await exhausted.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._under(sim_policy("vllm-opt"), work)

    async def _run(
        self,
        session: Session,
        program: SimProgram,
        policy: SimPolicy,
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        running = RealProgram(session, program, read_prefix_cache=policy.prefix_cache)
        await running.run(on_tokens)

    def _under(
        self, policy: SimPolicy, work: Callable[[Session], Awaitable[None]]
    ) -> tuple[dict[str, Any], float, list[Step]]:
        """Do work in a session of its own; its record, when the work began, and the steps."""
        loop = self._host.loop

        async def settle() -> None:
            while (await self._replica.stats()).call_levels:
                await asyncio.sleep(_IDLE_LOOK_S)
            await self._replica.configure(policy.config)
            await self._replica.forget_prefixes()
            await self._replica.take_steps()
            # With admission control there is a gate before the replica, as in a run.
            self._host.engine = await GatedReplica.before(self._replica, policy.config)

        loop.run(settle())
        journal = Path(self._folder.name) / "journal.db"
        session = Session(
            Settings(policy=policy.config.policy, journal=journal, quiet=True), self._host
        )
        session.start()
        try:
            start_s = session.now()
            loop.run(_awaited(work(session)))
            steps = loop.run(self._replica.take_steps())
            return _with_loads(session), start_s, steps
        finally:
            session.close()

    def _measured(
        self,
        document: dict[str, Any],
        start_s: float,
        steps: list[Step],
        arrivals: Sequence[tuple[float, SimProgram]],
    ) -> RealRun:
        arrived = {program.name: (at_s, program) for at_s, program in arrivals}
        result = SimResult(steps=len(steps), busy_s=[sum(step.step_s for step in steps)])
        spans = []
        for found in document["programs"]:
            at_s, program = arrived[found["id"]]
            calls = _llm_calls(found)
            result.programs.append(_program_record(found, start_s, at_s, program))
            result.calls += len(calls)
            result.preemptions += sum(call["preemptions"] for call in calls)
            result.prompt_tokens += sum(call["prompt_tokens"] for call in calls)
            result.cached_tokens += sum(call["cached_tokens"] for call in calls)
            result.loaded_tokens += sum(call["swapped_in_tokens"] for call in calls)
            result.loads += sum(call["swapped_in_tokens"] > 0 for call in calls)
            spans += [(call["start_s"] - start_s, call["end_s"] - start_s) for call in calls]
        result.programs.sort(key=lambda program: program.ended_s)
        result.ended_s = result.programs[-1].ended_s
        result.prefilled_tokens = sum(step.prefill_tokens for step in steps)
        new = sum(self._unknown_tokens(program) for _, program in arrivals)
        result.recomputed_tokens = max(0, result.prefilled_tokens - new)
        return RealRun(result=result, spans=spans, steps=steps)

    def _unknown_tokens(self, program: SimProgram) -> int:
        """Prompt tokens that have to be computed even if the cache forgets nothing."""
        size = self.model.block_tokens
        shared = sum(program.tree(size).shared_blocks) * size
        return sum(call.prompt_tokens for call in program.calls) - shared

    def _warm_up(self) -> None:
        calls = [SimCall(prompt_tokens=n, output_tokens=8) for n in _WARM_UP_LENGTHS]
        programs = [SimProgram(f"warm-{number}", calls) for number in range(4)]
        self.serve(((0.0, program) for program in programs), sim_policy("vllm-opt"))


def _with_loads(session: Session) -> dict[str, Any]:
    """The record, with what each call had loaded from host memory."""
    document = session.record.document()
    for program in document["programs"]:
        dag = session.record.dag(program["id"])
        for call in _llm_calls(program):
            receipt = dag.call(call["id"])["receipt"]
            call["swapped_in_tokens"] = receipt.swapped_in_tokens if receipt else 0
    return document


def _program_record(
    found: dict[str, Any], start_s: float, at_s: float, program: SimProgram
) -> ProgramRecord:
    calls = _llm_calls(found)
    return ProgramRecord(
        name=program.name,
        arrived_s=at_s,
        first_call_s=min(call["start_s"] for call in calls) - start_s,
        ended_s=max(call["end_s"] for call in calls) - start_s,
        response_s=found["response_s"],
        service_s=found["service_s"],
        wait_s=found["wait_s"],
        critical_path_s=found["critical_path_s"],
        calls=len(calls),
        output_tokens=program.output_tokens,
        preemptions=sum(call["preemptions"] for call in calls),
    )


def _llm_calls(program: dict[str, Any]) -> list[dict[str, Any]]:
    """A recorded program's calls without its tools."""
    return [call for call in program["calls"] if call["kind"] == "llm"]


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _start(model: str, given: dict[str, Any]) -> tuple[VllmReplica, ChatService]:
    set_engine_environment(debug=False)
    from autellix.runtime.chat_service import ChatService
    from autellix.runtime.vllm_replica import VllmReplica

    config = sim_policy("vllm-opt").config
    replica = await VllmReplica.start(
        model, given, config, served_name=DEFAULT_MODEL, scheduler_class=LOGGING_SCHEDULER
    )
    return replica, await ChatService.create(replica, replica.llm)
