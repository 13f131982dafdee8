"""The simulator against queueing theory: one seat, or a processor shared by all."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import islice

import pytest

from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import SimResult, Simulation

STEP_S = 0.001
PROGRAMS = 30_000


def poisson(rate: float, outputs: Iterator[int], seed: int) -> Iterator[tuple[float, SimProgram]]:
    """Programs of one call with a prompt of one token; output lengths as given."""
    rng = random.Random(seed)
    at_s = 0.0
    for number in range(PROGRAMS):
        at_s += rng.expovariate(rate)
        call = SimCall(prompt_tokens=1, output_tokens=next(outputs))
        yield at_s, SimProgram(f"p{number}", [call])


def engine(seats: int, step: StepTime) -> EngineModel:
    return EngineModel(
        name="test", step=step, kv_tokens=1 << 30, seats=seats, token_budget=seats + 4096
    )


def mean_response_s(result: SimResult) -> float:
    return sum(program.response_s for program in result.programs) / len(result.programs)


def exponential(mean_tokens: int, seed: int) -> Iterator[int]:
    rng = random.Random(seed)
    while True:
        yield max(1, round(rng.expovariate(1 / mean_tokens)))


def fixed(tokens: int) -> Iterator[int]:
    while True:
        yield tokens


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_seat_and_equal_calls_wait_as_in_an_m_d_1_queue(load: float) -> None:
    service_s = 100 * STEP_S
    simulation = Simulation(engine(1, StepTime(a=STEP_S)), sim_policy("vllm-opt"))
    result = simulation.run(poisson(load / service_s, fixed(100), seed=1))
    expected_s = service_s * (1 + load / (2 * (1 - load)))
    assert mean_response_s(result) == pytest.approx(expected_s, rel=0.03)


def test_one_seat_and_exponential_calls_wait_as_in_an_m_m_1_queue() -> None:
    load, service_s = 0.5, 300 * STEP_S
    simulation = Simulation(engine(1, StepTime(a=STEP_S)), sim_policy("vllm-opt"))
    result = simulation.run(poisson(load / service_s, exponential(300, seed=2), seed=1))
    assert mean_response_s(result) == pytest.approx(service_s / (1 - load), rel=0.03)


@pytest.mark.parametrize("load", [0.8, 0.95])
def test_one_seat_serves_each_call_when_the_one_before_it_has_ended(load: float) -> None:
    """Lindley's recursion, call by call."""
    arrivals = [*islice(poisson(load / 0.3, exponential(300, seed=2), seed=1), 5000)]
    simulation = Simulation(engine(1, StepTime(a=STEP_S)), sim_policy("vllm-opt"))
    ended = {p.name: p.ended_s for p in simulation.run(arrivals).programs}
    free_s = 0.0
    for at_s, program in arrivals:
        free_s = max(free_s, at_s) + program.output_tokens * STEP_S
        assert ended[program.name] == pytest.approx(free_s, abs=1e-6)


def test_a_step_that_grows_with_its_calls_shares_the_processor() -> None:
    """Processor sharing: a call's mean response is its size / (1 - load), whatever its size."""
    load, token_s = 0.5, STEP_S
    model = engine(2000, StepTime(a=1e-9, c=token_s))
    sizes = two_sizes(seed=3)
    mean_s = 100 * token_s
    simulation = Simulation(model, sim_policy("vllm-opt"))
    result = simulation.run(poisson(load / mean_s, sizes, seed=5))
    for tokens in (50, 150):
        responses = [p.response_s for p in result.programs if p.output_tokens == tokens]
        mean = sum(responses) / len(responses)
        assert mean == pytest.approx(tokens * token_s / (1 - load), rel=0.03)


def test_many_levels_serve_the_least_attained_service_first() -> None:
    """Foreground-background: E[T(x)] = (W(x) + x) / (1 - rho(x)), with all sizes cut off at x.

    A level is a thirteenth wider than the one before, so this only comes near it.
    """
    rate = 0.6 / 0.1
    result = serve_least_attained(
        rate, levels=54, first_quantum_s=10 * STEP_S, quantum_ratio=14 / 13
    )
    for size in (50, 150):
        _, rho, square = moments(rate, cut_s=size * STEP_S)
        expected_s = (square / 2 / (1 - rho) + size * STEP_S) / (1 - rho)
        assert mean_of(result, size) == pytest.approx(expected_s, rel=0.05), size


def serve_least_attained(rate: float, programs: int = 12_000, **levels: object) -> SimResult:
    """One seat, which the call in the best level takes at every step."""
    policy = sim_policy(
        "mlfq",
        beta=math.inf,
        policy_interval=1,
        preempt_gap=1,
        min_run_steps=0,
        patience_steps=0,
        **levels,
    )
    simulation = Simulation(engine(1, StepTime(a=STEP_S)), policy)
    return simulation.run(islice(poisson(rate, two_sizes(seed=4), seed=6), programs))


def moments(rate: float, cut_s: float) -> tuple[float, float, float]:
    """Rate times the mean powers (0, 1, 2) of the two sizes, cut off."""
    sizes = ((0.5, min(0.050, cut_s)), (0.5, min(0.150, cut_s)))
    powers = [rate * sum(share * size**power for share, size in sizes) for power in (0, 1, 2)]
    return powers[0], powers[1], powers[2]


def mean_of(result: SimResult, tokens: int) -> float:
    responses = [p.response_s for p in result.programs if p.output_tokens == tokens]
    return sum(responses) / len(responses)


def two_sizes(seed: int) -> Iterator[int]:
    """50 tokens or 150, as often the one as the other."""
    rng = random.Random(seed)
    while True:
        yield 150 if rng.random() < 0.5 else 50
