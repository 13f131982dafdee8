"""Capacity: how many programs an engine can finish in a second, which is what a load of 1 means.

**Definition.** Programs are served by ``vllm-opt`` in a closed loop: a fixed number of them is
under way, and when one ends the next comes. The loop's rate is

    tokens generated until the last program comes / the time until then / tokens of a program

(the mean over the programs), and the capacity is the best rate over the numbers under way. Tools
take no time here: what they need no engine can shorten. Each program comes once in the given order,
then, where they are fewer than three times those under way, others drawn from them.

It is the rate at which the engine finishes the workload when there is always enough to do. Serving
all programs at once and dividing by the makespan would measure something else: how long the longest
chain of calls is (ShareGPT's longest chat has 80 turns), since most seats are empty by the end.

This is the one place that measures capacity; every benchmark's load, on a simulated engine or on
the real one, is a rate divided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from autellix.scheduler.sim_programs import SimCall, SimProgram


class ClosedLoop(Protocol):
    """An engine that serves ``vllm-opt`` in a closed loop."""

    def run_closed(
        self, programs: Iterator[SimProgram], live: int, on_tokens: Callable[[int], None]
    ) -> None:
        """Serve programs so that ``live`` are under way; end when there are no more to come."""
        ...

    def now(self) -> float:
        """The engine's clock while it does so, seconds from any moment before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The best rate found.

    Attributes:
        programs_per_s: the rate.
        live: programs under way.
        tried: numbers of programs under way, and their rates.
    """

    programs_per_s: float
    live: int
    tried: Sequence[tuple[int, float]]


def capacity(
    engine: ClosedLoop, programs: Sequence[SimProgram], *, guess: int, seed: int = 0
) -> Capacity:
    """Find it by going from a guess to fewer and more programs under way while that helps.

    Args:
        guess: programs under way to begin with; see :func:`room_for`.
        seed: of the draws.
    """
    tried: dict[int, float] = {}

    def rate(live: int) -> float:
        if live not in tried:
            tried[live] = closed_loop_rate(engine, programs, live, seed=seed)
        return tried[live]

    best = max(1, guess)
    for step in (1.5, 1.2):
        for factor in (1 / step, step):
            while rate(following := max(1, round(best * factor))) > rate(best):
                best = following
    return Capacity(programs_per_s=tried[best], live=best, tried=sorted(tried.items()))


def closed_loop_rate(
    engine: ClosedLoop, programs: Sequence[SimProgram], live: int, *, seed: int = 0
) -> float:
    """Programs a second with so many under way; see the definition above."""
    tokens = 0
    rate = 0.0

    def count(output_tokens: int) -> None:
        nonlocal tokens
        tokens += output_tokens

    def feed() -> Iterator[SimProgram]:
        nonlocal rate
        rng, began_s = Random(seed), engine.now()
        for number in range(max(len(programs), 3 * live)):
            program = programs[number % len(programs)]
            if number >= len(programs):
                program = programs[rng.randrange(len(programs))]
            yield program.again(f"{program.name}#{number}")
        rate = tokens / (engine.now() - began_s)

    engine.run_closed(feed(), live, count)
    return rate / (sum(program.output_tokens for program in programs) / len(programs))


def room_for(programs: Sequence[SimProgram], *, seats: int, kv_tokens: int) -> int:
    """As many programs as there are seats, or as there is room for calls of average context."""
    contexts = [call.prompt_tokens for program in programs for call in program.calls]
    return max(1, min(kv_tokens * len(contexts) // sum(contexts), seats))


def without_tools(programs: Sequence[SimProgram]) -> list[SimProgram]:
    """The programs with tools that take no time."""
    return [_without_tools(program) for program in programs]


def _without_tools(program: SimProgram) -> SimProgram:
    if not any(call.tool_s for call in program.calls):
        return program
    calls = [
        SimCall(
            parents=call.parents,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            shared_prefix_tokens=call.shared_prefix_tokens,
        )
        for call in program.calls
    ]
    return SimProgram(
        program.name,
        calls,
        system=program.system,
        system_tokens=program.system_tokens,
        kind=program.kind,
    )
