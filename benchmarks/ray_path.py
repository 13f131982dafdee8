"""What the way to a replica in a Ray actor costs a call, over the same replica in this process.

    python -m benchmarks.ray_path --json benchmarks/results/ray_path.json

The replica is no engine but a clock: every ``--step`` milliseconds each of its calls gets a token,
as in an engine's step. So the way is measured alone, to tens of microseconds. Calls go through the
same ``RayReplica`` and ``ReplicaActor`` as an engine's; the two kinds take turns (A B A B ...).

- ``added_ms``: duration of a call over Ray less that of one in this process, medians of the calls;
- ``out_ms``: from the caller to the replica; ``back_ms``: from the moment the replica has a token
  to the moment its caller has it, medians and 99th percentiles;
- ``cpu_ms``: processor time of the coordinator per call, its Ray threads included;
- ``takes``: batches that came per step, and ``bytes``: what crossed the network per call.

With ``--real N`` it also runs the embedded model on the real engine, here and in an actor, N calls
one after the other each, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.protocols import EngineCall, EngineChunk
from autellix.runtime.ray_actor import ReplicaActor
from autellix.runtime.replica_spec import ReplicaSpec
from autellix.runtime.settings import Settings
from autellix.scheduler.tickets import Receipt, Ticket
from benchmarks.result_file import result_document, write_result

CONCURRENT = (1, 16, 64)
PROMPT_TOKENS = 1000
TOKENS = 16
_REAL_TOKENS = 8
_TURNS = 5


class ClockReplica:
    """Gives every call a token at each tick of one clock.

    Args:
        step_s: between ticks, seconds.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """Tokens whose text is the time at which they were there."""
        from vllm.outputs import CompletionOutput, RequestOutput

        ticket, began, tokens = call.ticket, time.monotonic(), call.sampling.max_tokens
        tick = int(began / self._step_s)
        for number in range(1, tokens + 1):
            tick = max(tick, int(time.monotonic() / self._step_s)) + 1
            while (made := time.monotonic()) < tick * self._step_s:  # timers may be early
                await asyncio.sleep(tick * self._step_s - made)
            text = f"{began} {made}"
            choice = CompletionOutput(0, text, [number], None, None)
            last = number == tokens
            receipt = _receipt(ticket, made - began) if last else None
            output = RequestOutput(ticket.call, None, [1], None, [choice], last)
            yield EngineChunk(output=output, receipt=receipt)

    async def abort(self, call_id: str) -> None:
        """Nothing is given up here."""

    async def lost(self) -> None:
        """Never."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """There is nothing to stop."""


def _receipt(ticket: Ticket, service_s: float) -> Receipt:
    return Receipt(
        program=ticket.program,
        call=ticket.call,
        service_s=service_s,
        wait_s=0.0,
        levels=(1, 2, 3),
        preemptions=0,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=TOKENS,
    )


class ClockActor(ReplicaActor):
    """The actor with that replica in it."""

    def __init__(self, step_s: float) -> None:
        super().__init__("here", "here", ClockReplica(step_s))  # pyright: ignore[reportArgumentType]


@dataclass
class Side:
    """What was seen of the calls of one kind."""

    walls: list[float] = field(default_factory=list)
    out: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    served: int = 0

    def figures(self) -> dict[str, Any]:
        """Medians and 99th percentiles."""
        return {
            "calls": len(self.walls),
            "wall_ms": _ms(self.walls),
            "out_ms": _ms(self.out),
            "back_ms": _ms(self.back),
            "cpu_ms": round(1e3 * self.cpu_s / self.served, 3),
        }


def _ms(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": round(1e3 * statistics.median(ordered), 3),
        "p99": round(1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
    }


def a_call(number: int) -> EngineCall:
    """A call as the front end makes it."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    ticket = Ticket(
        program=f"program-{number % 100}",
        call=f"call-{number}",
        attained_s=1.25,
        prompt_tokens=PROMPT_TOKENS,
        course=(1.0, 2.0, 3.0),
    )
    sampling = SamplingParams(
        max_tokens=TOKENS,
        temperature=0,
        output_kind=RequestOutputKind.DELTA,
        extra_args=dict(ticket.to_flat()),
    )
    prompt = {"type": "token", "prompt_token_ids": [1000 + i for i in range(PROMPT_TOKENS)]}
    return EngineCall(ticket=ticket, prompt=prompt, sampling=sampling)


async def round_of(replica: Any, side: Side, concurrent: int, calls: int, first: int) -> None:
    """So many calls, so many at a time; made before, since that is the front end's work.

    Who goes on does so at a tick, when a call has ended, here as there; the first call of each
    begins wherever the clock stands, and is left out.
    """
    made = iter([a_call(number) for number in range(first, first + calls)])

    async def work() -> None:
        counts = False
        for call in made:
            began = time.monotonic()
            async for chunk in replica.generate(call):
                now = time.monotonic()
                there, came = map(float, chunk.output.outputs[0].text.split()[-2:])
                if counts:
                    side.back.append(now - came)
            if counts:
                side.walls.append(time.monotonic() - began)
                side.out.append(there - began)
            side.served += 1
            counts = True

    cpu = time.process_time()
    await asyncio.gather(*(work() for _ in range(concurrent)))
    side.cpu_s += time.process_time() - cpu


async def measure(step_s: float, calls: int, rounds: int) -> dict[str, Any]:
    """The clock here and in an actor, in turns."""
    from autellix.runtime.cluster_room import Need
    from autellix.runtime.ray_cluster import RayCluster
    from autellix.runtime.ray_names import PlacementGroupSchedulingStrategy, ray
    from autellix.runtime.ray_replica import RayReplica

    cluster = await RayCluster.connect(None, debug=False)
    try:
        (place,) = await cluster.reserve(Need(resources={"CPU": 1.0}, environment={}), [0])
        place.actor = (
            ray.remote(ClockActor)
            .options(
                num_cpus=1,
                max_concurrency=10_000,
                scheduling_strategy=PlacementGroupSchedulingStrategy(place.group),
            )
            .remote(step_s)
        )
        far = RayReplica(place.actor, place, ReplicaSpec(model=None, served_name="clock"), 0)
        far.listen()
        near = ClockReplica(step_s)
        found = {}
        for concurrent in CONCURRENT:
            sides = {"here": Side(), "ray": Side()}
            await round_of(far, Side(), concurrent, 2 * concurrent, 0)
            count = max(calls, _TURNS * concurrent)
            for number in range(rounds):
                first = (number + 1) * count
                await round_of(near, sides["here"], concurrent, count, first)
                await round_of(far, sides["ray"], concurrent, count, first)
            here, ray_side = (sides[name].figures() for name in ("here", "ray"))
            added = ray_side["wall_ms"]["p50"] - here["wall_ms"]["p50"]
            found[str(concurrent)] = {"here": here, "ray": ray_side, "added_ms": round(added, 3)}
        await far.stop()
        return found
    finally:
        cluster.close()


def bytes_per_call() -> dict[str, Any]:
    """What crosses the network for a call, bytes; Ray's own framing is not counted."""
    from autellix.runtime.ray_wire import Choice, Chunk, encode_batch, encode_call

    found: dict[str, Any] = {}
    for prompt_tokens in (100, 1000, 10_000):
        call = a_call(0)
        tokens = [i * 7919 % 128_000 for i in range(prompt_tokens)]
        call = EngineCall(
            ticket=call.ticket, prompt={"prompt_token_ids": tokens}, sampling=call.sampling
        )
        found[f"out, prompt of {prompt_tokens}"] = len(encode_call(call))
    token = Chunk("01a22c6a-10a6-73bf-b71c-e2a70a163796", False, [Choice(0, " token", [43_210])])
    last = Chunk(
        token.call,
        True,
        token.choices,
        0,
        _receipt(a_call(0).ticket, 1.0).to_wire(),
    )
    found["back, each piece of one token"] = len(encode_batch([token])) - 1
    found["back, the last piece with its receipt"] = len(encode_batch([last])) - 1
    return found


def real(calls: int, rounds: int) -> dict[str, Any]:
    """The real engine here and in an actor: calls of a few tokens, one after the other."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    arguments = {"max_num_seqs": 8, "max_model_len": 2048}
    walls: dict[str, list[float]] = {"vllm": [], "ray": []}
    with contextlib.ExitStack() as stack:
        hosts = {}
        for kind in walls:
            settings = Settings(quiet=True, engine=kind, engine_args=arguments)
            hosts[kind] = EngineHost.start(settings)
            stack.callback(hosts[kind].stop)

        async def ask(kind: str, number: int) -> None:
            from autellix.runtime.token_calls import token_call

            prompt = [1000 + (number * 31 + i * 7) % 20_000 for i in range(64)]
            ticket = Ticket(program=f"p{number}", call=f"{kind}-{number}", prompt_tokens=64)
            began = time.monotonic()
            async for _ in hosts[kind].engine.generate(token_call(ticket, prompt, _REAL_TOKENS)):
                pass
            walls[kind].append(time.monotonic() - began)

        for number in range(calls * rounds):
            for kind in walls:
                hosts[kind].loop.run(ask(kind, number))
    warm = {kind: seen[5:] for kind, seen in walls.items()}
    differences = [a - b for a, b in zip(warm["ray"], warm["vllm"], strict=True)]
    return {
        "calls": len(differences),
        "wall_ms": {kind: _ms(seen) for kind, seen in warm.items()},
        "added_ms": _ms(differences)["p50"],
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=float, default=20.0, help="between tokens, ms")
    parser.add_argument("--calls", type=int, default=128, help="calls a round, or more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--real", type=int, default=0, help="calls of the real engine, each kind")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    document: dict[str, Any] = {"step_ms": args.step, "tokens": TOKENS, "bytes": bytes_per_call()}
    document["clock"] = asyncio.run(measure(args.step / 1e3, args.calls, args.rounds))
    if args.real:
        document["real"] = real(args.real, 1)
    write_result(args.json, result_document(**document))


if __name__ == "__main__":
    main()
