"""Distributions of durations: close to the truth, mergeable, small."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from autellix.runtime.journal_durations import Durations

seconds = st.floats(1e-6, 1e6)
several = st.lists(seconds, min_size=1, max_size=200)


def durations(values: list[float]) -> Durations:
    made = Durations()
    for value in values:
        made.add(value)
    return made


@given(several, st.floats(0, 1))
def test_a_quantile_is_within_five_percent_of_a_value_that_came_in(
    values: list[float], share: float
) -> None:
    found = durations(values).quantile_s(share)
    exact = sorted(values)[int(share * (len(values) - 1))]
    assert abs(found - exact) <= 0.0501 * exact


@given(several, several)
def test_merging_is_the_same_as_having_seen_both(one: list[float], other: list[float]) -> None:
    merged = durations(one)
    merged.merge(durations(other))
    together = durations(one + other)
    assert len(merged) == len(together)
    assert merged.quantile_s(0.5) == together.quantile_s(0.5)
    assert abs(merged.sum_s - together.sum_s) <= 1e-9 * together.sum_s


@given(several)
def test_a_distribution_survives_its_wire_form(values: list[float]) -> None:
    made = durations(values)
    assert Durations.from_wire(json.loads(json.dumps(made.to_wire()))) == made


def test_what_is_out_of_range_counts_at_the_border() -> None:
    made = durations([0.0, -1.0, 1e12])
    assert len(made) == 3
    assert made.quantile_s(0.0) < 2e-6
    assert made.quantile_s(1.0) > 9e5


def test_it_stays_small_whatever_came_in() -> None:
    made = durations([1e-6 * 1.0001**number for number in range(270_000)])
    assert len(made.to_wire().split()) < 295


def test_of_nothing_every_quantile_is_zero() -> None:
    assert Durations().quantile_s(0.5) == 0.0
