"""Response time: first call to last token, less the time without any outstanding call."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.tracing.response import ResponseTime


def response_of(*calls: tuple[float, float]) -> float:
    """Report calls (start, end) in the order of time."""
    moments = sorted(
        [(start, 1, "begin") for start, _ in calls] + [(end, 0, "end") for _, end in calls]
    )
    time = ResponseTime()
    for at_s, _, what in moments:
        time.begin(at_s) if what == "begin" else time.end(at_s)
    return time.value_s()


def test_one_call_counts_from_start_to_end():
    assert response_of((2.0, 5.0)) == 3.0


def test_a_tool_between_two_calls_does_not_count():
    assert response_of((0.0, 1.0), (11.0, 13.0)) == 3.0


def test_calls_side_by_side_count_once():
    assert response_of((0.0, 4.0), (1.0, 2.0), (3.0, 6.0)) == 6.0


def test_no_calls_no_response_time():
    assert ResponseTime().value_s() == 0.0
    assert ResponseTime().value_s(now_s=100.0) == 0.0


def test_a_running_call_counts_up_to_now():
    time = ResponseTime()
    time.begin(0.0)
    time.end(1.0)
    time.begin(5.0)
    assert time.outstanding == 1
    assert time.value_s(now_s=7.5) == 3.5
    time.end(8.0)
    assert time.value_s(now_s=100.0) == 4.0


def test_an_instant_is_not_counted_twice_when_threads_report_out_of_order():
    time = ResponseTime()
    time.begin(0.0)
    time.end(5.0)
    time.begin(4.0)  # began before the other ended, reported after it
    time.end(6.0)
    assert time.value_s() == 6.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_it_is_the_length_of_the_union_of_the_calls(spans: list[tuple[int, int]]):
    calls = [(float(start), float(start + length + 1)) for start, length in spans]
    covered = {second for start, end in calls for second in range(int(start), int(end))}
    assert response_of(*calls) == pytest.approx(len(covered))
