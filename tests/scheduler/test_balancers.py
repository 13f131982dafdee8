"""Where calls go: Algorithm 2 and the baselines."""

from __future__ import annotations

import math

import pytest

from autellix.errors import EngineStoppedError, SettingsError
from autellix.scheduler.balancers import BALANCER_NAMES, ProgramLocality, balancer_named
from autellix.scheduler.tickets import Ticket


def call(prompt_tokens: int, program: str = "p") -> Ticket:
    return Ticket(program=program, call=f"{program}/{prompt_tokens}", prompt_tokens=prompt_tokens)


def test_a_short_prompt_goes_to_the_least_used_replica_wherever_its_program_is() -> None:
    balancer = ProgramLocality()
    assert balancer.place(call(5000), [3, 1, 2]) == 1
    assert balancer.place(call(2048), [0, 9, 2]) == 0


def test_a_long_prompt_goes_to_its_program_s_replica() -> None:
    balancer = ProgramLocality()
    assert balancer.place(call(2049), [3, 1, 2]) == 1
    assert balancer.place(call(9000), [0, 99, 0]) == 1


def test_a_short_prompt_gives_its_program_no_replica() -> None:
    balancer = ProgramLocality()
    assert balancer.place(call(10), [3, 1, 2]) == 1
    assert balancer.place(call(9000), [0, 5, 5]) == 0


def test_a_program_that_has_ended_is_forgotten() -> None:
    balancer = ProgramLocality()
    balancer.place(call(9000), [1, 0])
    balancer.program_ended("p")
    assert balancer.place(call(9000), [0, 1]) == 0


def test_a_program_whose_replica_is_gone_moves_and_stays_there() -> None:
    balancer = ProgramLocality()
    assert balancer.place(call(9000), [0, 1]) == 0
    assert balancer.place(call(9000), [math.inf, 1]) == 1
    assert balancer.place(call(9000), [0, 1]) == 1


def test_round_robin_takes_turns_and_passes_over_replicas_that_are_gone() -> None:
    balancer = balancer_named("round-robin")
    assert [balancer.place(call(9), [0, math.inf, 0]) for _ in range(4)] == [0, 2, 0, 2]


def test_least_used_takes_the_first_of_equals() -> None:
    balancer = balancer_named("least-used")
    assert balancer.place(call(9000), [2, 1, 1]) == 1


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_a_replica_that_takes_no_calls_gets_none(name: str) -> None:
    balancer = balancer_named(name)
    found = [balancer.place(call(9000, f"p{i}"), [math.inf, 5, math.inf]) for i in range(4)]
    assert found == [1, 1, 1, 1]


@pytest.mark.parametrize("name", BALANCER_NAMES)
def test_without_a_replica_there_is_no_place(name: str) -> None:
    with pytest.raises(EngineStoppedError, match="no replica can take calls"):
        balancer_named(name).place(call(9000), [math.inf, math.inf])


def test_an_unknown_balancer_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match="expected-cost, program, least-used, round-robin"):
        balancer_named("random")
