"""Where the KV of a program that is away stays, and what is recorded of tools."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix.scheduler.kv_home import (
    PERSON_S,
    Pressure,
    ReturnCost,
    Turnover,
    expected_s,
    home,
)
from autellix.scheduler.tool_times import ToolTimes

COST = ReturnCost(load_s=0.25, compute_s=4.0)
CALM = Pressure(device_s=math.inf, host_s=math.inf)
# The device overwrites what nobody uses in ten seconds, the host in a minute.
TIGHT = Pressure(device_s=10.0, host_s=60.0)


def about(seconds: float) -> tuple[float, ...]:
    """Deciles of a tool that takes about so long."""
    return tuple(seconds * x for x in (0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.5))


def test_without_pressure_everything_stays_where_it_is() -> None:
    for seconds in (0.1, 1.0, 30.0, 3600.0):
        assert home(about(seconds), CALM, COST) == "keep"
    assert home(PERSON_S, CALM, COST) == "keep"


def test_under_pressure_short_tools_keep_longer_ones_move_and_the_longest_drop() -> None:
    homes = [home(about(seconds), TIGHT, COST) for seconds in (0.1, 1.0, 20.0, 60.0, 300.0)]
    assert homes == ["keep", "keep", "move", "move", "drop"]


def test_who_waits_for_a_person_makes_room_for_others() -> None:
    assert home(PERSON_S, TIGHT, COST) == "drop"


def test_a_tool_of_which_nothing_is_known_changes_nothing() -> None:
    assert home((), TIGHT, COST) == "keep"


def test_what_is_as_soon_computed_as_loaded_is_not_moved() -> None:
    assert home(about(30.0), TIGHT, ReturnCost(load_s=5.0, compute_s=4.0)) == "keep"


def test_the_prices_are_those_of_the_rules() -> None:
    # A third comes back before the device has lost it, a third after the host has, too.
    prices = expected_s((5.0, 30.0, 115.0), TIGHT, COST)
    worth_s = 0.5 * (4.0 - 0.25)
    assert prices["keep"] == pytest.approx(2 / 3 * 0.25 + 1 / 3 * 3.75)
    assert prices["move"] == pytest.approx(2 / 3 * 0.25)  # it stays 50 s of 60 s
    assert prices["drop"] == pytest.approx(4.0 - 50 / 60 * worth_s)


@given(
    st.lists(st.floats(0.01, 1e5), min_size=1, max_size=12).map(sorted),
    st.floats(0.1, 1e4),
    st.floats(0.0, 10.0),
    st.floats(0.0, 10.0),
)
def test_dropping_never_pays_while_the_host_has_room(
    absence_s: list[float], device_s: float, load_s: float, compute_s: float
) -> None:
    pressure = Pressure(device_s=device_s, host_s=math.inf)
    cost = ReturnCost(load_s=load_s, compute_s=compute_s)
    assert home(absence_s, pressure, cost) == "keep"


def test_room_lasts_by_the_rate_at_which_it_was_taken() -> None:
    turnover = Turnover()
    assert turnover.lasts_s(100, 0, 0.0) == math.inf
    assert turnover.lasts_s(100, 50, 10.0) == pytest.approx(100 / 5)
    assert turnover.lasts_s(100, 60, 15.0) == pytest.approx(100 / 5)  # the window is not over
    assert turnover.lasts_s(100, 200, 20.0) == pytest.approx(100 / 10)
    assert turnover.lasts_s(30, 200, 21.0) == pytest.approx(30 / 10)


def test_a_tools_deciles_are_those_of_its_last_durations() -> None:
    times = ToolTimes()
    assert times.deciles_s("grep") == ()
    for seconds in (1.0, 2.0, 3.0):
        times.add("grep", seconds)
    assert times.deciles_s("grep") == ()  # too few
    for seconds in range(100, 0, -1):
        times.add("grep", float(seconds))
    assert times.deciles_s("grep") == (7.0, 13.0, 20.0, 26.0, 33.0, 39.0, 45.0, 52.0, 58.0)
    assert times.deciles_s("make") == ()


def test_of_too_many_tools_the_first_are_forgotten() -> None:
    times = ToolTimes()
    for number in range(1001):
        for _ in range(4):
            times.add(f"tool{number}", 1.0)
    assert times.deciles_s("tool0") == ()
    assert times.deciles_s("tool1") == (1.0,) * 9
