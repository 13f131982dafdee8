"""Life tables: what they count, that they add up, and that censoring does not bias them."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler.life_table import BOUNDS, WIDTHS, LifeTable, share_of_prompts, work_of

works = st.integers(0, 1 << 24).map(float)
lives = st.lists(st.tuples(works, works, st.booleans()), max_size=20)


def table_of(told: list[tuple[float, float, bool]]) -> LifeTable:
    table = LifeTable()
    for one, other, ends in told:
        before, after = sorted((one, other))
        table.worked(before, after)
        if ends:
            table.ended(after)
    return table


def sums(table: LifeTable) -> tuple[list[float], list[float], int]:
    return table.exposure, table.ends, table.told


def test_buckets_are_adjacent_and_grow() -> None:
    assert BOUNDS[0] == 0.0
    assert all(
        BOUNDS[k] + WIDTHS[k] == pytest.approx(BOUNDS[k + 1]) for k in range(len(BOUNDS) - 1)
    )


def test_a_prompt_token_counts_as_much_as_a_generated_one() -> None:
    assert work_of(100, 0) == 100
    assert work_of(0, 100) == 100


def test_on_few_seats_less_is_generated_while_a_prompt_is_computed() -> None:
    assert work_of(10, 100, prompt_share=share_of_prompts(64)) == 35
    assert [share_of_prompts(seats) for seats in (8, 256, 1024)] == [1 / 32, 1.0, 1.0]
    assert share_of_prompts(0) == 1.0, "not known"


def test_a_token_counts_by_the_part_of_the_engine_that_its_context_takes() -> None:
    assert work_of(100, 0, 100) == 100, "it takes a seat, however short its context is"
    assert work_of(100, 0, 2048) == 100
    assert work_of(100, 0, 8192) == 400
    assert work_of(0, 40, 8192) == 40, "a prompt is computed once, and keeps its room no longer"


@settings(deadline=None, max_examples=50)
@given(lives)
def test_all_work_is_counted_once(told: list[tuple[float, float, bool]]) -> None:
    table = table_of(told)
    assert sum(table.exposure) == pytest.approx(sum(abs(a - b) for a, b, _ in told))
    assert sum(table.ends) == sum(ends for *_, ends in told)


@settings(deadline=None, max_examples=50)
@given(works, works, works)
def test_work_in_parts_is_the_work_in_one(a: float, b: float, c: float) -> None:
    first, middle, last = sorted((a, b, c))
    parts, whole = LifeTable(), LifeTable()
    parts.worked(first, middle)
    parts.worked(middle, last)
    whole.worked(first, last)
    assert parts.exposure == pytest.approx(whole.exposure)


@settings(deadline=None, max_examples=50)
@given(lives, lives, lives)
def test_adding_up_is_associative_and_commutative(
    a: list[tuple[float, float, bool]],
    b: list[tuple[float, float, bool]],
    c: list[tuple[float, float, bool]],
) -> None:
    left, right = table_of(a), table_of(c)
    left.add(table_of(b))
    left.add(table_of(c))
    right.add(table_of(b))
    right.add(table_of(a))
    for mine, other in zip(sums(left), sums(right), strict=True):
        assert mine == pytest.approx(other)


@settings(deadline=None, max_examples=50)
@given(lives)
def test_the_wire_keeps_everything(told: list[tuple[float, float, bool]]) -> None:
    table = table_of(told)
    assert sums(LifeTable.from_wire(table.to_wire())) == sums(table)


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"told": 1},
        {"told": 1, "buckets": [[0, 1]]},
        {"told": 1, "buckets": [[10_000, 1, 1]]},
        {"told": 1, "buckets": [[0, -1, 1]]},
        {"told": 1, "buckets": [[0, 1, math.nan]]},
        {"told": "x", "buckets": []},
    ],
)
def test_a_broken_table_is_refused(wire: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a life table"):
        LifeTable.from_wire(wire)


def test_fading_keeps_hazards() -> None:
    table = table_of([(0.0, float(size), True) for size in range(100, 200)])
    before = [e / x for e, x in zip(table.ends, table.exposure, strict=True) if x]
    table.fade(10)
    assert sum(table.ends) == pytest.approx(10)
    after = [e / x for e, x in zip(table.ends, table.exposure, strict=True) if x]
    assert after == pytest.approx(before)


def test_hazards_are_right_although_long_programs_have_not_ended() -> None:
    """An overloaded engine that serves who has attained least, stopped in the middle."""
    rng = Random(1)
    sizes = [rng.lognormvariate(7.5, 1.0) for _ in range(4000)]
    done = [0.0] * len(sizes)
    table = LifeTable()
    live = list(range(len(sizes)))
    for rounds in range(1, 50):
        # Everybody gets up to the same amount of work in turns: least attained first.
        for number in live:
            upto = min(sizes[number], 60.0 * rounds)
            table.worked(done[number], upto)
            done[number] = upto
            if upto == sizes[number]:
                table.ended(upto)
        live = [number for number in live if done[number] < sizes[number]]
    reached = 60.0 * 49
    assert 0.2 < len(live) / len(sizes) < 0.4, "a good part must have been cut off"
    survives = 1.0
    for low, width, ends, exposure in zip(BOUNDS, WIDTHS, table.ends, table.exposure, strict=True):
        if low + width > reached:
            break
        survives *= math.exp(-ends / exposure * width)
        truly = sum(size > low + width for size in sizes) / len(sizes)
        assert survives == pytest.approx(truly, abs=0.005)
    finished = [size for size in sizes if size < reached]
    assert sum(finished) / len(finished) < 0.6 * sum(sizes) / len(sizes), "the naive way is biased"
