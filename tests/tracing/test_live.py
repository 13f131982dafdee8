"""The live view's picture: what it says, and that it fits."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from autellix.tracing.live import live_picture
from autellix.tracing.live_queues import queues_lines
from autellix.tracing.live_rates import Rates
from autellix.tracing.live_state import Choice
from autellix.tracing.notation import ascii_text
from autellix.tracing.snapshot import (
    CallNode,
    ProgramGraph,
    ProgramRow,
    ReplicaRow,
    RunSnapshot,
)
from tests.tracing import runs

SIZES = [(80, 24), (120, 40), (200, 60)]
SCREENS = Path(__file__).parent / "screens"


def screen(state: RunSnapshot, width: int, height: int, **more) -> list[str]:
    more.setdefault("quit_word", "quit")
    picture = live_picture(state, width, height, rates=runs.rates_of(state), **more)
    return picture.text.split("\n")


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(("name", "programs", "replicas"), [("one", 12, 1), ("many", 500, 4)])
def test_the_screen_is_as_committed(width, height, name, programs, replicas):
    """WRITE_SCREENS=1 commits what is drawn now; look at it before."""
    state = runs.snapshot(programs, replicas)
    drawn = "\n".join(screen(state, width, height, graph=runs.tree_search())) + "\n"
    path = SCREENS / f"{name}-{width}x{height}.txt"
    if os.environ.get("WRITE_SCREENS"):
        path.write_text(drawn)
    assert drawn == path.read_text()


# ── it fits ──────────────────────────────────────────────────────────────────────────────────────

text = st.text(max_size=12) | st.just("a name that is too long for its place")
counts = st.integers(0, 10**7)
seconds = st.floats(0, 10**6, allow_nan=False)
rows = st.builds(
    ProgramRow,
    id=text,
    name=text,
    state=st.sampled_from(runs.STATES),
    level=st.none() | st.integers(1, 12),
    calls_done=counts,
    calls_running=counts,
    calls_waiting=counts,
    tools=counts,
    tokens=counts,
    attained_s=seconds,
    critical_path_s=seconds,
    wait_s=seconds,
    response_s=seconds,
    waits_for=text,
)
levels = st.lists(st.integers(0, 300), max_size=12).map(tuple)
replicas = st.builds(
    ReplicaRow,
    index=st.integers(0, 600),
    running=counts,
    waiting=counts,
    seats=counts,
    running_by_level=levels,
    waiting_by_level=levels,
    kv_usage=st.floats(0, 1),
    kv_host_usage=st.none() | st.floats(0, 1),
    step_s=seconds,
)
snapshots = st.builds(
    RunSnapshot,
    elapsed_s=seconds,
    title=text,
    engine=text,
    model=text,
    policy=text,
    programs=st.lists(rows, max_size=8).map(tuple),
    replicas=st.lists(replicas, max_size=5).map(tuple),
    calls_done=counts,
    tokens=counts,
    programs_total=counts,
    programs_done=counts,
)


@st.composite
def graphs(draw) -> ProgramGraph:
    nodes: list[CallNode] = []
    for place in range(draw(st.integers(0, 20))):
        above = draw(st.lists(st.integers(0, place - 1), max_size=4, unique=True)) if place else []
        edges = [
            (parent, draw(st.sampled_from(("order", "trigger", "barrier")))) for parent in above
        ]
        entered = [nodes[p].superstep + (kind != "order") for p, kind in edges]
        nodes.append(
            CallNode(
                kind=draw(st.sampled_from(("llm", "tool", "earlier"))),
                label=draw(text),
                state=draw(st.sampled_from(("running", "waiting", "done", "failed", "aborted"))),
                superstep=max(entered, default=1),
                took_s=draw(seconds),
                tokens=draw(counts),
                level=draw(st.none() | st.integers(1, 9)),
                is_critical=draw(st.booleans()),
                parents=tuple(edges),
            )
        )
    return ProgramGraph(program=draw(text), nodes=tuple(nodes), hidden=draw(st.integers(0, 9)))


# Shrinking a whole run takes minutes and what does not fit can be seen as it is.
@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(snapshots, graphs(), st.integers(1, 220), st.integers(1, 70), st.booleans())
def test_no_line_is_wider_than_the_terminal_and_the_height_is_exact(
    state, graph, width, height, with_keys
):
    if state.programs:
        graph = replace(graph, program=state.programs[0].id)
    picture = live_picture(state, width, height, graph=graph, quit_word="quit" if with_keys else "")
    lines = picture.text.split("\n")
    assert len(lines) == height
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines), "a terminal would obey it"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_full_screen_is_used(width, height):
    lines = screen(runs.snapshot(500), width, height, graph=runs.tree_search(9))
    assert all(line.strip() for line in lines)


# ── what it says ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_totals_queues_programs_and_the_dag_are_shown(width, height):
    text = "\n".join(screen(runs.snapshot(), width, height, graph=runs.tree_search()))
    for said in ("tree_search.py", "atlas", "1:23", "/40 programs", "tok/s", "6/8", "9 waiting"):
        assert said in text
    for said in ("KV", "43%", "L3", "1+4", "preempted 0.2", "waits for", "◐ evaluate"):
        assert said in text


def test_wide_screens_have_the_dag_beside_the_programs():
    lines = screen(runs.snapshot(), 200, 60, graph=runs.tree_search())
    assert any("─ queues" in line and "─ tree_search-1" in line for line in lines)


def test_before_anything_has_begun_it_says_so():
    lines = screen(RunSnapshot(elapsed_s=0.0), 80, 24)
    assert "0/0 programs" in lines[1]
    assert "no replica answers yet" in "\n".join(lines)


def test_programs_that_a_snapshot_leaves_out_are_counted():
    state = runs.snapshot(20, programs_done=1_000, programs_running=5, programs_failed=2)
    assert any(line.startswith(f"  {1_007 - 20} more") for line in screen(state, 120, 60))


def test_what_runs_comes_first_and_what_is_hidden_is_counted():
    lines = screen(runs.snapshot(210), 80, 24)
    at = next(i for i, line in enumerate(lines) if "waits for" in line)
    hidden = next(line for line in lines if " more: " in line)
    shown = lines[at + 1 : lines.index(hidden)]
    assert shown
    assert all(
        any(f" {state} " in f"{row} " for state in ("running", "waiting", "in tool"))
        for row in shown
    )
    total, _, groups = hidden.strip().partition(" more: ")
    assert int(total) == 210 - len(shown)
    assert sum(int(group.split()[0]) for group in groups.split(", ")) == 210 - len(shown)


def test_the_selected_program_is_in_the_table_wherever_it_stands():
    choice = Choice()
    choice.selected = "tree_search-200"
    dag = replace(runs.tree_search(), program="tree_search-200")
    lines = screen(runs.snapshot(210), 120, 40, graph=dag, choice=choice)
    assert any(line.startswith("▸ tree_search-200 ") for line in lines)


def test_a_paused_picture_says_so():
    choice = Choice()
    choice.paused = True
    assert "paused" in screen(runs.snapshot(), 80, 24, choice=choice)[-1]


def test_colour_is_used_unless_it_is_unwanted(monkeypatch):
    def drawn() -> str:
        console = Console(
            force_terminal=True, color_system="truecolor", width=120, _environ=dict(os.environ)
        )
        with console.capture() as capture:
            console.print(live_picture(runs.snapshot(), 120, 40, graph=runs.tree_search()))
        return capture.get()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in drawn()
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = [
        code for code in range(30, 48) if f"\x1b[{code}m" in drawn() or f";{code}m" in drawn()
    ]
    assert not coloured


def test_without_utf8_the_picture_is_the_same_in_ascii():
    state = runs.snapshot(210)
    lines = screen(state, 120, 40, graph=runs.tree_search())
    plain = [ascii_text(line) for line in lines]
    assert all(line.isascii() for line in plain)
    assert [len(line) for line in plain] == [cell_len(line) for line in lines]
    assert not any("?" in line for line in plain), "a character has no counterpart in ASCII"


def test_wide_characters_keep_their_width_in_ascii():
    assert ascii_text("日本 ◆ act") == "???? * act"


@pytest.mark.parametrize(("width", "height"), [(200, 8), (80, 3)])
@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("lost", "lost; its calls go on elsewhere"),
        ("starting", "is being started"),
        ("failed", "given up"),
    ],
)
def test_a_replica_that_does_not_serve_is_not_shown_as_idle(width, height, state, said):
    rows = [runs.replica(0), ReplicaRow(index=1, state=state)]
    shown = [line.text for line in queues_lines(rows, Rates(), width, height)]
    (line,) = [line for line in shown if "replica 1" in line]
    assert said in line
    assert "0/0" not in line.partition("replica 1")[2]
