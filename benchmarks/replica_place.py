"""Two real replicas in a pool, for what is measured of them, and how such a measurement is run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from autellix.runtime.engine_loop import EngineLoop
from autellix.runtime.engine_start import EngineProcesses, set_engine_environment
from autellix.runtime.gated_replica import GatedReplica
from autellix.runtime.replica_pool import ReplicaPool
from autellix.scheduler.balancers import DEFAULT_BALANCER, balancer_named
from autellix.scheduler.config import SchedulerConfig
from benchmarks.result_file import result_document, write_result
from benchmarks.tiny_llama import write_tiny_llama

REPLICAS = 2


class Place:
    """Where real replicas are started; all of them end with it.

    Args:
        model: folder or name.
        arguments: of vLLM's engine.
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        self.model = model
        self.arguments = arguments
        self.processes = EngineProcesses(debug=False)

    async def start(self, index: int) -> Any:
        """Start one, with a gate before it as ``autellix run`` has it."""
        from autellix.runtime.vllm_replica import VllmReplica

        config = SchedulerConfig(policy="default", replica=index)
        replica = await VllmReplica.start(
            self.model, self.arguments, config, served_name="model", processes=self.processes
        )
        return await GatedReplica.before(replica, config)


def small_place(folder: Path, **arguments: Any) -> Place:
    """A place for a model of one small layer with random weights, written to ``folder``."""
    model = write_tiny_llama(folder)
    settings = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 1024}
    return Place(model, **settings, **arguments)


@contextlib.asynccontextmanager
async def pool_of(
    start: Callable[[int], Awaitable[Any]], balancer: str = DEFAULT_BALANCER
) -> AsyncIterator[ReplicaPool]:
    """A pool of two; stopped at the end."""
    pool = await ReplicaPool.start(
        start, REPLICAS, balancer_named(balancer), kind="vllm", model="model"
    )
    try:
        yield pool
    finally:
        await pool.stop()


async def at_a_time(count: int, numbers: Sequence[int], work: Callable[[int], Any]) -> None:
    """Do ``work`` for every number, so many at the same time."""
    left = iter(numbers)

    async def worker() -> None:
        for number in left:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(count)))


def bare(replica: Any) -> Any:
    """The replica without its gate."""
    return replica.replica if isinstance(replica, GatedReplica) else replica


def prompt_of(number: int, tokens: int) -> list[int]:
    """The same token ids for the same number."""
    rng = random.Random(number)
    return [rng.randrange(1000, 30_000) for _ in range(tokens)]


def measure(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, dict[str, Any]]],
) -> None:
    """Run a measurement on the engine's loop and write its result."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    options = parser.parse_args()
    set_engine_environment(debug=False, replicas=REPLICAS)
    loop = EngineLoop()
    try:
        measured = loop.run(work(options))
    finally:
        loop.close()
    write_result(options.json, result_document(**measured))
