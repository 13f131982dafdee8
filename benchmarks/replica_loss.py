"""A replica is killed while calls stream from two: how soon they go on, and if all is answered.

    python -m benchmarks.replica_loss --json benchmarks/results/replica_loss.json

SIGKILL goes to the engine core of each of two replicas of the embedded model in turns, twenty calls
each time. Of the calls that were on it, seconds from the kill: ``moved_s``, until the first of them
is given to the other replica; ``first_token_s``, to the next token of any of them, after their
prompts and answers so far were computed again, together; ``last_token_s``, to that of the last one,
which waits for a seat as any other call does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from autellix.runtime.models import resolve_model
from autellix.runtime.process_tree import descendants
from autellix.runtime.replica_pool import ReplicaPool
from autellix.runtime.token_calls import token_call
from autellix.scheduler.tickets import Ticket
from benchmarks.replica_place import REPLICAS, Place, bare, measure, pool_of, prompt_of


async def loss(kills: int) -> dict[str, Any]:
    """Measure; see the module."""
    place = Place(str(resolve_model(None)), max_num_seqs=16, max_model_len=2048)
    found: list[dict[str, Any]] = []
    async with pool_of(place.start) as pool:
        for number in range(kills):
            while any(slot.state != "serving" for slot in pool.slots):
                await asyncio.sleep(0.1)
            found.append(await _killed(pool, number))
            print(found[-1], flush=True)
        left = len(pool._where)
    place.processes.close()
    firsts = [one["first_token_s"] for one in found]
    moves = [one["moved_s"] for one in found]
    return {
        "kills": found,
        "median_moved_s": statistics.median(moves),
        "worst_moved_s": max(moves),
        "median_first_token_s": statistics.median(firsts),
        "worst_first_token_s": max(firsts),
        "answered": sum(one["answered"] for one in found),
        "calls": sum(one["calls"] for one in found),
        "entries_left": left,
        "processes_left": [pid for one in found for pid in one["pids"] if _lives(pid)],
    }


async def _killed(pool: ReplicaPool, number: int, calls: int = 20) -> dict[str, Any]:
    from autellix.runtime.vllm_names import RequestOutputKind, core_processes

    victim, other = pool.slots[number % REPLICAS], pool.slots[(number + 1) % REPLICAS]
    killed_s = float("inf")
    resumed: dict[str, float] = {}
    on_victim: set[str] = set()
    moved: dict[str, float] = {}
    answered = 0

    async def one(index: int) -> None:
        nonlocal answered
        name = f"loss-{number}-{index}"
        ticket = Ticket(program=name, call=name, prompt_tokens=200)
        call = token_call(ticket, prompt_of(index, 200), 96)
        call.sampling.output_kind = RequestOutputKind.DELTA
        tokens = 0
        async for chunk in pool.generate(call):
            tokens += len(chunk.output.outputs[0].token_ids)
            if name in moved:
                resumed.setdefault(name, time.monotonic() - killed_s)
        answered += tokens == 96
        pool.forget(name)

    asked = [asyncio.create_task(one(index)) for index in range(calls)]
    while len(victim.calls) < calls // 4:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)
    cores = [process.pid for process in core_processes(bare(victim.replica).llm) if process.pid]
    pids = [*cores, *descendants(cores)]
    on_victim |= victim.calls
    generate = bare(other.replica).llm.generate

    def generate_and_note(prompt: Any, sampling: Any, call: str, **options: Any) -> Any:
        if call in on_victim:
            moved[call] = time.monotonic() - killed_s
        return generate(prompt, sampling, call, **options)

    bare(other.replica).llm.generate = generate_and_note
    killed_s = time.monotonic()
    for pid in cores:
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*asked)
    bare(other.replica).llm.generate = generate
    return {
        "calls": calls,
        "on_the_replica": len(on_victim),
        "answered": answered,
        "moved_s": round(min(moved.values()), 4),
        "first_token_s": round(min(resumed.values()), 4),
        "last_token_s": round(max(resumed.values()), 4),
        "pids": pids,
    }


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replica_loss", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=10)
    measure(parser, lambda options: loss(options.kills))


if __name__ == "__main__":
    main()
