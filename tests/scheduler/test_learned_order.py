"""Policies that learn, in the simulator: right in both extremes, and blind to the future."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.service_history import ServiceHistory
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import CallRecord, Simulation

MODEL = EngineModel(
    name="few seats", step=StepTime(a=0.01), kv_tokens=1 << 20, seats=4, token_budget=512
)
Arrivals = list[tuple[float, SimProgram]]


def chain(number: int, calls: int, kind: str = "agent") -> SimProgram:
    call = SimCall(parents=(), prompt_tokens=8, output_tokens=50)
    later = [
        SimCall(parents=(i,), prompt_tokens=8, output_tokens=50, shared_prefix_tokens=8)
        for i in range(calls - 1)
    ]
    return SimProgram(f"p{number}", [call, *later], kind=kind)


def arrivals(sizes: list[int], load: float) -> Arrivals:
    """Programs of so many calls each, at a share of what the seats can serve."""
    rng = Random("arrivals")
    gap_s = 0.5 * fmean(sizes) / 4 / load
    at_s, coming = 0.0, []
    for number, size in enumerate(sizes):
        at_s += rng.expovariate(1 / gap_s)
        coming.append((at_s, chain(number, size)))
    return coming


def latency_s(policy: str, coming: Arrivals, history: ServiceHistory | None = None) -> float:
    result = Simulation(MODEL, sim_policy(policy), history=history).run(coming)
    return fmean(program.token_latency_s for program in result.programs)


def alike() -> Arrivals:
    rng = Random("alike")
    return arrivals([rng.randint(18, 22) for _ in range(250)], load=1.2)


def long_tailed() -> Arrivals:
    rng = Random("long-tailed")
    return arrivals([min(400, int(rng.paretovariate(1.1))) for _ in range(400)], load=1.2)


def test_alike_programs_go_one_after_the_other_without_being_told() -> None:
    coming = alike()
    adaptive = latency_s("adaptive", coming)
    assert adaptive <= 1.05 * latency_s("program-fcfs", coming)
    assert adaptive < 0.8 * latency_s("plas", coming)


def test_long_tailed_programs_go_by_attained_service_without_being_told() -> None:
    coming = long_tailed()
    adaptive = latency_s("adaptive", coming)
    assert adaptive <= 1.15 * latency_s("plas", coming)
    assert adaptive < 0.5 * latency_s("program-fcfs", coming)


@pytest.mark.parametrize("make", [alike, long_tailed])
def test_a_history_does_not_harm(make: object) -> None:
    coming = make()  # type: ignore[operator]
    history = ServiceHistory()
    earlier = Simulation(MODEL, sim_policy("adaptive"), history=history)
    earlier.run(coming)
    learned = sum(history.names["agent"].ends)
    assert learned == len(coming)
    assert latency_s("gittins", coming, history) <= 1.05 * latency_s("adaptive", coming)


def test_the_order_does_not_depend_on_what_has_not_happened_yet() -> None:
    """Programs that have not ended by some moment go on for longer: up to there nothing changes."""
    coming = long_tailed()
    until_s = coming[150][0]

    def calls_until(programs: Arrivals) -> tuple[list[CallRecord], set[str]]:
        seen: list[CallRecord] = []
        result = Simulation(MODEL, sim_policy("adaptive"), on_call=seen.append).run(programs)
        over = {program.name for program in result.programs if program.ended_s <= until_s}
        return [record for record in seen if record.ended_s <= until_s], over

    before, over = calls_until(coming)
    longer = [
        (at_s, program if program.name in over else chain(number, len(program.calls) + 7))
        for number, (at_s, program) in enumerate(coming)
    ]
    after, _ = calls_until(longer)
    assert 0 < len(over) < 140, "some have ended, some are under way"
    assert after == before
