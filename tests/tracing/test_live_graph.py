"""The picture of a DAG: layers, connections, marks."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from autellix.tracing.live_box import CHARACTERS, DOWN, HEAVY, LEFT, LIGHT, RIGHT, UP, Strip
from autellix.tracing.live_graph import GraphDrawing
from autellix.tracing.live_layout import layers_of
from autellix.tracing.live_lines import Picture
from tests.tracing.runs import call, graph, tree_search


def drawn(*nodes, width: int = 80, height: int = 20, hidden: int = 0) -> list[str]:
    drawing = GraphDrawing(graph(*nodes, hidden=hidden), width, height)
    return Picture(drawing.lines(height)).text.split("\n")


def test_every_box_of_light_and_heavy_strokes_has_a_character():
    assert set(CHARACTERS) == set(product(range(3), repeat=4))
    assert len(set(CHARACTERS.values())) == 81
    assert [CHARACTERS[s] for s in ((1, 0, 1, 0), (2, 2, 0, 0), (0, 1, 2, 1), (1, 2, 1, 2))] == [
        "│", "┗", "┰", "┿",
    ]  # fmt: skip


def test_a_heavy_stroke_covers_a_light_one():
    strip = Strip(3)
    strip.across(0, 2, LIGHT)
    strip.across(0, 1, HEAVY)
    strip.stroke(0, UP, HEAVY)
    assert strip.pieces() == [("┗╾", True), ("╴", False)]
    assert {UP, RIGHT, DOWN, LEFT} == set(range(4))


def test_a_chain_goes_straight_down_without_lines_between():
    chain = [call(label="act")]
    for place in range(3):
        kind = "tool" if place % 2 == 0 else "llm"
        chain.append(call(place, kind=kind, superstep=place + 2))
    assert [line[4] for line in drawn(*chain)] == ["●", "■", "●", "■"]
    assert [line[:3].strip() for line in drawn(*chain)] == ["1", "2", "3", "4"]


def test_branches_stand_side_by_side_and_the_critical_path_is_heavy():
    lines = drawn(
        call(label="plan", is_critical=True),
        call(0, label="left", superstep=2),
        call(0, label="right", superstep=2, is_critical=True),
        call(1, 2, label="join", superstep=3, state="running"),
    )
    assert lines == [
        "  1 ◆ plan 0.5s  20 tok  L1",
        "    ┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓",
        "  2 ● left 0.5s  20 tok  L1       ◆ right 0.5s  20 tok  L1",
        "    ├─────────────────────────────┘",
        "  3 ◐ join 0.5s  20 tok  L1",
    ]


def test_a_branch_that_waits_for_the_others_passes_them_by():
    lines = drawn(
        call(label="plan"),
        call(0, label="short", superstep=2),
        call(0, label="long", superstep=2),
        call(2, label="longer", superstep=2, edge="order"),
        call(1, 3, label="join", superstep=3),
    )
    assert lines[3] == "    │                             ● longer 0.5s  20 tok  L1"
    assert lines[4] == "    ├─────────────────────────────┘"


def test_chains_beside_each_other_are_not_joined():
    nodes = [call(), call()]
    nodes += [call(0, edge="order"), call(1, edge="order")]
    assert len(drawn(*nodes)) == 2, "both go straight down"


def test_connections_that_would_lie_over_each_other_get_lines_of_their_own():
    layers = [call(), call(), call(), call(2, edge="order"), call(0, edge="order")]
    crossing = drawn(*layers, call(3, 1, edge="order"))
    assert all(len(line) <= 80 for line in crossing)
    assert sum(line.count("●") for line in crossing) == 6


def test_too_many_branches_to_be_named_are_marked_and_counted():
    wide = [call(label="plan")] + [
        call(0, label="read", superstep=2, state="running" if n % 2 else "waiting")
        for n in range(30)
    ]
    row = drawn(*wide)[-1]
    assert row.count("◐") == row.count("○") == 15
    assert "read x30 15 running 15 waiting" in row
    narrow = drawn(*wide, width=40)[-1]
    assert "…" in narrow
    assert "read x30" in narrow


def test_what_is_above_is_counted():
    nodes = tree_search().nodes
    lines = drawn(*nodes, height=5)
    assert len(lines) == 5
    marks = sum(line.count(mark) for line in lines for mark in "●◆◐○")
    assert lines[0] == f"  ⋮ {len(nodes) - marks} earlier calls"
    assert drawn(*nodes, height=5, hidden=1000)[0].startswith("  ⋮ 1.0k")


@given(st.integers(1, 40), st.integers(24, 200))
def test_any_height_is_kept_and_the_last_layer_is_always_there(height, width):
    lines = drawn(*tree_search(4).nodes, width=width, height=height)
    assert len(lines) <= height
    assert "◐" in lines[-1]


def test_layers_follow_supersteps_and_what_comes_before_inside_them():
    nodes = [
        call(),
        call(0, superstep=2),
        call(0, superstep=2),
        call(2, superstep=2, edge="order"),
        call(1, 3, superstep=3),
    ]
    layers = layers_of(nodes)
    assert [[slot.node for slot in layer.slots] for layer in layers] == [
        [0], [1, 2], [None, 3], [4],
    ]  # fmt: skip
    assert [(layer.superstep, layer.is_first) for layer in layers] == [
        (1, True), (2, True), (2, False), (3, True),
    ]  # fmt: skip


def test_a_growing_dag_does_not_move_what_is_drawn():
    nodes = tree_search(4).nodes
    before: list[list[int]] = []
    for count in range(1, len(nodes) + 1):
        columns = [[s.column for s in layer.slots] for layer in layers_of(nodes[:count])]
        for old, new in zip(before, columns, strict=False):
            assert new[: len(old)] == old
        before = columns
