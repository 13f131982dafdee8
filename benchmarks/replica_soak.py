"""A long run on two real replicas in which every fourth call is given up: memory stays flat.

    python -m benchmarks.replica_soak --minutes 20 --json benchmarks/results/replica_soak.json

Memory of this process and of the engines every few seconds, MiB. ``*_mib_a_minute``: growth over
the second half, by least squares. With ``--small`` the model has one small layer: many more calls
go through, and what the books of each leave behind shows sooner.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autellix.runtime.models import resolve_model
from autellix.runtime.process_tree import descendants
from autellix.runtime.token_calls import token_call
from autellix.scheduler.tickets import Ticket
from benchmarks.replica_place import Place, measure, pool_of, prompt_of, small_place

# The longest that a caller waits who gives up, seconds: about as long as a call takes.
_PATIENCE_S, _PATIENCE_SMALL_S = 3.0, 0.1
# What is cached is found by tables that grow until all blocks have been used: few are soon.
_SMALL_BLOCKS = 1024


async def soak(minutes: float, every_s: float, clients: int, *, small: bool) -> dict[str, Any]:
    """Measure; see the module."""
    with _place(small=small) as place:
        return await _soak(place, minutes, every_s, clients, small=small)


@contextlib.contextmanager
def _place(*, small: bool) -> Iterator[Place]:
    with TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        if small:
            place = small_place(
                Path(folder), max_num_seqs=16, num_gpu_blocks_override=_SMALL_BLOCKS
            )
        else:
            place = Place(str(resolve_model(None)), max_num_seqs=16, max_model_len=2048)
        ends.callback(place.processes.close)
        yield place


async def _soak(
    place: Place, minutes: float, every_s: float, clients: int, *, small: bool
) -> dict[str, Any]:
    patience_s = _PATIENCE_SMALL_S if small else _PATIENCE_S
    samples: list[dict[str, float]] = []
    counts = {"calls": 0, "given_up": 0}
    ends_s = time.monotonic() + 60 * minutes
    serial = count()
    rng = random.Random(7)
    async with pool_of(place.start) as pool:

        async def client() -> None:
            while time.monotonic() < ends_s:
                name = f"soak-{next(serial)}"
                ticket = Ticket(program=name, call=name, prompt_tokens=100)
                call = token_call(
                    ticket, prompt_of(rng.randrange(10**6), 100), rng.randrange(4, 48)
                )
                give_up_s = rng.uniform(0, patience_s) if rng.random() < 0.25 else None
                try:
                    async with asyncio.timeout(give_up_s):
                        async with contextlib.aclosing(pool.generate(call)) as chunks:
                            async for _ in chunks:
                                pass
                    counts["calls"] += 1
                except TimeoutError:
                    await pool.abort(name)
                    counts["given_up"] += 1
                pool.forget(name)

        async def sample() -> None:
            began_s = time.monotonic()
            while time.monotonic() < ends_s:
                cores = descendants([os.getpid()])
                samples.append(
                    {
                        "at_s": round(time.monotonic() - began_s, 1),
                        "own_mib": _resident_mib(os.getpid()),
                        "engines_mib": sum(map(_resident_mib, cores)),
                        "calls": counts["calls"] + counts["given_up"],
                    }
                )
                print(json.dumps(samples[-1]), flush=True)  # a run cut short leaves them too
                await asyncio.sleep(every_s)

        await asyncio.gather(sample(), *(client() for _ in range(clients)))
        left = {"where": len(pool._where), "live": sum(len(slot.calls) for slot in pool.slots)}
    return {
        "minutes": minutes,
        "clients": clients,
        "model": "small" if small else "embedded",
        **counts,
        "entries_left": left,
        "own_mib_a_minute": _slope(samples, "own_mib"),
        "engines_mib_a_minute": _slope(samples, "engines_mib"),
        "samples": samples,
    }


def _resident_mib(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    return 0.0


def _slope(samples: Sequence[dict[str, float]], name: str) -> float:
    """Growth over the second half, by least squares, MiB a minute."""
    half = samples[len(samples) // 2 :]
    if len(half) < 2:
        return 0.0
    at = [one["at_s"] / 60 for one in half]
    return round(statistics.linear_regression(at, [one[name] for one in half]).slope, 3)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replica_soak", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--clients", type=int, default=24, help="calls at once")
    parser.add_argument("--small", action="store_true", help="a model of one small layer")
    measure(
        parser,
        lambda options: soak(options.minutes, options.every, options.clients, small=options.small),
    )


if __name__ == "__main__":
    main()
