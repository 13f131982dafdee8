"""Drives an engine through steps of many shapes and gathers how long they take.

Prompts alone, of several lengths and several at once; generation alone, by number of calls and by
length of their contexts; prompts while others generate. Durations are those that the engine itself
measures for each step.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from ..scheduler.step_log import Step
from ..scheduler.tickets import Receipt, Ticket
from .calibrate_fit import Point
from .token_calls import token_call

if TYPE_CHECKING:
    from .vllm_replica import VllmReplica

_GENERATED = 24  # tokens that calls generate where generation is measured
_LEAST_STEPS = 4  # of which a mean is taken, where calls generate
_MOST_CONTEXT = 16_384  # tokens of context in a step of the sweep, for the sake of its duration
_KV_BUCKET = 512
_STRAY = 3.0  # times the median
# Token ids that are ordinary words in any model's vocabulary.
_FIRST_TOKEN, _LAST_TOKEN = 100, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What the engine can take.

    Attributes:
        seats: most calls in a step.
        token_budget: most tokens in a step.
        context_tokens: longest prompt with its output.
        kv_tokens: KV capacity, tokens.
    """

    seats: int
    token_budget: int
    context_tokens: int
    kv_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one measurement sends.

    Attributes:
        name: for people.
        calls: how many at once.
        prompt_tokens, output_tokens: of each.
        joining: prompts that come one after the other while the calls generate, tokens.
        times: how often.
    """

    name: str
    calls: int
    prompt_tokens: int
    output_tokens: int
    joining: tuple[int, ...] = ()
    times: int = 1


def shapes_for(limits: EngineLimits) -> list[Shape]:
    """The shapes of a sweep, as far as the engine can take them."""
    longest = min(limits.context_tokens, limits.kv_tokens) - 2 * _GENERATED
    room = min(limits.kv_tokens, _MOST_CONTEXT)
    shapes = []
    for tokens in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        tokens = min(tokens, longest)
        name = f"a prompt of {tokens:,} tokens"
        times = 4 if tokens <= 512 else 2
        shapes.append(Shape(name=name, calls=1, prompt_tokens=tokens, output_tokens=1, times=times))
        if tokens == longest:
            break
    for calls, tokens in ((4, 32), (16, 32), (4, 256), (16, 64)):
        fits = tokens <= longest and calls * tokens <= min(limits.token_budget, room)
        if calls <= limits.seats and fits:
            name = f"{calls} prompts of {tokens} tokens"
            shapes.append(
                Shape(name=name, calls=calls, prompt_tokens=tokens, output_tokens=1, times=3)
            )
    for tokens in dict.fromkeys(min(tokens, longest) for tokens in (32, 512, 2048)):
        for calls in _doubling(limits.seats):
            if calls * (tokens + _GENERATED) > room:
                break
            name = f"{calls} calls generate, {tokens:,} tokens behind each"
            shapes.append(
                Shape(name=name, calls=calls, prompt_tokens=tokens, output_tokens=_GENERATED)
            )
    begun = min(64, longest - _GENERATED)
    joining = tuple(t for t in (32, 128, 512, 1024) if t <= longest) * 2
    for calls in (2, 8, 24):
        if begun > 0 and joining and calls < limits.seats and calls * 256 <= room:
            shapes.append(
                Shape(
                    name=f"{calls} calls generate while prompts come",
                    calls=calls,
                    prompt_tokens=begun,
                    output_tokens=2 * _GENERATED,
                    joining=joining,
                )
            )
    return shapes


def _doubling(most: int) -> Iterable[int]:
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most


class Sweep:
    """One sweep of a replica that runs ``LOGGING_SCHEDULER``.

    Attributes:
        points: what has been measured so far.
        gaps_s: the engine's own work between two steps, one of each step.
        turnarounds_s: of calls that were alone, what a call takes beside its time in the engine.
    """

    def __init__(self, replica: VllmReplica, limits: EngineLimits, *, seed: int = 0) -> None:
        self.points: list[Point] = []
        self.gaps_s: list[float] = []
        self.turnarounds_s: list[float] = []
        self._replica = replica
        self._limits = limits
        self._random = random.Random(seed)
        self._serial = 0

    async def run(self, note: Callable[[int, int, str], None]) -> None:
        """Measure every shape.

        Args:
            note: is told the number of the shape that begins, from 1, how many there are, and its
                name.

        Raises:
            CallError, EngineStoppedError: what they say.
        """
        shapes = shapes_for(self._limits)
        await self._send(Shape(name="", calls=2, prompt_tokens=64, output_tokens=_GENERATED))
        await self._replica.take_steps()
        for number, shape in enumerate(shapes, start=1):
            note(number, len(shapes), shape.name)
            steps: list[Step] = []
            for _ in range(shape.times):
                await self._send(shape)
                taken = await self._replica.take_steps()
                self.gaps_s += [step.gap_s for step in taken[1:]]
                steps += taken
            self.points += points_of(steps)

    @property
    def between_s(self) -> float:
        """The engine's own work between two steps, seconds."""
        return median(self.gaps_s) if self.gaps_s else 0.0

    @property
    def turnaround_s(self) -> float:
        """From the output of a call's last step to the program, and from it to the engine again."""
        return median(self.turnarounds_s) if self.turnarounds_s else 0.0

    async def _send(self, shape: Shape) -> None:
        if shape.calls == shape.output_tokens == 1 and not shape.joining:
            began_s = time.monotonic()
            receipt = await self._call(shape.prompt_tokens, 1)
            in_engine_s = receipt.service_s + receipt.wait_s
            if shape.prompt_tokens <= self._limits.token_budget:
                self.turnarounds_s.append(time.monotonic() - began_s - in_engine_s)
            return
        tasks = [
            asyncio.create_task(self._call(shape.prompt_tokens, shape.output_tokens))
            for _ in range(shape.calls)
        ]
        for tokens in shape.joining:
            await self._call(tokens, 1)
        await asyncio.gather(*tasks)

    def _call(self, prompt_tokens: int, output_tokens: int) -> Coroutine[Any, Any, Receipt]:
        self._serial += 1
        name = f"calibrate-{self._serial}"
        prompt = [self._random.randint(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(prompt_tokens)]
        call = token_call(
            Ticket(program=name, call=name, prompt_tokens=prompt_tokens),
            prompt,
            output_tokens,
            read_prefix_cache=False,
        )

        async def run() -> Receipt:
            receipt = None
            async for chunk in self._replica.generate(call):
                receipt = chunk.receipt
            assert receipt is not None
            return receipt

        return run()


def typical_mean(seconds: Sequence[float]) -> float:
    """The mean without what took three times the median, when something else had the machine.

    Not the median: programs wait for the sum of their steps, and step times are skewed.
    """
    most = _STRAY * median(seconds)
    return fmean(value for value in seconds if value <= most)


def points_of(steps: Sequence[Step]) -> list[Point]:
    """Steps alike put together."""
    groups: dict[tuple[int, int, int], list[Step]] = {}
    for step in steps:
        bucket = step.kv_tokens // _KV_BUCKET if step.prefill_tokens else 0
        groups.setdefault((step.prefill_tokens, step.sequences, bucket), []).append(step)
    points = []
    for (prefill_tokens, sequences, _), group in groups.items():
        # Calls that begin one after the other pass through shapes that nobody asked for.
        if not prefill_tokens and len(group) < _LEAST_STEPS:
            continue
        prefills = fmean(step.prefills for step in group)
        region = "decode" if not prefill_tokens else "mixed" if prefills < sequences else "prefill"
        points.append(
            Point(
                region=region,
                step_s=typical_mean([step.step_s for step in group]),
                prefill_tokens=prefill_tokens,
                sequences=sequences,
                kv_tokens=fmean(step.kv_tokens for step in group),
                prefill_reach=fmean(step.prefill_reach for step in group),
                steps=len(group),
            )
        )
    return points
