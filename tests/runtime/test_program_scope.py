"""``autellix.program``: what is inside belongs to one program."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import autellix
from autellix.errors import UsageError
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple]]:
    """What the runtime hears of programs, in order."""
    session = Session(Settings(quiet=True))
    heard: list[tuple] = []
    monkeypatch.setattr(
        session.programs, "program_started", lambda id, name: heard.append(("begin", id, name))
    )
    monkeypatch.setattr(
        session.programs,
        "program_ended",
        lambda id, status, error: heard.append(("end", id, status, error)),
    )
    use_session(session)
    session.recorder.install()
    yield heard
    session.recorder.uninstall()
    use_session(None)


def test_a_scope_begins_and_ends_a_program(told: list[tuple]) -> None:
    with autellix.program("report", id="r-1") as scope:
        assert scope.id == "r-1"
    assert told == [("begin", "r-1", "report"), ("end", "r-1", "done", None)]


def test_without_an_id_each_scope_is_a_program_of_its_own(told: list[tuple]) -> None:
    scope = autellix.program("named")
    with scope:
        first = scope.id
    with scope:
        second = scope.id
    with autellix.program("named") as other:
        third = other.id
    assert len({first, second, third}) == 3
    assert all(str(id).startswith("named-") for id in (first, second, third))
    assert [row[0] for row in told] == ["begin", "end"] * 3


def test_an_id_given_again_is_the_programs_next_turn(told: list[tuple]) -> None:
    for _ in range(2):
        with autellix.program("chat", id="thread-7"):
            pass
    assert [row[:2] for row in told] == [("begin", "thread-7"), ("end", "thread-7")] * 2


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ValueError("x"), "failed", "ValueError: x"),
        (KeyboardInterrupt(), "cancelled", None),
        (asyncio.CancelledError(), "cancelled", None),
    ],
)
def test_an_error_ends_the_program_and_goes_on(
    told: list[tuple], error: BaseException, status: str, text: str | None
) -> None:
    with pytest.raises(type(error)), autellix.program("fails", id="f"):
        raise error
    assert told[-1] == ("end", "f", status, text)


def test_a_scope_inside_a_program_is_part_of_it(told: list[tuple]) -> None:
    with autellix.program("outer", id="o"), autellix.program("inner"):
        pass
    assert [row[:2] for row in told] == [("begin", "o"), ("end", "o")]


def test_a_decorated_function_is_a_program_at_each_call(told: list[tuple]) -> None:
    @autellix.program("double")
    def double(n: int) -> int:
        """Twice."""
        return n * 2

    @autellix.program("triple")
    async def triple(n: int) -> int:
        return n * 3

    async def both() -> list[int]:
        return await asyncio.gather(triple(1), triple(2))

    assert (double(2), double(3)) == (4, 6)
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert asyncio.run(both()) == [3, 6]
    ids = [row[1] for row in told if row[0] == "begin"]
    assert len(set(ids)) == len(ids) == 4


def test_a_generator_is_not_decorated_silently() -> None:
    def numbers():
        yield 1

    async def later():
        yield 1

    for function in (numbers, later):
        with pytest.raises(UsageError, match=r"yields.*with autellix\.program\('g'\)"):
            autellix.program("g")(function)


def test_one_scope_is_not_entered_twice_at_once() -> None:
    scope = autellix.program("twice")
    with scope, pytest.raises(UsageError, match="entered twice"):
        scope.__enter__()
    with scope:
        pass


def test_async_scopes_work_the_same(told: list[tuple]) -> None:
    async def main() -> None:
        async with autellix.program("later", id="l"):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert [row[:2] for row in told] == [("begin", "l"), ("end", "l")]
