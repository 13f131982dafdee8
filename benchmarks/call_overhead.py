"""What a call costs through ChatAutellix and the recorder, over bare ``AsyncLLM.generate``.

    python -m benchmarks.call_overhead --json benchmarks/results/call_overhead.json

Both sides send the same tokens to the same engine, 16 calls at a time, in turns (A B A B ...).
Three figures, each the median of the rounds:

- ``wall_s``: duration of a call, seconds. On a small machine the noise of the engine's steps is
  larger than what is looked for, so also
- ``cpu_ms``: processor time of this process per call, milliseconds: the engine's own processes do
  not count, so this is what the front end takes on either side;
- ``round_s``: the whole round, seconds; with the engine busy all the time its ratio says how much
  throughput the front end costs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import autellix
from autellix import ChatAutellix
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings
from autellix.runtime.token_calls import exact_sampling
from benchmarks.result_file import result_document, write_result

CONCURRENT = 16
PROMPT = "Case {number}. Write about the sea, the wind and the ships that cross it."


async def round_of(calls: int, call: Callable[[int], Awaitable[Any]]) -> dict[str, float]:
    """``calls`` calls, CONCURRENT at a time; what they took."""
    numbers = iter(range(calls))
    walls: list[float] = []

    async def work() -> None:
        for number in numbers:
            began = time.perf_counter()
            await call(number)
            walls.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(CONCURRENT)))
    return {
        "wall_s": statistics.median(walls),
        "cpu_ms": (time.process_time() - cpu) / calls * 1e3,
        "round_s": time.perf_counter() - began,
    }


async def measure(session: Session, *, calls: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Both sides in turns; every round and the medians."""
    llm = session.host.chat.borrowed
    tokenizer = llm.renderer.tokenizer
    model = ChatAutellix(
        temperature=0, max_tokens=tokens, model_kwargs={"ignore_eos": True, "min_tokens": tokens}
    )
    prompts = [PROMPT.format(number=number) for number in range(calls)]
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]
    serial = iter(range(10**9))

    async def bare(number: int) -> None:
        prompt = {"prompt_token_ids": ids[number]}
        async for output in llm.generate(prompt, exact_sampling(tokens), f"bare-{next(serial)}"):
            assert len(output.outputs[0].token_ids) == tokens

    async def through(number: int) -> None:
        async with autellix.program("call"):
            answer = await model.ainvoke(prompts[number])
        usage = answer.usage_metadata
        assert usage["output_tokens"] == tokens
        assert usage["input_tokens"] == len(ids[number])

    async def bare_round() -> dict[str, float]:
        # On the engine's own event loop, as a program that uses AsyncLLM would be.
        return await session.loop.arun(round_of(calls, bare))

    sides: dict[str, list[dict[str, float]]] = {"bare": [], "autellix": []}
    await bare_round()
    await round_of(calls, through)
    for _ in range(rounds):
        sides["bare"].append(await bare_round())
        sides["autellix"].append(await round_of(calls, through))
    return {"rounds": sides, "medians": medians(sides)}


def medians(sides: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians per side, and what one has over the other."""
    middle = {
        side: {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        for side, rounds in sides.items()
    }
    ours, bare = middle["autellix"], middle["bare"]
    ratios = [a["round_s"] / b["round_s"] for a, b in zip(*reversed(sides.values()), strict=True)]
    return {
        **middle,
        "added_cpu_ms": ours["cpu_ms"] - bare["cpu_ms"],
        "added_wall_ms": (ours["wall_s"] - bare["wall_s"]) * 1e3,
        "round_ratio": statistics.median(ratios),
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=64, help="calls a round")
    parser.add_argument("--tokens", type=int, default=64, help="output tokens a call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    session = Session(Settings())
    session.start()
    use_session(session)
    try:
        measured = asyncio.run(
            measure(session, calls=args.calls, tokens=args.tokens, rounds=args.rounds)
        )
    finally:
        session.close()
    write_result(
        args.json,
        result_document(concurrent=CONCURRENT, calls=args.calls, tokens=args.tokens, **measured),
    )


if __name__ == "__main__":
    main()
