"""The Gittins index: what it must be for known distributions, and against its definition."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler.gittins import INVERSE_SIZES, gittins_index, places
from autellix.scheduler.life_table import BOUNDS, WIDTHS

ONES = [1.0] * len(BOUNDS)
LITTLE = 1e-30

hazards_of_any_shape = st.lists(
    st.floats(-9, 0).map(lambda exponent: 10**exponent),
    min_size=len(BOUNDS),
    max_size=len(BOUNDS),
)


def by_definition(hazards: list[float], earnings: list[float], start: int) -> float:
    """The best rate over every bound at which serving may stop."""
    best, alive, earned, cost = 0.0, 1.0, 0.0, 0.0
    for k in range(start, len(BOUNDS)):
        ends = -math.expm1(-hazards[k] * WIDTHS[k])
        earned += alive * ends * earnings[k]
        cost += alive * ends / hazards[k]
        alive *= 1 - ends
        best = max(best, earned / cost)
    return best


@settings(deadline=None, max_examples=50)
@given(hazards_of_any_shape)
def test_the_linear_algorithm_finds_the_best_stop_of_all(hazards: list[float]) -> None:
    for earnings in (ONES, list(INVERSE_SIZES)):
        found = gittins_index(hazards, earnings)
        for start in range(len(BOUNDS)):
            assert found[start] == pytest.approx(by_definition(hazards, earnings, start))


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-6, 1e-2))
def test_with_exponential_sizes_the_plain_index_is_constant(hazard: float) -> None:
    found = gittins_index([hazard] * len(BOUNDS), ONES)
    assert found == pytest.approx([hazard] * len(BOUNDS))


@settings(deadline=None, max_examples=50)
@given(st.integers(4, len(BOUNDS) - 2))
def test_with_sizes_all_alike_a_program_stands_the_better_the_more_it_has_done(end: int) -> None:
    hazards = [LITTLE] * end + [1.0] * (len(BOUNDS) - end)
    size = BOUNDS[end]
    before_the_end = places(hazards)[:end]
    assert all(later < sooner for sooner, later in pairwise(before_the_end))
    assert before_the_end[0] == pytest.approx(size, rel=0.25)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.3, 3.0))
def test_with_a_pareto_tail_a_program_stands_the_worse_the_more_it_has_done(tail: float) -> None:
    hazards = [tail * rate for rate in INVERSE_SIZES]
    found = places(hazards)
    assert all(later > sooner for sooner, later in pairwise(found))
    # In proportion to what it has done: attained-service order.
    shares = [place / low for place, low in zip(found[8:-8], BOUNDS[8:-8], strict=True)]
    assert max(shares) < 1.05 * min(shares)


def test_of_two_kinds_the_one_that_is_soon_through_goes_first() -> None:
    hazards = {size: [LITTLE] * size + [1.0] * (len(BOUNDS) - size) for size in (10, 20)}
    assert places(hazards[10])[0] < places(hazards[20])[0]
    # Until the longer one has so little left that it is the next to end.
    assert places(hazards[20])[19] > places(hazards[10])[9]
    assert places(hazards[20])[0] > places(hazards[20])[19]


def test_a_program_that_is_short_or_long_stands_worse_once_it_is_known_to_be_long() -> None:
    half = -math.log(0.5) / WIDTHS[8]
    hazards = [LITTLE] * 8 + [half] + [LITTLE] * 15 + [1.0] * (len(BOUNDS) - 24)
    found = places(hazards)
    assert found[0] < found[9] / 10
