"""How long a prompt token takes, from the steps of a busy engine."""

from __future__ import annotations

import pytest

from autellix.scheduler.prefill_rate import PrefillRate


def test_what_a_step_lasts_beyond_a_typical_one_is_its_prompts() -> None:
    rate = PrefillRate()
    assert rate.token_s == 0.0
    rate.add(100, 0.030, 0.020)
    rate.add(300, 0.050, 0.020)
    assert rate.token_s == pytest.approx(1e-4)


def test_a_step_with_hardly_a_prompt_says_nothing() -> None:
    rate = PrefillRate()
    rate.add(3, 5.0, 0.020)
    assert rate.token_s == 0.0


def test_a_step_that_is_shorter_than_typical_counts_as_no_time() -> None:
    rate = PrefillRate()
    rate.add(100, 0.010, 0.020)
    rate.add(100, 0.040, 0.020)
    assert rate.token_s == pytest.approx(1e-4)


def test_old_steps_fade() -> None:
    rate = PrefillRate()
    for _ in range(100):
        rate.add(2048, 0.220, 0.020)
    for _ in range(400):
        rate.add(2048, 0.420, 0.020)
    assert rate.token_s == pytest.approx(0.4 / 2048, rel=0.01)
