"""Of a program's calls, the one from which most is still to come, or is expected to, goes first."""

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


TWO_SEATS = EngineModel(
    name="two-seats",
    step=StepTime(a=1.0),
    kv_tokens=4096,
    block_tokens=16,
    seats=2,
    token_budget=64,
    kv_bytes_per_token=1,
    link_bytes_per_s=1.0,
)


def test_with_too_few_seats_for_all_the_barrier_is_reached_sooner() -> None:
    usual = sim_policy("default")
    ends = {}
    for order in ("core", "siblings"):
        simulation = Simulation(TWO_SEATS, replace(usual, order=order))
        ends[order] = simulation.run_offline([FAN_OUT]).ended_s
    assert ends == {"core": 1 + 2 + 30 + 1, "siblings": 1 + 30 + 1}


def fan_out(name: str) -> SimProgram:
    nodes = ("plan", "check", "check", "write", "sum up")
    calls = [replace(call, node=node) for call, node in zip(FAN_OUT.calls, nodes, strict=True)]
    return SimProgram(name, calls, kind="fan-out")


def test_what_one_program_teaches_the_next_one_gains() -> None:
    simulation = Simulation(TWO_SEATS, sim_policy("default"))
    result = simulation.run([(0.0, fan_out("first")), (100.0, fan_out("second"))])
    assert [program.ended_s for program in result.programs] == [34.0, 100.0 + 32.0]


def test_a_chain_takes_in_the_tools_on_its_way() -> None:
    calls = [replace(call(3), node="ask"), replace(call(2, 0), node="use", tool_s=40.0)]
    simulation = Simulation(TWO_SEATS, sim_policy("default"))
    simulation.run([(0.0, SimProgram("p", calls, kind="agent"))])
    history = simulation.table.history
    assert (history.to_come_s("agent", "ask"), history.to_come_s("agent", "use")) == (45.0, 2.0)


def test_without_the_rule_nothing_is_gained() -> None:
    simulation = Simulation(TWO_SEATS, sim_policy("default", critical_calls_first=False))
    result = simulation.run([(0.0, fan_out("first")), (100.0, fan_out("second"))])
    assert [program.ended_s for program in result.programs] == [34.0, 134.0]
