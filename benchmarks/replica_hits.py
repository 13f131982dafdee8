"""How much of their prompts programs find cached on two real replicas, for each balancer.

    python -m benchmarks.replica_hits --json benchmarks/results/replica_hits.json

Programs of several turns, twelve at a time; each turn's prompt goes on from the last, after a tool
that takes a moment (without one, a program's own call that has just ended makes its replica the
least used). The caches are empty when a balancer begins. ``hit_rate``: prompt tokens that were
cached, of all; ``possible``: the same, were all earlier turns still there.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from autellix.runtime.gated_replica import GatedReplica
from autellix.runtime.models import resolve_model
from autellix.runtime.replica_pool import ReplicaPool
from autellix.runtime.token_calls import token_call
from autellix.scheduler.balancers import BALANCER_NAMES, balancer_named
from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.tickets import Receipt, Ticket
from benchmarks.replica_place import REPLICAS, Place, at_a_time, bare, measure, pool_of, prompt_of

_BLOCK = 32  # tokens


async def hits(programs: int, turns: int, kv_tokens: int, tool_s: float) -> dict[str, Any]:
    """Measure; see the module."""
    place = Place(
        str(resolve_model(None)),
        max_num_seqs=16,
        max_model_len=2048,
        num_gpu_blocks_override=kv_tokens // _BLOCK,
    )
    found: dict[str, dict[str, float]] = {}
    async with pool_of(place.start) as started:
        replicas = [bare(slot.replica) for slot in started.slots]
        for name in BALANCER_NAMES:
            for replica in replicas:
                await replica.forget_prefixes()
            found[name] = await _conversations(replicas, name, programs, turns, tool_s)
            print(name, found[name], flush=True)
    place.processes.close()
    return {
        "programs": programs,
        "turns": turns,
        "kv_tokens": kv_tokens,
        "tool_s": tool_s,
        "balancers": found,
    }


async def _conversations(
    replicas: Sequence[Any], balancer: str, programs: int, turns: int, tool_s: float
) -> dict[str, float]:
    """Programs one after the other, 12 at a time, over replicas that run on afterwards."""

    async def there(index: int) -> Any:
        return await GatedReplica.before(
            replicas[index], SchedulerConfig(policy="default", replica=index)
        )

    pool = await ReplicaPool.start(
        there, REPLICAS, balancer_named(balancer), kind="vllm", model="model"
    )
    receipts: list[Receipt] = []
    known: list[int] = []

    async def program(number: int) -> None:
        name, rng = f"{balancer}-{number}", random.Random(number)
        prompt = prompt_of(number, rng.randrange(60, 240))
        for turn in range(turns):
            ticket = Ticket(program=name, call=f"{name}/{turn}", prompt_tokens=len(prompt))
            async for chunk in pool.generate(token_call(ticket, prompt, rng.randrange(8, 40))):
                prompt = prompt + list(chunk.output.outputs[0].token_ids)
                if chunk.receipt is not None:
                    receipts.append(chunk.receipt)
            if turn < turns - 1:
                # The last token of an answer was never computed upon.
                known.append((len(prompt) - 1) // _BLOCK * _BLOCK)
                await asyncio.sleep(rng.uniform(0, 2 * tool_s))
            prompt = prompt + prompt_of(1000 * number + turn, rng.randrange(40, 160))
        pool.forget(name)

    began_s = time.monotonic()
    await at_a_time(12, range(programs), program)
    took_s = time.monotonic() - began_s
    for slot in pool.slots:
        for task in (slot._keeper, slot._watch):
            if task is not None:
                task.cancel()
    prompt_tokens = sum(receipt.prompt_tokens for receipt in receipts)
    cached = sum(receipt.cached_tokens for receipt in receipts)
    served = [sum(r.replica == index for r in receipts) for index in range(REPLICAS)]
    return {
        "hit_rate": round(cached / prompt_tokens, 4),
        "possible": round(sum(known) / prompt_tokens, 4),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "took_s": round(took_s, 1),
        "calls_of_the_busier": max(served),
        "calls": sum(served),
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replica_hits", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--programs", type=int, default=36)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kv-tokens", type=int, default=16_000, help="of each replica")
    parser.add_argument("--tool", type=float, default=2.0, help="mean duration of a tool, s")
    measure(
        parser,
        lambda options: hits(options.programs, options.turns, options.kv_tokens, options.tool),
    )


if __name__ == "__main__":
    main()
