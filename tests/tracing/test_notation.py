"""How figures and names are written in the views."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.tracing.notation import count_text, duration_text, label, seconds_text, short_id


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.21, "4.2 s"), (187.0, "3:07"), (3727.9, "1:02:07")]
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0k"),
        (12_345, "12.3k"),
        (99_960, "100k"),
        (999_600, "1.0M"),
    ],
)
def test_counts(count, text):
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.00"), (9.994, "9.99"), (9.999, "10.0"), (1234.5, "1,234"), (123_456.0, "123k")],
)
def test_seconds(seconds, text):
    assert seconds_text(seconds) == text


@settings(deadline=None)
@given(st.floats(0, 1e8), st.integers(0, 10**11))
def test_figures_keep_to_five_characters(seconds, count):
    assert len(seconds_text(seconds)) <= 5
    assert len(count_text(count)) <= 5


def test_only_a_uuid_is_shortened():
    assert short_id("3f2a9b1c-1111-2222-3333-444455556666") == "3f2a9b1c"
    assert short_id("customer-12") == "customer-12"


def test_ids_that_differ_at_their_end_stay_apart_when_they_are_too_long():
    shown = {label("react_agent", f"react_agent-{n}", 8) for n in range(1, 9)}
    assert len(shown) == 8
    assert label("react_agent", "react_agent-12", 20) == "react_agent-12"


@pytest.mark.parametrize(
    ("width", "text"),
    [(20, "react_agent line 7"), (12, "reac… line 7"), (8, "line 7"), (4, "…e 7")],
)
def test_of_name_and_id_the_name_gives_way_first(width, text):
    assert label("react_agent", "line 7", width) == text


def test_a_program_named_like_its_id_is_named_once():
    assert label("solo", "solo", 20) == "solo"
