"""When KV is loaded for a program before it is back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix.scheduler.fetch_ahead import fetch_after_s
from autellix.scheduler.kv_home import PERSON_S

LOAD_S = 0.1
ABSENCES = st.lists(st.floats(0.01, 1e5), min_size=1, max_size=12).map(sorted)


def test_a_load_ends_when_a_tool_that_always_takes_as_long_ends() -> None:
    assert fetch_after_s((3.0,) * 9, LOAD_S, 2.0) == pytest.approx(3.0 - LOAD_S)


def test_while_the_device_has_it_nothing_is_loaded() -> None:
    assert fetch_after_s((3.0,) * 9, LOAD_S, 4.0) == math.inf
    assert fetch_after_s((3.0,) * 9, LOAD_S, 2.95) == 2.95  # it is gone a moment before the return
    assert fetch_after_s((3.0,) * 9, LOAD_S, math.inf) == math.inf


def test_most_of_the_late_returns_decide_not_the_few_latest() -> None:
    usual_then_long = (0.5,) * 3 + (9.0,) * 4 + (60.0,) * 2
    assert fetch_after_s(usual_then_long, LOAD_S, 5.0) == pytest.approx(9.0 - LOAD_S)


def test_of_returns_that_are_as_likely_the_load_serves_as_many_as_it_can_wait_for() -> None:
    spread = tuple(float(s) for s in range(11, 20))
    assert fetch_after_s(spread, LOAD_S, 10.0) == pytest.approx(11.0 - LOAD_S)


def test_for_tools_that_may_take_any_time_others_room_is_not_taken() -> None:
    spread = tuple(float(s) for s in range(11, 20))
    assert fetch_after_s(spread, LOAD_S, 0.5) == math.inf  # it would go itself, mostly
    assert fetch_after_s(PERSON_S, LOAD_S, 10.0) == math.inf


def test_without_knowledge_or_a_link_nothing_is_loaded_ahead() -> None:
    assert fetch_after_s((), LOAD_S, 2.0) == math.inf
    assert fetch_after_s((3.0,) * 9, math.inf, 2.0) == math.inf
    assert fetch_after_s((3.0,) * 9, 0.0, 2.0) == math.inf


@given(ABSENCES, st.floats(1e-3, 10.0), st.floats(0.0, 1e4))
def test_it_begins_between_the_loss_of_the_kv_and_the_last_return(
    absence_s: list[float], load_s: float, device_s: float
) -> None:
    begin_s = fetch_after_s(absence_s, load_s, device_s)
    assert begin_s == math.inf or device_s <= begin_s <= absence_s[-1]
