"""Settings are checked where they are made; levels are adjacent and follow the engine."""

from __future__ import annotations

import json
import math

import pytest

from autellix.errors import SettingsError
from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.levels import Levels, TypicalStep


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("policy", "sjf", "policy must be one of"),
        ("levels", 0, "levels must be a whole number >= 1, got 0; for plain first come"),
        ("levels", 2.5, "levels must be a whole number"),
        ("first_quantum_s", 0, "first_quantum_s must be > 0, got 0"),
        ("quantum_steps", 0, "quantum_steps must be a whole number >= 1"),
        ("quantum_ratio", 1.0, "quantum_ratio must be > 1, got 1.0"),
        ("expected_step_s", -1, "expected_step_s must be > 0"),
        ("beta", 0, "beta must be > 0, got 0"),
        ("beta", math.nan, "beta must be > 0, got nan"),
        ("policy_interval", 0, "policy_interval must be a whole number >= 1"),
        ("preempt_gap", 0, "preempt_gap must be a whole number >= 1, got 0; to switch"),
        ("min_run_steps", -1, "min_run_steps must be"),
        ("patience_steps", -1, "patience_steps must be"),
        ("kept_decisions", 1, "kept_decisions must be"),
        ("replica", True, "replica must be"),
    ],
)
def test_an_impossible_setting_is_refused_with_a_remedy(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        SchedulerConfig(**{name: value})  # type: ignore[arg-type]


def test_settings_survive_the_way_into_the_engine_process() -> None:
    config = SchedulerConfig(policy="plas", beta=math.inf, first_quantum_s=0.25, replica=2)
    assert SchedulerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert SchedulerConfig.from_dict({}) == SchedulerConfig()


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="no setting 'quanta'; it has policy, program_ties"):
        SchedulerConfig.from_dict({"quanta": 3})


def test_levels_are_half_open_and_adjacent_and_the_last_has_no_end() -> None:
    levels = Levels((1.0, 3.0, 9.0))
    assert [levels.of(s) for s in (0.0, 0.99, 1.0, 2.99, 3.0, 9.0, 1e12)] == [0, 0, 1, 1, 2, 3, 3]
    assert levels.quanta == (1.0, 2.0, 6.0, math.inf)


def test_one_level_holds_everything() -> None:
    levels = Levels(())
    assert levels.of(1e9) == 0 and levels.quanta == (math.inf,)


def test_the_first_quantum_is_so_many_typical_steps_unless_it_is_given() -> None:
    derived = SchedulerConfig(levels=3, quantum_steps=10, quantum_ratio=3)
    assert Levels.derive(derived, 0.5).bounds == (5.0, 15.0)
    given = SchedulerConfig(levels=3, first_quantum_s=2.0, quantum_ratio=3)
    assert Levels.derive(given, 0.5).bounds == (2.0, 6.0)


@pytest.mark.parametrize("step_s", [0.010, 0.015, 0.020])
def test_by_default_the_highest_finite_bound_tells_long_programs_apart(step_s: float) -> None:
    assert Levels.derive(SchedulerConfig(), step_s).bounds[-1] >= 128


def test_the_typical_step_is_a_median_so_that_a_long_prefill_does_not_count() -> None:
    typical = TypicalStep()
    for i in range(16):
        assert typical.step_s == 0.0
        typical.add(5.0 if i % 5 == 0 else 0.02)
    assert typical.step_s == 0.02


def test_bounds_follow_only_when_the_step_has_moved_by_half() -> None:
    typical = TypicalStep()
    assert not typical.has_left(1.0), "nothing is measured yet"
    for _ in range(16):
        typical.add(0.3)
    for reference_s, left in (
        (0.19, True),
        (0.21, False),
        (0.3, False),
        (0.44, False),
        (0.46, True),
    ):
        assert typical.has_left(reference_s) is left
