"""The waiting queue, against a sorted list."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autellix.scheduler.rank_queue import RankQueue


@dataclass(eq=False)
class One:
    priority: int

    def __lt__(self, other: One) -> bool:
        return self.priority < other.priority


ACTIONS = st.sampled_from(["add", "pop", "remove", "move", "back"])


@given(st.lists(st.tuples(ACTIONS, st.integers(0, 99))))
def test_it_behaves_like_a_sorted_list(actions: list[tuple[str, int]]) -> None:
    queue: RankQueue[One] = RankQueue()
    waiting: list[One] = []
    out: list[One] = []
    ranks = count(1)
    for action, number in actions:
        if action == "add":
            one = One(next(ranks) + (number << 20))
            queue.add_request(one)
            waiting.append(one)
        elif action == "back":
            if out:
                one = out.pop(number % len(out))
                queue.prepend_request(one)
                waiting.append(one)
        elif waiting:
            one = waiting[number % len(waiting)]
            if action == "pop":
                one = min(waiting)
                assert queue.peek_request() is one and queue.pop_request() is one
            elif action == "remove":
                queue.remove_requests([one, One(0)])
            elif action == "move":
                one.priority = next(ranks) + (number << 20)
                queue.moved(one)
                continue
            waiting.remove(one)
            out.append(one)
        assert len(queue) == len(waiting) and bool(queue) is bool(waiting)
        assert [r.priority for r in queue] == sorted(r.priority for r in waiting)


def test_an_empty_queue_has_no_first() -> None:
    with pytest.raises(IndexError):
        RankQueue[One]().peek_request()


def test_dead_entries_do_not_pile_up() -> None:
    queue: RankQueue[One] = RankQueue()
    one = One(1)
    queue.add_request(one)
    for rank in range(2, 10_000):
        one.priority = rank
        queue.moved(one)
    assert len(queue._heap) < 100
