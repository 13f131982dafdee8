"""How many programs a replica can finish in a second, which is what a load of 1 means.

The programs are served by ``vllm-opt`` in a closed loop: a fixed number of them is under way, and
when one ends the next comes. The rate is that of the tokens generated once the loop has settled,
divided by the tokens of a program, and the best over the numbers under way is taken. Tools take no
time here: what they need no engine can shorten.

Serving all programs at once and dividing by the makespan would not do: one long program decides
when the last call ends (ShareGPT's longest chat has 300 turns), and most seats are empty by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from autellix.scheduler.engine_model import EngineModel
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import CallRecord, Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The best rate found.

    Attributes:
        programs_per_s: the rate.
        live: programs under way.
        tried: rate by number of programs under way.
    """

    programs_per_s: float
    live: int
    tried: dict[int, float]


def capacity(
    programs: Sequence[SimProgram], model: EngineModel, *, replicas: int = 1, seed: int = 0
) -> Capacity:
    """Find it by going from a guess to fewer and more programs under way while that helps.

    The guess: as many as there are seats, or as have room for a call of average context.
    """
    engine_bound = [_without_tools(program) for program in programs]
    contexts = [call.prompt_tokens for program in programs for call in program.calls]
    room = model.kv_tokens * len(contexts) // sum(contexts)
    tried: dict[int, float] = {}

    def rate(live: int) -> float:
        if live not in tried:
            tried[live] = closed_loop_rate(engine_bound, model, live, replicas=replicas, seed=seed)
        return tried[live]

    best = max(1, min(room, model.seats) * replicas)
    for step in (1.5, 1.2):
        for factor in (1 / step, step):
            while rate(following := max(1, round(best * factor))) > rate(best):
                best = following
    return Capacity(programs_per_s=tried[best], live=best, tried=dict(sorted(tried.items())))


def closed_loop_rate(
    programs: Sequence[SimProgram],
    model: EngineModel,
    live: int,
    *,
    replicas: int = 1,
    seed: int = 0,
) -> float:
    """Programs a second with so many under way: tokens generated / tokens of a program.

    Counted from the start until the last program comes. Each program comes once in the given order,
    then, where they are fewer than three times those under way, others drawn from them.
    """
    tokens = 0

    def count_tokens(record: CallRecord) -> None:
        nonlocal tokens
        tokens += record.receipt.output_tokens

    simulation = Simulation(model, sim_policy("vllm-opt"), replicas=replicas, on_call=count_tokens)
    each = sum(program.output_tokens for program in programs) / len(programs)
    rate = 0.0

    def feed() -> Iterator[SimProgram]:
        nonlocal rate
        rng = Random(seed)
        for number in range(max(len(programs), 3 * live)):
            program = programs[number % len(programs)]
            if number >= len(programs):
                program = programs[rng.randrange(len(programs))]
            yield program.again(f"{program.name}#{number}")
        rate = tokens / simulation.now / each
        simulation.stop()

    simulation.run_closed(feed(), live)
    return rate


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
        program.name, calls, system=program.system, system_tokens=program.system_tokens
    )
