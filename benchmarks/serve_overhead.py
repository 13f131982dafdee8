"""What `autellix serve` adds to `vllm serve`, and what an idle session costs.

    python -m benchmarks.serve_overhead --json benchmarks/results/serve_overhead.json

Both servers run at once on the same model with the same engine arguments; only one is asked at a
time, in turns (A B A B ...), by the same client with the same requests. For each way to ask,
alone (one call after the other) and together (so many at a time), plain and streamed:

- ``call_ms``: duration of a call, median of a round, milliseconds;
- ``round_s``: the whole round, seconds;
- ``server_ms``: processor time of the server's own process, per call, milliseconds.

Two processes of the very same server differ by a few per cent for as long as they live: so both
are started anew several times (``--starts``), and the ratio is the median over the pairs of
neighbouring rounds of all starts. Then 1,000 sessions are opened on `autellix serve`, each with one
call, and what its process has grown by is shared among them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from autellix.runtime.engine_start import set_engine_environment
from autellix.runtime.models import resolve_model
from benchmarks.result_file import result_document, write_result

ARGUMENTS = {"max_num_seqs": 32, "max_model_len": 2048}
PROMPT = "Case {number}. Write about the sea, the wind and the ships that cross it."
STARTED_WITHIN_S = 180.0
MODEL = "model"
SIDES = ("autellix", "vllm")
SIZES = {"alone": (6, 1), "together": (32, 16)}  # calls a round, at a time

Pair = dict[str, dict[str, float]]  # what a round took, by side


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers.

    Attributes:
        url: without a path.
        pid: of its process.
    """

    url: str
    pid: int


def vllm_serve(folder: str, port: int) -> list[str]:
    """Command of the engine's own server, with what a replica of ours has on a CPU.

    It is the module behind ``vllm serve``; that command fails where the package has another name.
    """
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
    command += ["--port", str(port), "--host", "127.0.0.1", "--served-model-name", MODEL]
    command += ["--dtype", "bfloat16", "--enforce-eager", "--block-size", "32"]
    command += ["--max-num-batched-tokens", "2048", "--disable-uvicorn-access-log"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += ["--distributed-executor-backend"]
    command += ["vllm.v1.executor.uniproc_executor.UniProcExecutor"]
    for name, value in ARGUMENTS.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    return command


def autellix_serve(folder: str, port: int) -> list[str]:
    """Command of ours."""
    command = [sys.executable, "-m", "autellix", "serve", "--model", folder, "--quiet"]
    command += ["--port", str(port), "--model-map", f"{MODEL}={folder}"]
    for name, value in ARGUMENTS.items():
        command += ["--engine-arg", f"{name}={value}"]
    return command


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[Running]:
    """A server, from its first answer to the end of the block; what it says goes to ``log``."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + STARTED_WITHIN_S
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{' '.join(command)} does not serve:\n{log.read_text()[-4000:]}"
                )
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                    break
            time.sleep(0.2)
        yield Running(url, process.pid)
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def both(folder: str, port: int, *, first: str) -> Iterator[dict[str, Running]]:
    """Both servers, ``first`` started first."""
    commands = {"autellix": autellix_serve(folder, port), "vllm": vllm_serve(folder, port + 1)}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[str, Running] = {}
        for side in sorted(SIDES, key=lambda side: side != first):
            process = running(commands[side], port + SIDES.index(side), logs / f"{side}.log")
            servers[side] = stack.enter_context(process)
        yield servers


async def one_round(
    server: Running, *, calls: int, at_once: int, tokens: int, stream: bool
) -> dict[str, float]:
    """``calls`` calls, so many at a time; what they took."""
    process = psutil.Process(server.pid)
    walls: list[float] = []
    numbers = iter(range(calls))
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:

        async def work() -> None:
            for number in numbers:
                messages = [{"role": "user", "content": PROMPT.format(number=number)}]
                body = {"model": MODEL, "messages": messages, "max_tokens": tokens}
                body |= {"temperature": 0, "ignore_eos": True, "stream": stream}
                began = time.perf_counter()
                async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
                    assert reply.status_code == 200, await reply.aread()
                    async for _ in reply.aiter_raw():
                        pass
                walls.append(time.perf_counter() - began)

        worked = sum(process.cpu_times()[:2])
        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(at_once)))
        ended = time.perf_counter()
    return {
        "call_ms": statistics.median(walls) * 1e3,
        "round_s": ended - began,
        "server_ms": (sum(process.cpu_times()[:2]) - worked) / calls * 1e3,
    }


def in_turns(servers: dict[str, Running], *, rounds: int, **way: Any) -> list[Pair]:
    """Both servers' rounds, pair by pair; the first pair, for warming up, is left out."""
    pairs: list[Pair] = []
    for number in range(rounds + 1):
        # The order within a pair changes, so that neither gains from being the second.
        order = sorted(servers, reverse=bool(number % 2))
        pairs.append({side: asyncio.run(one_round(servers[side], **way)) for side in order})
    return pairs[1:]


def compared(starts: list[list[Pair]]) -> dict[str, Any]:
    """The pairs of every start, each side's medians and the ratios, of all and of each start."""
    pairs = [pair for start in starts for pair in start]
    return {
        "starts": starts,
        "medians": {
            side: {key: statistics.median(pair[side][key] for pair in pairs) for key in measured}
            for side, measured in pairs[0].items()
        },
        "ratios": _ratios(pairs),
        "ratios_of_starts": [_ratios(start) for start in starts],
    }


def _ratios(pairs: list[Pair]) -> dict[str, float]:
    return {
        key: statistics.median(pair["autellix"][key] / pair["vllm"][key] for pair in pairs)
        for key in ("call_ms", "round_s")
    }


def idle_sessions(server: Running, count: int) -> dict[str, Any]:
    """What the server's process grows by for open sessions, bytes for each."""
    process = psutil.Process(server.pid)
    with httpx.Client(base_url=server.url, timeout=300) as http:

        def open_some(prefix: str, number: int, call: bool) -> None:
            for each in range(number):
                name = f"{prefix}-{each}"
                assert http.post("/v1/sessions", json={"id": name}).status_code == 201
                if call:
                    messages = [{"role": "user", "content": "Hi."}]
                    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
                    reply = http.post(
                        "/v1/chat/completions", json=body, headers={"X-Session-ID": name}
                    )
                    assert reply.status_code == 200

        open_some("warm", 100, True)
        grown: dict[str, Any] = {"sessions": count}
        for what, call in (("opened", False), ("with_a_call", True)):
            before = process.memory_info().rss
            open_some(what, count, call)
            grown[f"bytes_each_{what}"] = (process.memory_info().rss - before) / count
        known = sum(1 for _ in _sessions(http))
        assert known == 2 * count + 100
    return grown


def _sessions(http: httpx.Client) -> Iterator[Any]:
    offset: int | None = 0
    while offset is not None:
        page = http.get(f"/v1/sessions?limit=1000&offset={offset}").json()
        yield from page["data"]
        offset = page["next_offset"]


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=4, help="how often both are started")
    parser.add_argument("--rounds", type=int, default=2, help="pairs of rounds a start")
    parser.add_argument("--tokens", type=int, default=32, help="output tokens a call")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--ways", nargs="*", default=list(SIZES))
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    set_engine_environment(debug=False, replicas=2)  # both share the machine
    os.environ["OMP_NUM_THREADS"] = str(os.cpu_count() or 1)  # but one works at a time
    folder = str(resolve_model(None, progress=False))
    ways = {
        f"{name}_{'streamed' if stream else 'plain'}": {
            "calls": SIZES[name][0],
            "at_once": SIZES[name][1],
            "tokens": args.tokens,
            "stream": stream,
        }
        for name in args.ways
        for stream in (False, True)
    }
    done: dict[str, list[list[Pair]]] = {name: [] for name in ways}
    memory: dict[str, Any] = {}
    for start in range(args.starts):
        with both(folder, args.port, first=SIDES[start % 2]) as servers:
            for name, way in ways.items():
                done[name].append(in_turns(servers, rounds=args.rounds, **way))
                print(start, name, json.dumps(_ratios(done[name][-1])), flush=True)
            if start == args.starts - 1:
                memory = idle_sessions(servers["autellix"], args.sessions)
    found = {name: {"way": ways[name], **compared(starts)} for name, starts in done.items()}
    for name, way in found.items():
        print(name, json.dumps(way["ratios"]))
    write_result(args.json, result_document(ways=found, idle_sessions=memory))


if __name__ == "__main__":
    main()
