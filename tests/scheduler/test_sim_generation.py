"""Stretches of steps against what happens in each of them."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.prefix_cache import CacheNode
from autellix.scheduler.sim_call import ReplicaCall
from autellix.scheduler.sim_generation import Generation, StepSeries
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import Simulation
from autellix.scheduler.tickets import Ticket

COUNTS = st.integers(1, 400)


@given(st.integers(1, 50), st.integers(0, 5), st.integers(0, 9000), COUNTS)
def test_the_fewest_steps_that_last_as_long_are_found(
    first: int, growth: int, seconds: int, most: int
) -> None:
    series = StepSeries(float(first), float(growth))
    steps, total = 1, first
    while total < seconds and steps < most:
        total += first + growth * steps
        steps += 1
    assert series.until(seconds, most) == steps
    assert series.lasts(steps) == sum(first + growth * i for i in range(steps))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(2, 40)), max_size=6),
    st.integers(0, 40),
    st.integers(1, 60),
    st.integers(0, 60),
)
def test_blocks_of_many_steps_are_those_of_each_step(
    calls: list[tuple[int, int]], start: int, most: int, available: int
) -> None:
    generation = Generation(4)
    for computed, output in calls:
        ticket = Ticket(program="p", call="c", prompt_tokens=computed)
        root = CacheNode(None, 0, 0)
        call = ReplicaCall(None, 0, ticket, output_tokens=output, known_tokens=0, tail=root)
        call.computed, call.generated = computed, 1
        generation.begin(call, start)
    due = [sum((c + step) % 4 == 0 for c, _ in calls) for step in range(most + 1)]
    assert generation.blocks(start, most) == sum(due[:most])
    assert generation.blocks_at(start) == due[0]
    room, left = 1, available
    while room < most and due[room] <= left:
        left -= due[room]
        room += 1
    assert generation.steps_with_room(start, most, available) == room


CALLS = st.tuples(st.integers(0, 90), st.integers(1, 50), st.integers(1, 30))


@settings(deadline=None)
@given(
    st.lists(CALLS, min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(20, 60),
    st.integers(1, 12),
)
def test_a_plain_loop_over_all_steps_and_calls_gives_the_same_times(
    calls: list[tuple[int, int, int]], seats: int, blocks: int, budget: int
) -> None:
    """First come, first served without a prefix cache, written down as simply as it can be."""
    step = StepTime(a=1 / 8, b=1 / 64, c=1 / 32, d=1 / 1024, e=1 / 8192)
    model = EngineModel(
        name="t",
        step=step,
        kv_tokens=4 * blocks,
        block_tokens=4,
        seats=seats,
        token_budget=seats + budget,
    )
    arrivals = [
        (at / 8, SimProgram(str(i), [SimCall(prompt_tokens=prompt, output_tokens=output)]))
        for i, (at, prompt, output) in enumerate(sorted(calls))
    ]
    result = Simulation(model, sim_policy("vllm")).run(arrivals)
    ended = {int(program.name): program.ended_s for program in result.programs}
    assert ended == plain_loop(model, sorted(calls))


class PlainCall:
    def __init__(self, number: int, prompt: int, output: int) -> None:
        self.number = number
        self.context = prompt  # tokens to compute before the next one comes
        self.left = output
        self.computed = 0
        self.blocks = 0
        self.generates = False


def plain_loop(model: EngineModel, calls: list[tuple[int, int, int]]) -> dict[int, float]:
    coming = [(at / 8, PlainCall(i, p, o)) for i, (at, p, o) in enumerate(calls)]
    waiting: list[PlainCall] = []
    running: list[PlainCall] = []
    ended: dict[int, float] = {}
    now = 0.0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            waiting.append(coming.pop(0)[1])
        free = model.blocks - sum(call.blocks for call in running)
        short = False
        for call in [c for c in running if c.generates and c.blocks * 4 == c.computed]:
            while call in running and free < 1:
                worst = max(running, key=lambda c: c.number)
                running.remove(worst)
                waiting.append(worst)
                free += worst.blocks
                worst.computed, worst.blocks, worst.generates, short = 0, 0, False, True
            if call in running:
                call.blocks += 1
                free -= 1
        generating = [c for c in running if c.generates]
        budget = model.token_budget - len(generating)
        tokens = dict.fromkeys(generating, 1)
        waiting.sort(key=lambda c: c.number)
        for call in [c for c in running if c not in tokens]:
            tokens[call] = min(call.context - call.computed, budget)
            budget -= tokens[call]
        while waiting and not short and budget and len(running) < model.seats:
            need = math.ceil(waiting[0].context / 4)
            if need > free:
                break
            call = waiting.pop(0)
            call.blocks, free = need, free - need
            running.append(call)
            tokens[call] = min(call.context, budget)
            budget -= tokens[call]
        prefill = sum(n for call, n in tokens.items() if call not in generating)
        reach = sum(
            n * (call.computed + n / 2) for call, n in tokens.items() if call not in generating
        )
        kv_tokens = sum(call.computed for call in tokens)
        now += model.step.of(prefill, len(tokens), kv_tokens, reach)
        for call, done in tokens.items():
            call.computed += done
            if call.computed == call.context:
                call.context += 1
                call.left -= 1
                call.generates = True
                if not call.left:
                    running.remove(call)
                    ended[call.number] = now
    return ended
