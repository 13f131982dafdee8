"""One greedy tenant and nine modest ones, on a modelled engine under several times its capacity."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import Simulation

MODEL = EngineModel(
    name="small",
    step=StepTime(a=0.01, b=2e-5, c=1e-5, d=1e-7, e=0.0),
    seats=32,
    kv_tokens=60_000,
    block_tokens=16,
    token_budget=2048,
)
MODEST = [f"modest-{number}" for number in range(9)]
RUN_S = 120.0
Arrivals = list[tuple[float, SimProgram]]


def modest() -> Iterator[tuple[float, SimProgram]]:
    """Each has an agent of four calls every 10 s: all nine together a fraction of the engine."""
    for place, tenant in enumerate(MODEST):
        for number in range(10):
            calls = [
                SimCall(
                    parents=(index - 1,) if index else (),
                    prompt_tokens=500 + 150 * index,
                    output_tokens=50,
                    shared_prefix_tokens=150 * index + 350 if index else 0,
                )
                for index in range(4)
            ]
            yield place + 10.0 * number, SimProgram(f"{tenant}/{number}", calls, tenant=tenant)


def greedy(count: int, prompt: int) -> Iterator[tuple[float, SimProgram]]:
    """So many programs at once, each of one call that follows nothing."""
    for number in range(count):
        call = SimCall(prompt_tokens=prompt, output_tokens=200)
        yield 0.0, SimProgram(f"greedy/{number}", [call], tenant="greedy")


def without_tenants(arrivals: Arrivals) -> Arrivals:
    """The same programs, all on behalf of one."""
    plain = []
    for at_s, program in arrivals:
        other = program.again(program.name)
        other.tenant = ""
        plain.append((at_s, other))
    return plain


def latencies(policy: str, arrivals: Arrivals) -> dict[str, list[float]]:
    """Response times by tenant."""
    simulation = Simulation(MODEL, sim_policy(policy))
    result = simulation.run(sorted(arrivals, key=lambda arrival: arrival[0]))
    found: dict[str, list[float]] = {}
    for program in result.programs:
        found.setdefault(program.name.split("/")[0], []).append(program.response_s)
    return found


@pytest.mark.parametrize("policy", ["default", "plas", "atlas", "vllm-opt"])
@pytest.mark.parametrize(("count", "prompt"), [(3_000, 300), (400, 6_000)], ids=["calls", "kv"])
def test_modest_tenants_do_not_feel_a_greedy_one(policy: str, count: int, prompt: int) -> None:
    alone = latencies(policy, list(modest()))
    beside = latencies(policy, [*modest(), *greedy(count, prompt)])
    assert len(beside["greedy"]) == count, "the greedy one is served as well"
    for tenant in MODEST:
        assert statistics.median(beside[tenant]) < 6 * statistics.median(alone[tenant])
    everybodys = [each for tenant in MODEST for each in beside[tenant]]
    assert statistics.median(everybodys) < statistics.median(beside["greedy"]) / 4


@pytest.mark.parametrize("policy", ["default", "vllm-opt"])
def test_without_tenants_they_would(policy: str) -> None:
    alone = latencies(policy, list(modest()))
    beside = latencies(policy, without_tenants([*modest(), *greedy(3_000, 300)]))
    slower = [statistics.median(beside[t]) / statistics.median(alone[t]) for t in MODEST]
    assert min(slower) > 10
