"""The simulator against queueing theory: one seat, or a processor shared by all."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from statistics import fmean

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


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_seat_and_exponential_calls_wait_as_in_an_m_m_1_queue(load: float) -> None:
    """With Lindley's recursion, whose mean is known, as control variate."""
    service_s = 300 * STEP_S
    arrivals = [*islice(poisson(load / service_s, exponential(300, seed=2), seed=1), 5000)]
    simulation = Simulation(engine(1, StepTime(a=STEP_S)), sim_policy("vllm-opt"))
    sampled_s = mean_response_s(simulation.run(arrivals))
    jobs = [(at_s, program.output_tokens * STEP_S) for at_s, program in arrivals]
    expected_s = service_s / (1 - load)
    controlled_s = sampled_s - fmean(lindley(jobs)) + expected_s
    assert controlled_s == pytest.approx(expected_s, rel=0.03)


def test_lindley_s_recursion_has_the_mean_of_an_m_m_1_queue() -> None:
    rng = random.Random(3)
    clock = accumulate(rng.expovariate(0.8) for _ in range(1_000_000))
    responses = lindley((at_s, rng.expovariate(1.0)) for at_s in clock)
    assert fmean(responses) == pytest.approx(1 / (1 - 0.8), rel=0.03)


def lindley(jobs: Iterable[tuple[float, float]]) -> Iterator[float]:
    """Responses of jobs (arrival, size) that one server takes as they come."""
    free_s = 0.0
    for at_s, size_s in jobs:
        free_s = max(free_s, at_s) + size_s
        yield free_s - at_s


@pytest.mark.parametrize("load", [0.8, 0.95])
def test_one_seat_serves_each_call_when_the_one_before_it_has_ended(load: float) -> None:
    arrivals = [*islice(poisson(load / 0.3, exponential(300, seed=2), seed=1), 5000)]
    simulation = Simulation(engine(1, StepTime(a=STEP_S)), sim_policy("vllm-opt"))
    ended = {p.name: p.ended_s for p in simulation.run(arrivals).programs}
    jobs = [(at_s, program.output_tokens * STEP_S) for at_s, program in arrivals]
    for (at_s, program), response_s in zip(arrivals, lindley(jobs), strict=True):
        assert ended[program.name] == pytest.approx(at_s + response_s, abs=1e-6)


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


LEAST_ATTAINED_RATE = 0.6 / 0.1


def test_many_levels_serve_the_least_attained_service_first() -> None:
    """Foreground-background, with the queue without an engine as control variate."""
    arrivals = [*islice(poisson(LEAST_ATTAINED_RATE, two_sizes(seed=4), seed=6), 1000)]
    result = serve_least_attained(
        arrivals, levels=120, first_quantum_s=2 * STEP_S, quantum_ratio=1.04
    )
    control = foreground_background(
        (at_s, program.output_tokens * STEP_S) for at_s, program in arrivals
    )
    for size in (50, 150):
        expected_s = mean_of_least_attained(size * STEP_S)
        controlled_s = mean_of(result, size) - mean_of_size(control, size) + expected_s
        assert controlled_s == pytest.approx(expected_s, rel=0.03), size


def test_foreground_background_has_the_means_that_theory_says() -> None:
    rng = random.Random(8)
    clock = accumulate(rng.expovariate(LEAST_ATTAINED_RATE) for _ in range(60_000))
    found = foreground_background((at_s, rng.choice((0.05, 0.15))) for at_s in clock)
    for size in (50, 150):
        expected_s = mean_of_least_attained(size * STEP_S)
        assert mean_of_size(found, size) == pytest.approx(expected_s, rel=0.03)


def serve_least_attained(
    arrivals: Sequence[tuple[float, SimProgram]], **levels: object
) -> SimResult:
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
    return Simulation(engine(1, StepTime(a=STEP_S)), policy).run(arrivals)


def foreground_background(jobs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Size and response of each job of one server shared by those with the least attained service.

    Jobs with as much attained stand in a group; the server works on the first group alone until a
    job comes, one of the group is through, or the group has caught up with the next.
    """
    done: list[tuple[float, float]] = []
    groups: list[tuple[float, list[tuple[float, float]]]] = []
    coming, now = iter(jobs), 0.0
    arrival = next(coming, None)
    while groups or arrival is not None:
        if groups:
            attained_s, group = groups.pop(0)
            target_s = min(size_s for size_s, _ in group)
            if groups:
                target_s = min(target_s, groups[0][0])
            end_s = now + (target_s - attained_s) * len(group)
            if arrival is None or arrival[0] >= end_s:
                now = end_s
                done += [(size_s, now - at_s) for size_s, at_s in group if size_s == target_s]
                left = [job for job in group if job[0] > target_s]
                if groups and groups[0][0] == target_s:
                    groups[0][1].extend(left)
                elif left:
                    groups.insert(0, (target_s, left))
                continue
            groups.insert(0, (attained_s + (arrival[0] - now) / len(group), group))
        assert arrival is not None
        now = arrival[0]
        groups.insert(0, (0.0, [(arrival[1], now)]))
        arrival = next(coming, None)
    return done


def mean_of_least_attained(size_s: float) -> float:
    """E[T(x)] = (W(x) + x) / (1 - rho(x)), with all sizes cut off at x."""
    _, rho, square = moments(LEAST_ATTAINED_RATE, cut_s=size_s)
    return (square / 2 / (1 - rho) + size_s) / (1 - rho)


def moments(rate: float, cut_s: float) -> tuple[float, float, float]:
    """Rate times the mean powers (0, 1, 2) of the two sizes, cut off."""
    sizes = ((0.5, min(0.050, cut_s)), (0.5, min(0.150, cut_s)))
    powers = [rate * sum(share * size**power for share, size in sizes) for power in (0, 1, 2)]
    return powers[0], powers[1], powers[2]


def mean_of(result: SimResult, tokens: int) -> float:
    return fmean(p.response_s for p in result.programs if p.output_tokens == tokens)


def mean_of_size(done: Iterable[tuple[float, float]], tokens: int) -> float:
    return fmean(response_s for size_s, response_s in done if round(size_s / STEP_S) == tokens)


def two_sizes(seed: int) -> Iterator[int]:
    """50 tokens or 150, as often the one as the other."""
    rng = random.Random(seed)
    while True:
        yield 150 if rng.random() < 0.5 else 50
