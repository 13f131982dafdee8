"""Fitting step times."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.errors import EngineError
from autellix.runtime.calibrate_fit import Point, fit_steps, nonnegative_fit
from autellix.runtime.calibrate_sweep import EngineLimits, points_of, shapes_for
from autellix.scheduler.step_log import Step


def point(prefill: int, sequences: int, kv: int, step_s: float, reach: int = 0) -> Point:
    region = "decode" if not prefill else "mixed" if sequences > 1 else "prefill"
    return Point(
        region=region,
        step_s=step_s,
        prefill_tokens=prefill,
        sequences=sequences,
        kv_tokens=kv,
        prefill_reach=reach,
    )


def shapes() -> list[tuple[int, int, int]]:
    prompts = [(p, 1, 0) for p in (16, 64, 256, 1024, 2048)]
    generation = [(0, n, n * k) for n in (1, 4, 16) for k in (32, 512)]
    return prompts + generation + [(128, 8, 900), (512, 24, 4000)]


def test_steps_of_known_coefficients_give_them_back() -> None:
    a, b, c, d = 0.02, 4e-4, 8e-4, 2e-7
    fit = fit_steps([point(p, n, k, a + b * p + c * n + d * k) for p, n, k in shapes()])
    found = (fit.step.a, fit.step.b, fit.step.c, fit.step.d)
    assert found == pytest.approx((a, b, c, d), rel=1e-6)
    assert fit.residuals["all"].median < 1e-9 and fit.residuals["decode"].r2 == pytest.approx(1.0)
    assert {*fit.residuals} == {"all", "prefill", "decode", "mixed"}


def test_a_coefficient_that_would_be_negative_is_nothing() -> None:
    points = [point(p, n, k, 0.02 + 4e-4 * p + 8e-4 * n - 1e-7 * k) for p, n, k in shapes()]
    fit = fit_steps(points)
    assert fit.step.d == 0.0 and fit.step.b > 0 and fit.step.c > 0


def test_noise_of_a_tenth_moves_the_coefficients_by_less() -> None:
    rng = random.Random(1)
    points = [
        point(p, n, k, (0.02 + 4e-4 * p + 8e-4 * n) * rng.uniform(0.9, 1.1))
        for p, n, k in shapes() * 5
    ]
    fit = fit_steps(points)
    assert fit.step.a == pytest.approx(0.02, rel=0.1)
    assert fit.step.b == pytest.approx(4e-4, rel=0.1)
    assert 0.02 < fit.residuals["all"].median < 0.08


def test_attention_of_prompts_is_told_apart() -> None:
    points = [
        point(p, n, k, 0.02 + 4e-4 * p + 8e-4 * n + 3e-8 * p * p / 2, reach=p * p // 2)
        for p, n, k in shapes()
    ]
    fit = fit_steps(points)
    assert fit.step.e == pytest.approx(3e-8, rel=1e-6)
    assert fit.residuals["all"].median < 1e-9 < fit.linear_residuals["all"].median
    assert fit.linear.e == 0.0 and fit.linear.b > fit.step.b


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_no_other_nonnegative_coefficients_fit_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, seconds = rng.random((12, 4)), rng.uniform(0.5, 2.0, 12)
    best = nonnegative_fit(rows, seconds)

    def error(coefficients: np.ndarray) -> float:
        return float(np.square(rows @ coefficients / seconds - 1).sum())

    assert (best >= 0).all()
    for _ in range(200):
        other = np.maximum(best + rng.normal(0, 0.1, 4), 0)
        assert error(other) >= error(best) - 1e-7


def test_one_seat_leaves_the_constant_and_the_calls_in_one() -> None:
    points = [point(p, 1, 0, 0.02 + 4e-4 * p) for p in (16, 64, 256, 1024, 2048)]
    fit = fit_steps(points)
    assert fit.step.a + fit.step.c == pytest.approx(0.02, rel=1e-6)


def test_too_few_steps_or_steps_of_no_length_are_refused() -> None:
    with pytest.raises(EngineError, match="too few to fit"):
        fit_steps([point(16, 1, 0, 0.1)])
    with pytest.raises(EngineError, match="no constant part"):
        fit_steps([point(p, 0, 0, 1e-3 * p) for p in (10, 20, 40, 80)])


def step(prefill: int, prefills: int, sequences: int, step_s: float, kv: int = 0) -> Step:
    return Step(0.0, step_s, 0.001, prefill, prefills, sequences, kv, 0)


def test_steps_alike_become_a_point_of_their_mean_without_strays() -> None:
    steps = [step(0, 0, 4, s) for s in (0.02, 0.03, 0.3, 0.018, 0.02)]
    (found,) = points_of(steps)
    assert (found.region, found.steps) == ("decode", 5)
    assert found.step_s == pytest.approx((0.02 + 0.03 + 0.018 + 0.02) / 4)


def test_regions_are_told_by_who_computes_prompts() -> None:
    points = points_of([step(64, 1, 1, 0.05), step(64, 2, 2, 0.05), step(64, 1, 5, 0.06)])
    assert [found.region for found in points] == ["prefill", "prefill", "mixed"]


def test_generation_that_a_call_only_passes_through_is_no_point() -> None:
    assert points_of([step(0, 0, 2, 0.02), step(0, 0, 3, 0.02)]) == []


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 256), st.integers(64, 131_072), st.integers(1024, 500_000))
def test_a_sweep_asks_for_nothing_that_the_engine_cannot_take(
    seats: int, context: int, kv: int
) -> None:
    budget = max(2048, seats + 1)
    limits = EngineLimits(seats=seats, token_budget=budget, context_tokens=context, kv_tokens=kv)
    made = shapes_for(limits)
    assert any(shape.output_tokens > 1 for shape in made)
    for shape in made:
        assert 1 <= shape.calls <= seats
        assert shape.prompt_tokens + shape.output_tokens <= min(context, kv)
        assert all(tokens + 1 <= min(context, kv) for tokens in shape.joining)
