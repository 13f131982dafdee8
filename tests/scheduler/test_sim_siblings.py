"""Of a program's calls, the one from which most is still to come goes first."""

from __future__ import annotations

from dataclasses import replace

from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.sim_siblings import tokens_to_come
from autellix.scheduler.simulator import Simulation


def call(output: int, *parents: int) -> SimCall:
    return SimCall(parents=parents, prompt_tokens=16, output_tokens=output)


FAN_OUT = SimProgram("p", [call(1), call(2, 0), call(2, 0), call(30, 0), call(1, 1, 2, 3)])


def test_what_is_to_come_is_the_longest_chain_of_tokens() -> None:
    assert tokens_to_come(FAN_OUT) == [32, 3, 3, 31, 1]


def test_with_too_few_seats_for_all_the_barrier_is_reached_sooner() -> None:
    model = EngineModel(
        name="two-seats",
        step=StepTime(a=1.0),
        kv_tokens=4096,
        block_tokens=16,
        seats=2,
        token_budget=64,
        kv_bytes_per_token=1,
        link_bytes_per_s=1.0,
    )
    usual = sim_policy("default")
    ends = {}
    for order in ("core", "siblings"):
        simulation = Simulation(model, replace(usual, order=order))
        ends[order] = simulation.run_offline([FAN_OUT]).ended_s
    assert ends == {"core": 1 + 2 + 30 + 1, "siblings": 1 + 30 + 1}
