"""What runs learn of programs outlives them, and nothing in the file can stop a run."""

from __future__ import annotations

import logging
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import autellix
from autellix.integrations.chat_model import ChatAutellix
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.lessons import Lessons, lessons_beside
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings
from tests.conftest import SEATS


def learn(lessons: Lessons, name: str, *works: float) -> None:
    for work in works:
        lessons.history.worked(name, 0.0, work)
        lessons.history.ended(name, work)


def run(path: str, name: str, *works: float) -> None:
    lessons = Lessons(Path(path), recall=True)
    learn(lessons, name, *works)
    lessons.keep()


def ends(path: Path, name: str) -> float:
    return sum(Lessons(path, recall=True).history.names[name].ends)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return lessons_beside(tmp_path / "state" / "journal.sqlite")


def test_a_run_on_the_engine_leaves_lessons_to_the_next(
    engine_host: EngineHost, tmp_path: Path
) -> None:
    settings = Settings(quiet=True, journal=tmp_path / "journal.sqlite")
    for programs_before in (0, 1):
        session = Session(settings, engine_host)
        session.start()
        use_session(session)
        try:
            history = session.programs.table.history
            known = history.names.get("greeter")
            assert (sum(known.ends) if known else 0) == programs_before
            assert (history.to_come_s("greeter", "ask") > 0.0) == bool(programs_before)
            with autellix.program("greeter"):
                asker().invoke({"text": "Hello"})
        finally:
            use_session(None)
            session.close()
        assert history.prompt_share == SEATS / 256
        first, last = (history.to_come_s("greeter", node) for node in ("ask", "answer"))
        assert first > last > 0.0


class Said(TypedDict):
    text: str


def asker() -> Any:
    """Two calls one after the other, each in a node of its own."""

    def say(state: Said) -> Said:
        return {"text": str(ChatAutellix(max_tokens=2).invoke(state["text"]).content)}

    graph = StateGraph(Said)
    graph.add_node("ask", say)
    graph.add_node("answer", say)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "answer")
    return graph.compile()


def test_they_lie_beside_the_journal() -> None:
    assert lessons_beside(Path("/s/journal.sqlite")) == Path("/s/journal.lessons.json")


def test_a_run_begins_with_what_the_one_before_learned(path: Path) -> None:
    run(str(path), "agent", 500.0, 600.0)
    again = Lessons(path, recall=True).history
    assert again.places("agent") != Lessons(path, recall=False).history.places("agent")
    assert ends(path, "agent") == 2


def test_what_was_learned_on_other_seats_is_kept_and_not_mixed_in(path: Path) -> None:
    for seats, work in ((8, 500.0), (256, 900.0), (8, 600.0)):
        lessons = Lessons(path, recall=True, seats=seats)
        learn(lessons, "agent", work)
        lessons.keep()
    assert sum(Lessons(path, recall=True, seats=8).history.names["agent"].ends) == 2
    assert sum(Lessons(path, recall=True, seats=256).history.names["agent"].ends) == 1
    assert not Lessons(path, recall=True, seats=16).history.names


def test_the_file_holds_the_newest_histories(path: Path) -> None:
    for seats in range(1, 12):
        lessons = Lessons(path, recall=True, seats=seats)
        learn(lessons, "agent", 500.0)
        lessons.keep()
    held = [bool(Lessons(path, recall=True, seats=n).history.names) for n in range(1, 12)]
    assert held == [False] * 3 + [True] * 8


def test_a_run_that_does_not_remember_teaches_later_ones_all_the_same(path: Path) -> None:
    run(str(path), "agent", 500.0)
    forgetful = Lessons(path, recall=False)
    assert not forgetful.history.names
    learn(forgetful, "agent", 700.0)
    forgetful.keep()
    assert ends(path, "agent") == 2


def test_what_was_kept_is_not_kept_twice(path: Path) -> None:
    lessons = Lessons(path, recall=True)
    learn(lessons, "agent", 500.0)
    lessons.keep()
    lessons.keep()
    learn(lessons, "agent", 600.0)
    lessons.keep()
    assert ends(path, "agent") == 2


def test_runs_side_by_side_do_not_lose_each_others_lessons(path: Path) -> None:
    processes = [
        get_context("spawn").Process(target=run, args=(str(path), "agent", 100.0 * i, 7.0))
        for i in range(1, 4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert ends(path, "agent") == 6


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"bounds": [1, 2, 3]}'])
def test_a_broken_file_is_left_out_with_one_line_and_replaced(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="autellix"):
        lessons = Lessons(path, recall=True)
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    learn(lessons, "agent", 500.0)
    lessons.keep()
    assert ends(path, "agent") == 1


def test_a_run_that_learned_nothing_writes_nothing(path: Path) -> None:
    Lessons(path, recall=True).keep()
    assert not path.parent.exists()


def test_a_folder_that_cannot_be_written_costs_the_lessons_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    lessons = Lessons(tmp_path / "file" / "lessons.json", recall=False)
    learn(lessons, "agent", 500.0)
    with caplog.at_level(logging.WARNING, logger="autellix"):
        lessons.keep()
    assert "not kept" in caplog.text
