"""What the policies are for, on the paper's kind of example, and what they are one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from autellix.errors import SettingsError
from autellix.scheduler.policies import POLICIES, policy_named


@dataclass
class Finished:
    service_s: float = 9.0
    critical_path_s: float = 5.0


@pytest.mark.parametrize(
    ("name", "without_dag", "with_dag"),
    [
        ("fcfs", 0.0, 0.0),
        ("program-fcfs", 0.0, 0.0),
        ("mlfq", 0.0, 0.0),
        ("plas", 9.0, 9.0),
        ("atlas", 5.0, 3.0),
    ],
)
def test_attained_service_of_a_new_call(name: str, without_dag: float, with_dag: float) -> None:
    policy = policy_named(name)
    assert policy.attained(Finished(), None) == without_dag
    assert policy.attained(Finished(), 3.0) == with_dag


def test_under_atlas_a_root_has_attained_nothing() -> None:
    assert policy_named("atlas").attained(Finished(), 0.0) == 0.0


def test_an_unknown_policy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(SettingsError, match="plas, atlas, adaptive, gittins, got 'sjf'"):
        policy_named("sjf")


def test_names_are_unique() -> None:
    assert len({policy.name for policy in POLICIES}) == len(POLICIES)


@pytest.mark.parametrize(
    ("policy", "waited", "ends"),
    [
        ("fcfs", 18, {"A": 17, "B": 12, "C": 6, "D": 12}),
        ("mlfq", 18, {"A": 11, "B": 18, "C": 11, "D": 7}),
        ("plas", 12, {"A": 14, "B": 15, "C": 6, "D": 6}),
    ],
)
def test_program_level_attained_service_waits_least(
    virtual_engine: Callable, policy: str, waited: int, ends: dict[str, int]
) -> None:
    """Four programs on two seats, as in figure 2 of the paper; programs of our own, same sums.

    A makes calls of 2, 3 and 5 steps, B of 6 and 5, C one of 4, D of 1 and 3; the first level's
    quantum is 2 steps, the second's 2 more, and so on twice as much. Digits are numbers of calls::

        fcfs  A 00....111...22222    long calls are in front of short ones:
              B 000000.11111.....    waits 2 + 6 for C, D; 4 + 1 + 2 + 3 for later calls
              C ..0000...........
              D ......0..111.....
        mlfq  A 00.11122222.......   every new call of A is at the top again:
              B 00.....00..0011111   B and C, demoted after 2 steps, wait 7 each
              C ..00.....00.......
              D ..0.111...........
        plas  A 00....11122222.      A and B have attained 2 steps, so C and D go first:
              B 00....000011111      2 + 2 for C, D; 4 + 4 for A and B
              C ..0000.........
              D ..0111.........
    """
    engine = virtual_engine(
        policy=policy,
        seats=2,
        levels=4,
        first_quantum_s=2.0,
        quantum_ratio=2.0,
        beta=math.inf,
        policy_interval=1,
        preempt_gap=1,
        min_run_steps=0,
        patience_steps=0,
    )
    ended = engine.run_programs({"A": [2, 3, 5], "B": [6, 5], "C": [4], "D": [1, 3]})
    assert ended == ends
    assert engine.waited_s == waited
