"""What pool, balancer and gate add to a call, on two real replicas and on ones that take no time.

    python -m benchmarks.replica_overhead --json benchmarks/results/replica_overhead.json

Calls through the pool against the same calls straight to the same engines (``AsyncLLM.generate``),
64 at a time on two replicas, in rounds A B A B. The model has one small layer with random weights,
so that the engines' own time hides as little as may be.

- ``added_ms``: what a call spends between its caller and ``AsyncLLM.generate``, on its way there
  and back together, milliseconds: median and 99th percentile of the pool's calls;
- ``wall_ms``: median duration of a call, milliseconds. Where engines and callers share few cores,
  64 calls that each begin when another ends wait for all processor time that any of them takes:
  there it says how many calls a second go through, not what one is delayed;
- ``cpu_ms``: processor time of this process for a call, milliseconds;
- ``instant_us``: what pool, balancer and gate take where the engine takes nothing, microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from autellix.runtime.gated_replica import GatedReplica
from autellix.runtime.protocols import EngineCall, EngineChunk, EngineStats
from autellix.runtime.replica_pool import ReplicaPool
from autellix.runtime.token_calls import exact_sampling, token_call
from autellix.scheduler.admission import Gate
from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.tickets import Receipt, Ticket
from benchmarks.replica_place import (
    REPLICAS,
    at_a_time,
    bare,
    measure,
    pool_of,
    prompt_of,
    small_place,
)

CONCURRENT = 64


async def overhead(calls: int, rounds: int, output_tokens: int) -> dict[str, Any]:
    """Measure; see the module."""
    with TemporaryDirectory() as folder:
        place = small_place(Path(folder), max_num_seqs=CONCURRENT)
        async with pool_of(place.start) as pool:
            sides = await _sides(pool, calls, rounds, output_tokens)
        place.processes.close()
    medians = {
        side: {key: statistics.median(one[key] for one in each) for key in each[0]}
        for side, each in sides.items()
    }
    return {
        "concurrent": CONCURRENT,
        "added_ms": {key: medians["pool"][f"added_{key}_ms"] for key in ("p50", "p99")},
        "calls": calls,
        "output_tokens": output_tokens,
        "rounds": sides,
        "medians": medians,
        "added_wall_ms": medians["pool"]["wall_ms"] - medians["direct"]["wall_ms"],
        "added_cpu_ms": medians["pool"]["cpu_ms"] - medians["direct"]["cpu_ms"],
        "instant_us": await instant_us(),
    }


async def _sides(
    pool: ReplicaPool, calls: int, rounds: int, output_tokens: int
) -> dict[str, list[dict[str, float]]]:
    llms = [bare(slot.replica).llm for slot in pool.slots]
    stamps = Stamps()
    for llm in llms:
        stamps.put_on(llm)
    prompts = [prompt_of(number, 128) for number in range(calls)]
    serial = iter(range(10**9))

    async def direct(number: int) -> None:
        prompt, name = {"prompt_token_ids": prompts[number]}, f"direct-{next(serial)}"
        async for _ in llms[number % REPLICAS].generate(
            prompt, exact_sampling(output_tokens), name
        ):
            pass

    async def pooled(number: int) -> None:
        name = f"pool-{next(serial)}"
        ticket = Ticket(program=name, call=name, prompt_tokens=128)
        call, began_s = token_call(ticket, prompts[number], output_tokens), time.perf_counter()
        async for _ in pool.generate(call):
            pass
        stamps.ended(name, began_s)
        pool.forget(name)

    sides: dict[str, list[dict[str, float]]] = {"direct": [], "pool": []}
    for number in range(rounds + 1):
        for side, call in (("direct", direct), ("pool", pooled)):
            measured = await _round(calls, call)
            if side == "pool":
                measured |= stamps.taken()
            if number:  # the first warms up
                sides[side].append(measured)
    return sides


class Stamps:
    """When calls come to ``AsyncLLM.generate``, and when it has given their last piece."""

    def __init__(self) -> None:
        self._came: dict[str, float] = {}
        self._gave: dict[str, float] = {}
        self._added_ms: list[float] = []

    def put_on(self, llm: Any) -> None:
        """Stamp the calls of an engine from now on."""
        generate = llm.generate

        async def stamped(
            prompt: Any, sampling: Any, call: str, **options: Any
        ) -> AsyncGenerator[Any, None]:
            self._came[call] = time.perf_counter()
            async for output in generate(prompt, sampling, call, **options):
                self._gave[call] = time.perf_counter()
                yield output

        llm.generate = stamped

    def ended(self, call: str, began_s: float) -> None:
        """A call of the pool has ended."""
        way_s = self._came[call] - began_s + time.perf_counter() - self._gave[call]
        self._added_ms.append(1e3 * way_s)

    def taken(self) -> dict[str, float]:
        """Of the calls since this was asked last."""
        p50, p99 = (statistics.quantiles(self._added_ms, n=100)[at - 1] for at in (50, 99))
        self._came, self._gave, self._added_ms = {}, {}, []
        return {"added_p50_ms": p50, "added_p99_ms": p99}


async def _round(calls: int, call: Callable[[int], Awaitable[None]]) -> dict[str, float]:
    walls: list[float] = []

    async def timed(number: int) -> None:
        began_s = time.perf_counter()
        await call(number)
        walls.append(time.perf_counter() - began_s)

    began_s, cpu_s = time.perf_counter(), time.process_time()
    await at_a_time(CONCURRENT, range(calls), timed)
    return {
        "wall_ms": 1e3 * statistics.median(walls),
        "cpu_ms": 1e3 * (time.process_time() - cpu_s) / calls,
        "round_s": time.perf_counter() - began_s,
    }


@dataclass
class Instant:
    """A replica that answers at once."""

    kind: str = "instant"
    model: str = "instant"
    replicas: int = 1
    never: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """One token and the receipt."""
        ticket = call.ticket
        receipt = Receipt(
            program=ticket.program,
            call=ticket.call,
            service_s=0.1,
            wait_s=0.0,
            levels=(1,),
            preemptions=0,
            prompt_tokens=ticket.prompt_tokens,
            output_tokens=1,
        )
        choice = SimpleNamespace(token_ids=[1], text="a", logprobs=None)
        output = SimpleNamespace(outputs=[choice], finished=True, prompt_token_ids=[])
        yield EngineChunk(output=output, receipt=receipt)

    async def stats(self) -> EngineStats:
        """Its sizes."""
        return EngineStats(seats=CONCURRENT, kv_tokens=100_000)

    def tell_stats_to(self, sink: Callable[[EngineStats], None]) -> None:
        """Nothing to tell."""

    async def lost(self) -> None:
        """Never."""
        await self.never.wait()

    async def kill(self) -> None:
        """Nothing."""

    async def stop(self) -> None:
        """Nothing."""

    def forget(self, program: str) -> None:
        """Nothing."""


async def instant_us(calls: int = 5000) -> float:
    """Pool, balancer and gate for a call where the engine takes no time, microseconds."""

    async def start(index: int) -> Any:
        config = SchedulerConfig(policy="default", replica=index)
        return GatedReplica(Instant(), Gate(config, 100_000))  # type: ignore[arg-type]

    prompts = [prompt_of(number, 128) for number in range(64)]
    sampling = SimpleNamespace(output_kind=SimpleNamespace(name="FINAL_ONLY"), extra_args={})

    async def one(number: int) -> None:
        ticket = Ticket(program=f"p{number}", call=f"c{number}", prompt_tokens=128)
        prompt = {"prompt_token_ids": prompts[number % 64]}
        async for _ in pool.generate(EngineCall(ticket=ticket, prompt=prompt, sampling=sampling)):
            pass
        pool.forget(ticket.program)

    async with pool_of(start) as pool:
        await at_a_time(CONCURRENT, range(500), one)
        began_s = time.process_time()
        await at_a_time(CONCURRENT, range(500, 500 + calls), one)
        return 1e6 * (time.process_time() - began_s) / calls


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replica_overhead", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=512, help="calls a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--instant", action="store_true", help="without real engines")
    measure(parser, _asked)


async def _asked(options: argparse.Namespace) -> dict[str, Any]:
    if options.instant:
        return {"concurrent": CONCURRENT, "instant_us": [await instant_us() for _ in range(5)]}
    return await overhead(options.calls, options.rounds, options.tokens)


if __name__ == "__main__":
    main()
