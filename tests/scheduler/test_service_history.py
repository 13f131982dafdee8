"""What is learned of programs by name, and the places that follow from it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from autellix.scheduler.life_table import BOUNDS
from autellix.scheduler.service_history import ServiceHistory


def history_of(**sizes: list[float]) -> ServiceHistory:
    history = ServiceHistory()
    for name, works in sizes.items():
        for work in works:
            history.worked(name, 0.0, work)
            history.ended(name, work)
    return history


def test_where_nothing_is_known_attained_work_decides() -> None:
    history = ServiceHistory()
    found = [history.place("new", work) for work in (0.0, 40.0, 100.0, 1e3, 1e4, 1e6)]
    assert all(later > sooner for sooner, later in pairwise(found))


def test_programs_much_alike_go_one_after_the_other() -> None:
    history = history_of(alike=[2000.0 + 10 * i for i in range(50)])
    found = [history.place("alike", work) for work in (0.0, 500.0, 1000.0, 1500.0, 1900.0)]
    assert all(later < sooner for sooner, later in pairwise(found))


def test_a_new_kind_of_program_is_expected_to_be_as_the_others_are() -> None:
    history = history_of(known=[5000.0] * 30)
    assert history.place("new", 0.0) > 0.4 * history.place("known", 0.0)


def test_a_kind_stands_by_its_own_programs_once_it_has_some() -> None:
    history = history_of(long=[50_000.0] * 30, short=[100.0] * 5)
    assert history.place("short", 0.0) < 200
    assert history.place("long", 0.0) > 10_000


def test_what_programs_under_way_have_done_counts_before_any_has_ended() -> None:
    history = ServiceHistory()
    before = history.place("agent", 0.0)
    for _ in range(10):
        history.worked("agent", 0.0, 4000.0)
    history.worked("agent", 0.0, 1.0)
    assert before < 100
    assert history.place("agent", 0.0) > 2000


def test_programs_at_the_end_of_the_known_find_out_what_comes_after() -> None:
    """Served by place, programs of one size do not all stop where the first ones got to."""
    history, size = ServiceHistory(), 20_000.0
    done = [0.0] * 40
    kept: list[float | None] = [None] * len(done)
    most_under_way = 0
    while min(done) < size:
        courses = [
            history.course("alike", work, kept[i]) if work < size else None
            for i, work in enumerate(done)
        ]
        place = {i: course[1] for i, course in enumerate(courses) if course is not None}
        kept = [place.get(i) for i in range(len(done))]
        first = min(place, key=lambda i: (place[i], i))
        history.worked("alike", done[first], min(size, done[first] + 500))
        done[first] = min(size, done[first] + 500)
        if done[first] == size:
            history.ended("alike", size)
        most_under_way = max(most_under_way, sum(0 < work < size for work in done if work > 5000))
    assert most_under_way <= 10, "attained-service order has all 40 under way"


def test_places_lag_behind_by_a_share_of_what_is_known() -> None:
    history = history_of(kind=[1000.0] * 200)
    places = history.places("kind")
    history.worked("kind", 0.0, 10.0)
    assert history.places("kind") is places
    for _ in range(50):
        history.worked("kind", 0.0, 10.0)
    assert history.places("kind") is not places


class TestCourse:
    def test_it_begins_at_the_place_and_gets_worse_in_steps(self) -> None:
        history = ServiceHistory()
        course = history.course("new", 100.0, None)
        assert course[0] == 0.0
        assert course[1] == history.place("new", 100.0)
        froms, found = course[0::2], course[1::2]
        assert len(froms) == 8
        assert all(later > sooner for sooner, later in pairwise(froms))
        assert all(later > 1.41 * sooner for sooner, later in pairwise(found))
        assert all(start + 100.0 in BOUNDS for start in froms[1:])

    def test_a_place_is_kept_until_it_is_wrong_by_the_root_of_two(self) -> None:
        history = ServiceHistory()
        place = history.place("new", 100.0)
        assert history.course("new", 100.0, 1.4 * place)[1] == 1.4 * place
        assert history.course("new", 100.0, 0.72 * place)[1] == 0.72 * place
        assert history.course("new", 100.0, 1.5 * place)[1] == place
        assert history.course("new", 100.0, 0.7 * place)[1] == place

    def test_with_a_long_context_the_same_work_is_done_in_fewer_steps(self) -> None:
        history = ServiceHistory()
        short, long = (history.course("new", 100.0, None, share) for share in (1.0, 4.0))
        assert long[1::2] == short[1::2]
        assert [4 * start for start in long[0::2]] == pytest.approx(short[0::2])

    def test_a_program_about_to_end_does_not_get_worse_before_its_end(self) -> None:
        history = history_of(alike=[2000.0 + i for i in range(50)])
        course = history.course("alike", 1000.0, None)
        assert all(1000.0 + start >= 2000.0 for start in course[2::2])


class TestManyProcesses:
    def test_histories_add_up_in_any_order(self) -> None:
        parts = [history_of(a=[100.0], b=[7.0]), history_of(b=[3000.0]), history_of(c=[20.0] * 3)]
        one, other = ServiceHistory(), ServiceHistory()
        for part in parts:
            one.add(part)
        for part in reversed(parts):
            other.add(part)
        for name in "abc":
            assert one.places(name) == pytest.approx(other.places(name))

    def test_the_wire_keeps_places(self) -> None:
        history = history_of(a=[100.0, 300.0], b=[7.0])
        again = ServiceHistory.from_wire(history.to_wire())
        assert again.to_wire() == history.to_wire()
        assert again.places("a") == history.places("a")

    def test_histories_that_count_prompts_otherwise_are_not_mixed(self) -> None:
        history = ServiceHistory(prompt_share=0.25)
        assert ServiceHistory.from_wire(history.to_wire()).prompt_share == 0.25
        assert history.since(ServiceHistory(0.25)).prompt_share == 0.25
        with pytest.raises(ValueError, match="prompts"):
            history.add(ServiceHistory())

    @pytest.mark.parametrize("wire", [{}, {"bounds": [1, 2, 3]}, [], {"bounds": None}])
    def test_a_broken_history_is_refused(self, wire: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="history"):
            ServiceHistory.from_wire(wire)

    def test_chains_travel_with_the_rest(self) -> None:
        history = history_of(a=[100.0])
        history.chain_took("a", "search", 3.0)
        history.chain_took("stranger", "search", 3.0)
        again = ServiceHistory.from_wire(history.to_wire())
        assert again.to_come_s("a", "search") == 3.0
        assert again.to_come_s("a", "new") == again.to_come_s("stranger", "search") == 0.0
        both = ServiceHistory()
        both.add(history)
        again.chain_took("a", "search", 5.0)
        both.add(again.since(history))
        assert both.to_come_s("a", "search") == 4.0

    def test_a_history_of_before_there_were_chains_can_be_read(self) -> None:
        wire = history_of(a=[100.0]).to_wire()
        del wire["chains"]
        assert ServiceHistory.from_wire(wire).to_come_s("a", "search") == 0.0

    @pytest.mark.parametrize("chains", [[], {"a": []}, {"a": {"n": [1]}}, {"a": {"n": [-1, 2]}}])
    def test_broken_chains_are_refused(self, chains: object) -> None:
        with pytest.raises(ValueError, match=r"."):
            ServiceHistory.from_wire({**history_of(a=[100.0]).to_wire(), "chains": chains})

    def test_chains_of_a_name_that_is_not_known_are_left_out(self) -> None:
        wire = {**history_of(a=[100.0]).to_wire(), "chains": {"b": {"n": [1.0, 2.0]}}}
        assert not ServiceHistory.from_wire(wire).chains

    def test_a_number_too_large_is_refused(self) -> None:
        wire = {**history_of(a=[100.0]).to_wire(), "chains": {"a": {"n": [10**400, 1]}}}
        with pytest.raises(ValueError, match="not a history"):
            ServiceHistory.from_wire(wire)

    def test_old_programs_fade(self) -> None:
        history = history_of(a=[100.0] * 1500)
        for _ in range(10_500):
            history.chain_took("a", "n", 2.0)
        history.fade()
        assert sum(history.names["a"].ends) == pytest.approx(1000)
        assert sum(history.everything.ends) == pytest.approx(1000)
        assert history.chains["a"].to_wire()["n"] == pytest.approx([10_000.0, 20_000.0])
