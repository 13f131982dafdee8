"""Nobody starves at twice the load that the engine can serve."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler.core import Scheduler
from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.live_call import LiveCall
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import CallRecord, Simulation

SEATS, STEP_S = 4, 1 / 16
MODEL = EngineModel(
    name="test", step=StepTime(a=STEP_S), kv_tokens=40_000, seats=SEATS, token_budget=2_000
)
SETTINGS = {"levels": 4, "first_quantum_s": 1.0, "policy_interval": 4, "beta": 2.0}
LONG = "long"


def arrivals(seed: int, load: float) -> list[tuple[float, SimProgram]]:
    """Short programs that come without end, and a long one among the first of them."""
    rng = Random(seed)
    made: list[tuple[float, SimProgram]] = []
    at_s = 0.0
    for number in range(120):
        name = LONG if number == 3 else f"p{number}"
        calls = [
            SimCall(
                parents=(i - 1,) if i else (),
                prompt_tokens=9,
                output_tokens=rng.randint(5, 30),
                tool_s=rng.choice((0.0, 0.0, 1.0)) if i else 0.0,
            )
            for i in range(20 if name == LONG else rng.randint(1, 5))
        ]
        made.append((at_s, SimProgram(name, calls)))
        at_s += rng.expovariate(load * SEATS / (3 * 17 * STEP_S))
    return made


def starved(core: Scheduler, now: float, beta: float) -> list[LiveCall]:
    """Waiting calls below the best level that the rule should have promoted."""
    found = []
    for call in core.calls.values():
        wait_s = core.wait(call, now) - call.rule_wait_s
        wait_s += call.program.wait_s - call.program.paid_wait_s
        service_s = core.service(call) - call.rule_service_s + call.program.service_s
        due = wait_s >= beta * service_s * (1 + 1e-9) + 1e-9
        if due and call.level and not call.seated:
            found.append(call)
    return found


@pytest.mark.parametrize("policy", ["plas", "atlas", "adaptive"])
@given(seed=st.integers(0, 1_000_000))
@settings(max_examples=15, deadline=None)
def test_after_every_policy_run_no_waiting_call_has_waited_longer_than_its_bound(
    policy: str, seed: int
) -> None:
    simulation = Simulation(MODEL, sim_policy(policy, **SETTINGS))
    core = simulation.replicas[0].core
    tick, runs = core.tick, 0

    def checked(now: float) -> list[LiveCall]:
        nonlocal runs
        runs += 1
        moved = tick(now)
        assert not starved(core, now, core.config.beta)
        return moved

    core.tick = checked  # type: ignore[method-assign]
    simulation.run(arrivals(seed, load=2.0))
    assert runs > 100


def longest_gap_s(policy: str, **settings_: object) -> tuple[float, int]:
    """The longest wait of one call of the long program, and promotions in the whole run."""
    records: list[CallRecord] = []
    simulation = Simulation(
        MODEL, sim_policy(policy, **{**SETTINGS, **settings_}), on_call=records.append
    )
    result = simulation.run(arrivals(7, load=2.0))
    return max(r.receipt.wait_s for r in records if r.program == LONG), result.promotions


def test_promotion_shortens_the_longest_wait_of_a_long_program() -> None:
    with_rule, promotions = longest_gap_s("plas")
    without, none = longest_gap_s("plas", beta=float("inf"))
    assert promotions > 0 and none == 0
    assert with_rule < without


def test_a_wait_that_was_paid_for_is_not_paid_again() -> None:
    """Before each promotion a program waits at least beta times the best level's bound.

    It has had as much service then, or it would still be in the best level.
    """
    records: list[CallRecord] = []
    simulation = Simulation(MODEL, sim_policy("plas", **SETTINGS), on_call=records.append)
    simulation.run(arrivals(7, load=2.0))
    by_program: dict[str, list[CallRecord]] = {}
    for record in records:
        by_program.setdefault(record.program, []).append(record)
    promoted = 0
    for calls in by_program.values():
        times = sum(d.kind == "promotion" for c in calls for d in c.receipt.decisions)
        waited_s = sum(c.receipt.wait_s for c in calls)
        promoted += times
        assert waited_s >= times * SETTINGS["beta"] * SETTINGS["first_quantum_s"] - 1e-9
    assert promoted > 0
