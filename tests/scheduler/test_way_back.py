"""Keep, swap or recompute: the way by which a call's KV comes back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix.scheduler.way_back import KvRates, way_back

# A GPU's: 81 us to compute a token, 5 us to load it, half a millisecond to get a load going.
RATES = KvRates(prefill_s=81e-6, load_s=5e-6, load_start_s=0.5e-3)


def test_what_is_still_cached_costs_nothing() -> None:
    assert way_back(1000, 1000, 0, RATES) == ("keep", 0.0, 0, 0)


def test_what_the_host_has_is_loaded_and_the_rest_computed() -> None:
    found = way_back(1000, 100, 900, RATES)
    assert (found.way, found.loaded_tokens, found.computed_tokens) == ("swap", 800, 100)
    assert found.seconds == pytest.approx(0.5e-3 + 800 * 5e-6 + 100 * 81e-6)


def test_without_a_tier_everything_lost_is_computed_again() -> None:
    found = way_back(1000, 0, 0, KvRates(prefill_s=81e-6))
    assert found == ("recompute", pytest.approx(0.081), 0, 1000)


def test_a_few_tokens_are_computed_sooner_than_loaded() -> None:
    assert way_back(16, 0, 16, RATES) == ("swap", pytest.approx(0.58e-3), 16, 0)
    assert way_back(6, 0, 6, RATES).way == "recompute"


def test_a_busy_link_makes_computing_the_sooner_way() -> None:
    assert way_back(1000, 0, 1000, RATES, link_wait_s=0.07).way == "swap"
    assert way_back(1000, 0, 1000, RATES, link_wait_s=0.08).way == "recompute"


def test_what_was_never_measured_is_not_loaded() -> None:
    assert way_back(1000, 0, 1000, KvRates(prefill_s=81e-6)).way == "recompute"


TOKENS = st.integers(0, 10_000)
SECONDS = st.floats(0, 1)


@given(TOKENS, TOKENS, TOKENS, SECONDS, st.one_of(SECONDS, st.just(math.inf)), SECONDS, SECONDS)
def test_no_way_is_slower_than_computing_all_that_is_missing(
    context: int, device: int, host: int, prefill: float, load: float, start: float, wait: float
) -> None:
    rates = KvRates(prefill_s=prefill, load_s=load, load_start_s=start)
    found = way_back(context, device, host, rates, link_wait_s=wait)
    missing = max(context - device, 0)
    assert found.loaded_tokens + found.computed_tokens == missing
    assert 0.0 <= found.seconds <= missing * prefill * (1 + 1e-9)
    assert (found.way == "keep") == (missing == 0)
