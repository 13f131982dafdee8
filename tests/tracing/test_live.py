"""The live view's picture: what it says and that it fits, as plain text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from autellix.tracing.live import live_picture
from autellix.tracing.notation import ascii_text
from autellix.tracing.progress import progress_text
from autellix.tracing.snapshot import ProgramRow, ReplicaRow, RunSnapshot

SIZES = [(80, 24), (120, 40), (200, 60)]
STATES = ("done", "running", "failed", "waiting", "in tool", "interrupted", "cancelled")


def program(index: int, **more) -> ProgramRow:
    values = {
        "id": f"line {index}",
        "name": "react_agent",
        "state": "running",
        "level": 2,
        "calls_done": 12,
        "calls_running": 1,
        "tools": 7,
        "tokens": 12_345,
        "attained_s": 31.25,
        "critical_path_s": 20.0,
        "wait_s": 3.5,
        "response_s": 40.0,
        "waits_for": "the engine",
        **more,
    }
    return ProgramRow(**values)


def replica(index: int, levels: int = 6, **more) -> ReplicaRow:
    values = {
        "index": index,
        "running": 14,
        "waiting": 5,
        "seats": 16,
        "running_by_level": (5, 9, *[0] * (levels - 2)),
        "waiting_by_level": (0, 2, 3, *[0] * (levels - 3)),
        "kv_usage": 0.43,
        "step_s": 0.031,
        "preemptions": 3,
        "demotions": 10,
        **more,
    }
    return ReplicaRow(**values)


def snapshot(programs: int, replicas: int = 1, **more) -> RunSnapshot:
    values = {
        "elapsed_s": 83.4,
        "programs": tuple(
            program(i, state=STATES[i % 7], response_s=float(i)) for i in range(programs)
        ),
        "replicas": tuple(replica(i) for i in range(replicas)),
        "calls_done": 412,
        "tokens_per_s": 213.4,
        "programs_running": 10,
        "programs_done": 9,
        "programs_failed": 1,
        "programs_total": 40,
        **more,
    }
    return RunSnapshot(**values)


def screen(state: RunSnapshot, width: int, height: int, **options) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, **options)
    console.print(live_picture(state, width, height))
    return out.getvalue().splitlines()


def states_shown(lines: list[str]) -> list[str]:
    rows = [line for line in lines if " line " in line]
    return [next(state for state in STATES if f" {state}" in row) for row in rows]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("programs", [0, 1, 20, 500])
@pytest.mark.parametrize("replicas", [0, 1, 3, 40])
def test_it_fits_the_screen(width, height, programs, replicas):
    lines = screen(snapshot(programs, replicas), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_full_screen_is_used(width, height):
    assert len(screen(snapshot(500), width, height)) >= height - 2


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_totals_levels_and_programs_are_shown(width, height):
    lines = screen(snapshot(3), width, height)
    assert lines[0].startswith("programs: 10 running · 9/40 done · 1 failed · 412 calls")
    assert "213 tokens/s · 1:23" in lines[0]
    assert "replica 0 · 14/16 seats · 5 waiting · KV 43% · step 31 ms" in lines[1]
    assert "preempted 3 · demoted 10" in lines[2]
    text = "\n".join(lines)
    assert "level 1    █████ 5\n" in text
    assert "level 2    █████████░░ 9+2\n" in text
    assert "level 3    ░░░ 0+3\n" in text
    row = next(line for line in lines if "line 1 " in line)
    assert row.startswith("react_a")
    figures = row.partition(" line 1 ")[2].split()
    assert figures[:4] == ["running", "2", "12", "1"]
    assert {"31.2", "20.0", "3.50"} <= set(figures)


def test_the_critical_paths_share_is_of_the_response_time():
    lines = screen(RunSnapshot(elapsed_s=1, programs=(program(0),)), 80, 24)
    assert "50%" in next(line for line in lines if "line 0" in line)


def test_a_wider_screen_says_more():
    narrow, wide = screen(snapshot(3), 80, 24), screen(snapshot(3), 120, 40)
    for word in ("tools", "tokens", "waits for", "response", "12.3k", "the engine"):
        assert word in "\n".join(wide)
    assert "waits for" not in "\n".join(narrow)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_runs_comes_first_and_what_is_hidden_is_counted(width, height):
    lines = screen(snapshot(210), width, height)
    shown = states_shown(lines)
    live = {"running", "waiting", "in tool"}
    assert all(state in live for state in shown[: min(len(shown), 90)])
    hidden = 210 - len(shown)
    assert lines[-1].startswith(f"{hidden} more programs: ")
    counts = [int(part.split()[0]) for part in lines[-1].split(": ")[1].split(", ")]
    assert sum(counts) == hidden


def test_failed_programs_come_before_done_ones():
    shown = states_shown(screen(snapshot(7), 80, 24))
    assert set(shown[:3]) == {"running", "waiting", "in tool"}
    assert shown[3:] == ["failed", "interrupted", "cancelled", "done"]


def test_replicas_stand_side_by_side_and_the_rest_is_summed():
    lines = screen(snapshot(3, replicas=5), 80, 24)
    assert "replica 0" in lines[1]
    assert "replica 1" in lines[1]
    assert "replica 2" not in "\n".join(lines)
    assert "3 more replicas: 42 running, 15 waiting" in lines
    assert "replica 4" in screen(snapshot(3, replicas=5), 200, 60)[1]


def test_levels_that_do_not_fit_are_summed_in_the_last_line():
    many = replica(0, levels=30, running_by_level=(1,) * 30, waiting_by_level=(0,) * 30)
    lines = screen(RunSnapshot(elapsed_s=1, replicas=(many,)), 80, 24)
    last = [line for line in lines if line.startswith("level")][-1]
    first, through = last.split()[1].split("-")
    assert through == "30"
    assert last.split()[-1] == str(30 - int(first) + 1)


def test_bars_shrink_to_one_scale_when_calls_are_many():
    row = replica(0, running_by_level=(1000, 500, 1), waiting_by_level=(0, 0, 0))
    lines = screen(RunSnapshot(elapsed_s=1, replicas=(row,)), 80, 24)
    bars = [line.count("█") for line in lines]
    longest, half, least = [bar for bar in bars if bar]
    assert longest > 50
    assert half == round(longest / 2)
    assert least == 1


def test_before_the_engine_is_up_it_says_so():
    assert "no replica is up yet" in screen(snapshot(1, replicas=0), 80, 24)


def test_colour_is_used_unless_it_is_unwanted(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = {"force_terminal": True, "color_system": "truecolor"}
    assert "\x1b[32m" in "\n".join(screen(snapshot(7), 80, 24, **terminal))
    monkeypatch.setenv("NO_COLOR", "1")
    text = "\n".join(screen(snapshot(7), 80, 24, **terminal))
    assert not [code for code in range(30, 48) if f"\x1b[{code}m" in text or f";{code}m" in text]


def test_without_utf8_the_picture_is_the_same_in_ascii():
    text = "\n".join(screen(snapshot(210), 80, 24))
    plain = ascii_text(text)
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in text.splitlines()]
    assert "level 2    #########.. 9+2" in plain


def test_a_name_of_several_lines_takes_one_row():
    rows = (program(0, name="two\nlines", id="a\nb"), program(1, name="日本語" * 9))
    lines = screen(RunSnapshot(elapsed_s=1, programs=rows), 80, 24)
    assert len([line for line in lines if "running" in line and "12.3" not in line]) == 3


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_the_progress_line_leaves_out_what_does_not_fit(width):
    line = progress_text(snapshot(0), width).plain
    assert len(line) <= max(width, len("programs: 10 running"))
    assert line.startswith("programs: 10 running")


def test_the_progress_line_says_it_all_in_80_cells():
    assert progress_text(snapshot(0), 80).plain == (
        "programs: 10 running · 9/40 done · 1 failed · 412 calls · 213 tokens/s · 1:23"
    )
