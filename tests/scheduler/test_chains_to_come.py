"""How much is still to come after a call of a node, and the place that gives it among siblings."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix.scheduler.chains_to_come import ChainsToCome, place_among_siblings

TOLD = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 1e4)), max_size=20)


def chains_of(told: list[tuple[str, float]]) -> ChainsToCome:
    chains = ChainsToCome()
    for node, chain_s in told:
        chains.told(node, chain_s)
    return chains


def test_what_is_expected_of_a_node_is_the_mean() -> None:
    chains = chains_of([("search", 2.0), ("search", 4.0), ("check", 1.0)])
    assert [chains.expected_s(node) for node in ("search", "check", "new")] == [3.0, 1.0, 0.0]


@given(TOLD, TOLD)
def test_what_two_were_told_adds_up_in_either_order(ones: list, others: list) -> None:
    one, other = chains_of(ones), chains_of(others)
    one.add(chains_of(others))
    other.add(chains_of(ones))
    for node in "abc":
        assert one.expected_s(node) == pytest.approx(other.expected_s(node))
        assert one.expected_s(node) == pytest.approx(chains_of(ones + others).expected_s(node))


@given(TOLD, TOLD)
def test_what_is_new_is_what_was_told_since(ones: list, others: list) -> None:
    late = chains_of(ones + others).since(chains_of(ones))
    for node in "abc":
        expected = chains_of(others).expected_s(node)
        assert late.expected_s(node) == pytest.approx(expected, abs=1e-6)


def test_old_calls_fade_and_the_mean_stays() -> None:
    chains = chains_of([("a", 3.0)] * 50 + [("b", 7.0)])
    chains.fade(10.0)
    assert chains.to_wire() == {"a": [10.0, 30.0], "b": [1.0, 7.0]}


def test_where_nothing_was_told_since_nothing_is_new() -> None:
    chains = chains_of([("a", 3.0)])
    assert not chains.since(chains_of([("a", 3.0)]))


def test_nodes_beyond_the_most_are_left_out() -> None:
    chains = chains_of([(str(number), 1.0) for number in range(1000)])
    assert len(chains) == 64


def test_the_wire_keeps_everything() -> None:
    chains = chains_of([("a", 3.0), ("a", 4.0), ("b", 0.0)])
    assert ChainsToCome.from_wire(chains.to_wire()).to_wire() == chains.to_wire()


@pytest.mark.parametrize(
    "sums",
    [
        *(
            [1.0],
            [0.0, 1.0],
            [1.0, -1.0],
            [1.0, float("nan")],
            ["a", 1.0],
            [True, 1.0],
            [1e-320, 1.0],
        ),
        *([1.0, 1e308], [1e308, 1.0], "12", ["1", "2"], {"1": 2, "3": 4}),
    ],
)
def test_broken_sums_are_refused(sums: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        ChainsToCome.from_wire({"a": sums})


def test_the_longer_the_chain_to_come_the_sooner_and_the_unknown_first() -> None:
    lengths = [0.0, 1e11, 1e9, 3600.0, 60.0, 1.01, 1.0, 0.1, 1e-3, 1e-9]
    places = [place_among_siblings(length) for length in lengths]
    assert places[0] == 0
    assert all(sooner < later for sooner, later in pairwise(places))
    assert all(0 <= place < 1 << 16 for place in places)


@pytest.mark.parametrize("length", [float("inf"), 1e300, float("nan"), -1.0])
def test_what_cannot_be_a_length_has_a_place_all_the_same(length: float) -> None:
    assert 0 <= place_among_siblings(length) < 1 << 16
