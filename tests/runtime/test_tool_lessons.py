"""What runs see of tools outlives them, and nothing in the file can stop a run."""

from __future__ import annotations

import logging
from multiprocessing import get_context
from pathlib import Path

import pytest

from autellix.runtime.absences import Absences
from autellix.runtime.protocols import CallStart
from autellix.runtime.tool_lessons import ToolLessons, tool_lessons_beside


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tool_lessons_beside(tmp_path / "state" / "journal.sqlite")


def run(path: Path, name: str, *seconds: float) -> None:
    lessons = ToolLessons(path)
    for one in seconds:
        lessons.times.add(name, one)
    lessons.keep()
    lessons.keep()  # safe to call again


def test_they_lie_beside_the_journal() -> None:
    assert tool_lessons_beside(Path("/s/journal.sqlite")) == Path("/s/journal.tools.json")
    assert tool_lessons_beside(Path()) == Path(".tools.json")


def test_the_engine_hears_what_earlier_runs_saw_with_the_first_tool_of_a_run(path: Path) -> None:
    run(path, "grep", 2.0, 2.0)
    run(path, "grep", 3.0, 3.0)
    told: list[tuple[float, ...]] = []
    absences = Absences(
        lambda program, absence_s: told.append(tuple(absence_s)),
        tool_times=ToolLessons(path).times,
    )
    tool = CallStart(program="p", call="t", kind="tool", name="grep", node=None, parents=())
    absences.call_started(tool)
    assert told == [(2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0)]


def test_what_two_runs_saw_at_the_same_time_is_added_up(path: Path) -> None:
    first, second = ToolLessons(path), ToolLessons(path)
    for lessons, seconds in ((first, 1.0), (second, 2.0)):
        for _ in range(2):
            lessons.times.add("make", seconds)
        lessons.keep()
    assert ToolLessons(path).times.to_wire() == {"make": [1.0, 1.0, 2.0, 2.0]}


def test_runs_that_end_at_once_lose_nothing(path: Path) -> None:
    started = get_context("fork")
    runs = [started.Process(target=run, args=(path, f"tool{i}", 1.0)) for i in range(8)]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    assert sorted(ToolLessons(path).times.to_wire()) == [f"tool{i}" for i in range(8)]


def test_a_tools_last_durations_push_older_ones_out(path: Path) -> None:
    run(path, "grep", *[1.0] * 64)
    run(path, "grep", *[5.0] * 60)
    assert ToolLessons(path).times.deciles_s("grep") == (5.0,) * 9
    assert len(ToolLessons(path).times.to_wire()["grep"]) == 64


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"grep": 3}',
        '{"grep": ["x"]}',
        "\x00",
        '{"grep": [1' + 400 * "0" + "]}",
        100_000 * "[",
    ],
)
def test_a_file_that_cannot_be_read_is_left_out_with_a_line_and_replaced(
    path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING, "autellix"):
        lessons = ToolLessons(path)
    assert lessons.times.to_wire() == {} and "left out" in caplog.text
    run(path, "grep", 1.0)
    assert ToolLessons(path).times.to_wire() == {"grep": [1.0]}


def test_a_file_that_cannot_be_written_is_said_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("no folder", encoding="utf-8")
    lessons = ToolLessons(tool_lessons_beside(tmp_path / "state" / "journal.sqlite"))
    lessons.times.add("grep", 1.0)
    with caplog.at_level(logging.WARNING, "autellix"):
        lessons.keep()
    assert "was not kept" in caplog.text


def test_a_run_that_saw_no_tool_writes_nothing(path: Path) -> None:
    run(path, "grep")
    assert not path.exists()
