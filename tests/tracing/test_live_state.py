"""What the person who watches chooses, and what the view chooses for them; rates."""

from __future__ import annotations

from dataclasses import replace

from autellix.tracing.live_rates import Rates
from autellix.tracing.live_state import ORDERS, Choice
from tests.tracing import runs


def rows(**states: str):
    """Programs named by their keys; each has one call more than the one before."""
    return [
        runs.program(0, id=name, state=state, calls_done=place, response_s=float(place))
        for place, (name, state) in enumerate(states.items())
    ]


def test_the_live_program_with_the_most_calls_is_followed_until_a_little_after_its_end():
    choice = Choice()
    assert choice.focus(rows(a="running", b="waiting", c="done"), 1.0) == "b"
    assert choice.focus(rows(b="running", a="running"), 2.0) == "b", "it does not jump"
    assert choice.focus(rows(a="running", b="done"), 3.0) == "b"
    assert choice.focus(rows(a="running", b="done"), 7.9) == "b"
    assert choice.focus(rows(a="running", b="done"), 8.0) == "a"


def test_when_nothing_lives_the_last_one_stays():
    choice = Choice()
    assert choice.focus([], 0.0) is None
    assert choice.focus(rows(a="done", b="failed"), 1.0) == "b"


def test_a_selected_program_stays_selected_and_escape_follows_again():
    choice, programs = Choice(), rows(a="running", b="running", c="running")
    assert choice.focus(programs, 0.0) == "c"
    choice.press("down", programs)
    assert choice.selected == "c", "the first step selects what is shown"
    choice.press("down", programs)
    assert choice.selected == "b"
    assert choice.focus(rows(a="running", b="done"), 99.0) == "b"
    choice.press("home", programs)
    assert choice.selected == "c"
    choice.press("up", programs)
    assert choice.selected == "c", "there is none above the first"
    choice.press("end", programs)
    assert choice.selected == "a"
    choice.press("escape", programs)
    assert choice.selected is None


def test_orders_go_round_in_both_directions():
    choice = Choice()
    for name in [*list(ORDERS)[1:], "interest"]:
        choice.press("s", [])
        assert choice.order == name
    choice.press("S", [])
    assert choice.order == list(ORDERS)[-1]


def test_every_order_has_live_programs_first_or_goes_by_name():
    programs = rows(a="done", b="running", c="failed", d="waiting", e="in tool")
    choice = Choice()
    for choice.order in ORDERS:
        ids = [row.id for row in choice.ordered(programs)]
        assert sorted(ids) == list("abcde")
        assert choice.order == "name" or set(ids[:3]) == {"b", "d", "e"}


def test_rates_are_those_of_the_window():
    rates = Rates(window_s=10.0)
    one = runs.snapshot(0, tokens=0, tokens_per_s=7.0)
    rates.take(replace(one, elapsed_s=0.0))
    assert rates.tokens_per_s == 7.0, "before there are two, the run's mean"
    for second in range(1, 31):
        tokens = 10 * second if second <= 20 else 200 + 50 * (second - 20)
        replicas = (runs.replica(0, preemptions=second // 2, promotions=3),)
        rates.take(replace(one, elapsed_s=float(second), tokens=tokens, replicas=replicas))
    assert rates.tokens_per_s == 50.0
    assert list(rates.history)[-12:] == [10.0] * 2 + [50.0] * 10
    found = rates.of(runs.replica(0, preemptions=15, promotions=3))
    assert (found.preemptions, found.promotions) == (0.5, 0.0)
    assert rates.of(runs.replica(0, preemptions=0)).preemptions == 0.0, "it was started anew"
    assert rates.of(runs.replica(5)).preemptions == 0.0


def test_a_snapshot_that_is_not_newer_changes_nothing():
    rates = Rates()
    rates.take(runs.snapshot(elapsed_s=2.0, tokens=10))
    rates.take(runs.snapshot(elapsed_s=2.0, tokens=99))
    assert not rates.history
