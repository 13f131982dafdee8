"""What a call costs the coordinator: the process that knows all programs and places their calls.

    python -m benchmarks.coordinator --json benchmarks/results/coordinator.json

The real path from a chat request to its reply: process table and record, policy and ticket, vLLM's
chat front end with the model's tokenizer, balancer, pool. Only the replicas are none: they answer
at once, with the same number of tokens. So what is measured is processor time of this process, per
call, with so many programs alive and so many replicas:

- ``whole_ms``: the request answered in one piece; ``streamed_ms``: token by token;
- ``place_us``: the balancer's decision alone;
- ``send_us``, ``chunk_us``: what a replica on another machine adds: a call encoded, and a piece of
  its answer decoded and handed on.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from autellix.runtime.chat_service import ChatService
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.engine_loop import EngineLoop
from autellix.runtime.engine_start import set_engine_environment
from autellix.runtime.models import DEFAULT_MODEL, resolve_model
from autellix.runtime.protocols import CallStart, EngineCall, EngineChunk, EngineStats
from autellix.runtime.replica_pool import ReplicaPool
from autellix.runtime.session import Session
from autellix.runtime.settings import Settings
from autellix.scheduler.balancers import balancer_named
from autellix.scheduler.node_affinity import NodeAffinity
from autellix.scheduler.tickets import Receipt, Ticket
from benchmarks.result_file import result_document, write_result

TOKENS = 64
_CONTEXT = 8192
_PROMPT = "Case {number}. " + "Write about the sea, the wind and the ships that cross it. " * 20
_REPLICAS_A_NODE = 8


class InstantReplica:
    """A replica whose calls are answered as soon as they are there; satisfies ``Replica``."""

    kind = "instant"
    model = DEFAULT_MODEL
    replicas = 1
    is_serving = True

    def __init__(self, index: int) -> None:
        self._index = index

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineChunk, None]:
        """``TOKENS`` tokens: each by itself where the call streams, else together."""
        from vllm.outputs import CompletionOutput, RequestOutput

        streams = call.sampling.output_kind.name == "DELTA"
        pieces = [[1 + i] for i in range(TOKENS)] if streams else [list(range(1, TOKENS + 1))]
        for number, piece in enumerate(pieces, start=1):
            last = number == len(pieces)
            text = " word" * len(piece)
            reason = "length" if last else None
            choice = CompletionOutput(0, text, piece, None, None, finish_reason=reason)
            ids = call.prompt["prompt_token_ids"]
            output = RequestOutput(call.ticket.call, None, ids, None, [choice], last)
            receipt = receipt_of(call.ticket, self._index) if last else None
            yield EngineChunk(output=output, receipt=receipt)

    async def stats(self) -> EngineStats:
        """A middling GPU's sizes."""
        return EngineStats(seats=256, kv_tokens=400_000, block_tokens=16, token_budget=8192)

    async def stats_of_replicas(self) -> Sequence[EngineStats]:
        """See ``Engine.stats_of_replicas``."""
        return [await self.stats()]

    def tell_stats_to(self, sink: Callable[[EngineStats], None]) -> None:
        """It never has anything to tell."""

    def forget(self, program: str) -> None:
        """It keeps nothing."""

    async def abort(self, call_id: str) -> Receipt | None:
        """Nothing is given up here."""

    async def drain(self) -> None:
        """There is nothing to wait for."""

    async def lost(self) -> None:
        """Never."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """There is nothing to stop."""

    async def kill(self) -> None:
        """There is nothing to kill."""


def receipt_of(ticket: Ticket, replica: int) -> Receipt:
    """What an engine would say of such a call."""
    return Receipt(
        program=ticket.program,
        call=ticket.call,
        service_s=0.8,
        wait_s=0.01,
        levels=(1, 2, 3),
        preemptions=0,
        prompt_tokens=ticket.prompt_tokens,
        cached_tokens=ticket.prompt_tokens // 2,
        output_tokens=TOKENS,
        replica=replica,
    )


async def _front(loop: EngineLoop, replicas: int, policy: Settings) -> EngineHost:
    from autellix.runtime.model_front import ModelFront

    async def start(index: int) -> Any:
        return InstantReplica(index)

    nodes = [f"node {index // _REPLICAS_A_NODE}" for index in range(replicas)]
    balancer = NodeAffinity(balancer_named(policy.balancer), lambda: nodes)
    pool = await ReplicaPool.start(start, replicas, balancer, kind="instant", model=DEFAULT_MODEL)
    front = ModelFront(
        str(resolve_model(None)),
        {},
        served_name=DEFAULT_MODEL,
        context_tokens=_CONTEXT,
        tasks=("generate",),
    )
    return EngineHost(loop, pool, await ChatService.create(pool, front))


def cell(replicas: int, programs: int, calls: int) -> dict[str, Any]:
    """Processor time per call, in milliseconds, with so many programs alive."""
    settings = Settings(quiet=True)
    loop = EngineLoop()
    host = loop.run(_front(loop, replicas, settings))
    session = Session(settings, host)
    session.start()
    session.recorder.uninstall()
    try:
        for number in range(programs):
            session.programs.program_started(f"program {number}", "agent")
        serial = iter(range(10**9))

        async def one(number: int, *, stream: bool) -> None:
            call = f"call {next(serial)}"
            program = f"program {number % programs}"
            start = CallStart(
                program=program, call=call, kind="llm", name="m", node=None, parents=()
            )
            session.programs.call_started(start)
            body = {
                "messages": [{"role": "user", "content": _PROMPT.format(number=number)}],
                "max_tokens": TOKENS,
            }
            if stream:
                async for _ in session.stream(body, call):
                    pass
            else:
                await session.complete(body, call)
            session.programs.call_ended(call, "done", None)

        async def some(count: int, *, stream: bool) -> float:
            began = time.process_time()
            for number in range(count):
                await one(number * 7919, stream=stream)
            return 1e3 * (time.process_time() - began) / count

        async def every() -> None:  # each program has had a call, so everything knows it
            for number in range(programs):
                await one(number, stream=False)

        loop.run(every())
        entries = len(session.programs.table.programs)
        return {
            "replicas": replicas,
            "programs": entries,
            "whole_ms": round(loop.run(some(calls, stream=False)), 3),
            "streamed_ms": round(loop.run(some(calls // 4, stream=True)), 3),
        }
    finally:
        session.finish()
        loop.run(host.engine.stop())
        loop.close()


def placement_us(replicas: int, programs: int, calls: int = 3000) -> float:
    """Processor time of one decision of the default balancer, microseconds."""
    nodes = [f"node {index // _REPLICAS_A_NODE}" for index in range(replicas)]
    balancer = NodeAffinity(balancer_named(Settings().balancer), lambda: nodes)
    for index in range(replicas):
        balancer.replica_serves(index, seats=256, kv_tokens=400_000)
    loads = [float(index % 7) for index in range(replicas)]

    def place(number: int) -> None:
        ticket = Ticket(
            program=f"program {number % programs}", call=f"c{number}", prompt_tokens=2000
        )
        index = balancer.place(ticket, loads)
        balancer.call_ended(ticket.call, receipt_of(ticket, index))

    for number in range(programs):
        place(number)
    began = time.process_time()
    for number in range(calls):
        place(programs + number * 7919)
    return round(1e6 * (time.process_time() - began) / calls, 1)


def wire() -> dict[str, float]:
    """What the way to another machine takes of this process, without Ray's own part, us."""
    from autellix.runtime.ray_stream import CallStream
    from autellix.runtime.ray_wire import (
        Choice,
        Chunk,
        decode_batch,
        encode_batch,
        encode_call,
    )
    from benchmarks.ray_path import a_call

    call, count, batch = a_call(0), 2000, 64
    began = time.process_time()
    for _ in range(count):
        encode_call(call)
    send_us = 1e6 * (time.process_time() - began) / count
    pieces = [Chunk(f"call {n}", False, [Choice(0, " word", [n])]) for n in range(batch)]
    data = encode_batch(pieces)

    async def read() -> float:
        streams = {piece.call: CallStream(call) for piece in pieces}
        readers = {name: stream.chunks() for name, stream in streams.items()}
        began = time.process_time()
        for _ in range(count // batch):
            for item in decode_batch(data):
                streams[item.call].take(item)
            for reader in readers.values():
                await anext(reader)
        spent = time.process_time() - began
        for reader in readers.values():
            await reader.aclose()
        return 1e6 * spent / (count // batch * batch)

    return {"send_us": round(send_us, 1), "chunk_us": round(asyncio.run(read()), 1)}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--programs", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    set_engine_environment(debug=False)
    cells = [
        cell(replicas, programs, args.calls)
        for replicas in args.replicas
        for programs in args.programs
    ]
    placements = [
        {"replicas": n, "programs": max(args.programs), "place_us": placement_us(n, 10_000)}
        for n in args.replicas
    ]
    document = result_document(tokens=TOKENS, cells=cells, placements=placements, wire=wire())
    write_result(args.json, document)


if __name__ == "__main__":
    main()
