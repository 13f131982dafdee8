"""The launcher: as many at once as allowed, in order, each with an outcome of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from autellix.runtime.inputs import InputLine
from autellix.runtime.launcher import Outcome, failure_text, run_programs
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings
from autellix.runtime.targets import Entry


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    """A run without an engine: its programs make no calls."""
    session = Session(Settings(quiet=True))
    use_session(session)
    session.recorder.install()
    yield session
    session.recorder.uninstall()
    use_session(None)
    assert not session.programs.table.programs


def function(call: Callable[..., Any]) -> Entry:
    is_async = asyncio.iscoroutinefunction(call)
    return Entry(name="work", kind="function", call=call, is_async=is_async)


def numbered(*values: Any) -> list[InputLine]:
    return [InputLine(number=n, value=value) for n, value in enumerate(values, 1)]


def run(
    entry: Entry, lines: list[InputLine], concurrency: int = 2
) -> tuple[list[Outcome], list[int]]:
    """The outcomes, and the numbers of their lines in the order in which they came."""
    came: list[int] = []
    outcomes = asyncio.run(
        run_programs(
            entry, lines, concurrency=concurrency, on_outcome=lambda o: came.append(o.line)
        )
    )
    return outcomes, came


def test_outcomes_come_as_they_end_and_are_returned_in_the_order_of_the_lines() -> None:
    gate = asyncio.Event()

    async def work(value: int) -> int:
        if value == 1:
            await gate.wait()
        elif value == 3:
            gate.set()
        return value * 10

    outcomes, came = run(function(work), numbered(1, 2, 3))
    assert [outcome.output for outcome in outcomes] == [10, 20, 30]
    assert sorted(came) == [1, 2, 3]
    assert came[0] == 2
    assert len({outcome.program for outcome in outcomes}) == 3


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_run_at_once_than_allowed(concurrency: int) -> None:
    running, most = 0, 0

    async def work(value: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    run(function(work), numbered(*range(7)), concurrency)
    assert most == concurrency


def test_plain_functions_run_beside_each_other_in_threads() -> None:
    both = threading.Barrier(2)

    def work(value: int) -> str:
        both.wait(timeout=10)
        return threading.current_thread().name

    outcomes, _ = run(function(work), numbered(1, 2))
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    assert outcomes[0].output != outcomes[1].output


def test_a_program_that_raises_fails_alone() -> None:
    def work(value: int) -> float:
        return 1 / value

    outcomes, _ = run(function(work), numbered(0, 1))
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert outcomes[0].error is not None
    assert outcomes[0].error.startswith("ZeroDivisionError: division by zero (test_launcher.py")
    assert "1 / value" in (outcomes[0].trace_back or "")


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_a_program_that_ends_itself_does_not_end_the_run(error: BaseException) -> None:
    async def work(value: int) -> int:
        if value == 1:
            raise error
        return value

    outcomes, _ = run(function(work), numbered(1, 2))
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]


def test_a_line_that_cannot_be_read_is_a_failed_outcome_without_a_program() -> None:
    async def work(value: int) -> int:
        return value

    lines = [InputLine(number=1, error="line 1: no valid JSON"), InputLine(number=2, value=5)]
    outcomes, _ = run(function(work), lines)
    assert (outcomes[0].status, outcomes[0].program) == ("failed", None)
    assert outcomes[0].error == "line 1: no valid JSON"
    assert outcomes[1].output == 5


def test_a_graph_that_asks_a_person_is_interrupted() -> None:
    def ask(state: dict) -> dict:
        return {"n": interrupt("how many?")}

    from langgraph.checkpoint.memory import InMemorySaver

    graph = StateGraph(dict).add_node("ask", ask).add_edge(START, "ask")
    call = graph.compile(checkpointer=InMemorySaver()).with_config(
        {"configurable": {"thread_id": "one"}}
    )
    entry = Entry(name="asks", kind="graph", call=call, is_async=True)
    (outcome,), _ = run(entry, numbered({"n": 0}))
    assert outcome.status == "interrupted"


def test_cancelling_the_run_leaves_every_line_with_an_outcome() -> None:
    begun: list[int] = []

    async def work(value: int) -> int:
        begun.append(value)
        if value > 1:
            await asyncio.Event().wait()
        return value

    async def main() -> list[Outcome]:
        outcomes: list[Outcome] = []
        runs = run_programs(
            function(work), numbered(1, 2, 3, 4), concurrency=2, on_outcome=outcomes.append
        )
        task = asyncio.create_task(runs)
        while len(begun) < 3:
            await asyncio.sleep(0)
        task.cancel()
        return await task

    outcomes = asyncio.run(main())
    assert [o.status for o in outcomes] == ["done", "cancelled", "cancelled", "cancelled"]
    assert begun == [1, 2, 3]


# ── an error in one line ─────────────────────────────────────────────────────────────────────


def test_a_failure_names_the_innermost_line_of_the_users_own_files() -> None:
    import json

    try:
        json.loads("{")
    except ValueError as error:
        text = failure_text(error)
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert "(test_launcher.py line " in text


def test_a_failure_without_words_or_place_is_its_kind() -> None:
    assert failure_text(KeyError()) == "KeyError"
    assert failure_text(ValueError("two\nlines")) == "ValueError: two lines"
