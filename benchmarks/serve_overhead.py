"""What `autellix serve` adds to `vllm serve`, and what an idle session costs.

    python -m benchmarks.serve_overhead --json benchmarks/results/serve_overhead.json

Both servers run at once on the same model with the same engine arguments; only one is asked at a
time, in turns (A B A B ...), by the same client with the same requests. For each way to ask,
alone (one call after the other) and together (so many at a time), plain and streamed:

- ``call_ms``: duration of a call, median of a round, milliseconds;
- ``round_s``: the whole round, seconds.

The ratio is the median over the pairs of neighbouring rounds. Then 1,000 sessions are opened on
`autellix serve`, each with one call, and what its process has grown by is shared among them.
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


async def one_round(
    url: str, *, calls: int, at_once: int, tokens: int, stream: bool
) -> dict[str, float]:
    """``calls`` calls, so many at a time; what they took."""
    walls: list[float] = []
    numbers = iter(range(calls))
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:

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

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(at_once)))
    return {
        "call_ms": statistics.median(walls) * 1e3,
        "round_s": time.perf_counter() - began,
    }


def compared(servers: dict[str, Running], *, rounds: int, **way: Any) -> dict[str, Any]:
    """Both servers in turns: every round, the medians and the ratios."""
    sides: dict[str, list[dict[str, float]]] = {side: [] for side in servers}
    for number in range(rounds + 1):
        # The order within a pair changes, so that neither gains from being the second.
        for side in sorted(servers, reverse=bool(number % 2)):
            done = asyncio.run(one_round(servers[side].url, **way))
            if number:  # the first is for warming up
                sides[side].append(done)
    ratios = {
        key: statistics.median(
            ours[key] / theirs[key]
            for ours, theirs in zip(sides["autellix"], sides["vllm"], strict=True)
        )
        for key in ("call_ms", "round_s")
    }
    medians = {
        side: {key: statistics.median(r[key] for r in done) for key in ratios}
        for side, done in sides.items()
    }
    return {"way": way, "rounds": sides, "medians": medians, "ratios": ratios}


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
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=32, help="output tokens a call")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--ways", nargs="*", default=["alone", "together"])
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    set_engine_environment(debug=False, replicas=2)  # both share the machine
    os.environ["OMP_NUM_THREADS"] = str(os.cpu_count() or 1)  # but one works at a time
    folder = str(resolve_model(None, progress=False))
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        commands = {"autellix": autellix_serve(folder, args.port)}
        commands["vllm"] = vllm_serve(folder, args.port + 1)
        servers = {
            side: stack.enter_context(running(command, args.port + number, logs / f"{side}.log"))
            for number, (side, command) in enumerate(commands.items())
        }
        found: dict[str, Any] = {}
        sizes = {"alone": (6, 1), "together": (32, 16)}
        for name in args.ways:
            calls, at_once = sizes[name]
            for stream in (False, True):
                way = {"calls": calls, "at_once": at_once, "tokens": args.tokens}
                done = compared(servers, rounds=args.rounds, stream=stream, **way)
                found[f"{name}_{'streamed' if stream else 'plain'}"] = done
                print(name, "streamed" if stream else "plain", json.dumps(done["ratios"]))
        memory = idle_sessions(servers["autellix"], args.sessions)
    write_result(args.json, result_document(ways=found, idle_sessions=memory))


if __name__ == "__main__":
    main()
