"""A factory makes the graph: at once, on the event loop that runs it, or open for the whole run."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autellix.errors import TargetError
from autellix.runtime.targets import load_program, opened

FACTORIES = """
    import asyncio
    from contextlib import asynccontextmanager, contextmanager
    from typing import TypedDict
    from langgraph.graph import StateGraph

    seen = []

    class State(TypedDict):
        n: int

    def builder():
        return StateGraph(State).add_node("one", lambda s: {"n": s["n"] + 1}).set_entry_point("one")

    def plain(): return builder()
    def configured(config):
        seen.append(config["configurable"].get("user"))
        return builder().compile()

    async def later():
        seen.append(asyncio.get_running_loop())
        return builder().compile()

    async def later_configured(config):
        return builder()

    @asynccontextmanager
    async def open_async():
        seen.append("opened")
        yield builder().compile()
        seen.append("closed")

    @contextmanager
    def open_sync(config):
        seen.append("opened")
        try:
            yield builder()
        finally:
            seen.append("closed")

    async def nothing(): return None
    async def broken(): raise OSError("no such table")

    @asynccontextmanager
    async def broken_open():
        raise OSError("no such table")
        yield

    async def bare():
        yield builder()

    def bare_sync():
        yield builder()
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[object]]]:
    """Writes agent.py; what its factories noted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "agent.py").write_text(textwrap.dedent(FACTORIES))
    yield lambda: sys.modules["agent"].seen
    sys.modules.pop("agent", None)


async def run(name: str) -> object:
    async with opened(load_program(f"agent.py:{name}")) as entry:
        assert (entry.name, entry.kind) == (name, "graph")
        return await entry.call.ainvoke({"n": 1})


@pytest.mark.parametrize(
    "name", ["plain", "configured", "later", "later_configured", "open_async", "open_sync"]
)
def test_a_factory_makes_the_graph_that_runs(seen: Callable[..., list[object]], name: str) -> None:
    assert asyncio.run(run(name)) == {"n": 2}


def test_an_async_factory_runs_on_the_loop_of_its_graph(seen: Callable[..., list[object]]) -> None:
    async def main() -> object:
        await run("later")
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    assert seen() == [loop]


@pytest.mark.parametrize("name", ["open_async", "open_sync"])
def test_a_context_manager_is_open_for_the_run_and_closed_after_it(
    seen: Callable[..., list[object]], name: str
) -> None:
    async def main() -> None:
        async with opened(load_program(f"agent.py:{name}")) as entry:
            await entry.call.ainvoke({"n": 1})
            assert seen() == ["opened"]

    asyncio.run(main())
    assert seen() == ["opened", "closed"]


def test_an_async_factory_is_not_called_before_the_run(seen: Callable[..., list[object]]) -> None:
    load_program("agent.py:later")
    assert seen() == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "nothing() in agent.py returned NoneType, not a graph"),
        ("broken", "no such table"),
        ("broken_open", "no such table"),
        ("bare", "Put @contextlib.asynccontextmanager above it"),
        ("bare_sync", "Put @contextlib.contextmanager above it"),
    ],
)
def test_a_factory_that_makes_no_graph_is_told_why(
    seen: Callable[..., list[object]], name: str, said: str
) -> None:
    with pytest.raises(TargetError) as raised:
        asyncio.run(run(name))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_cancelled_factory_stays_cancelled(seen: Callable[..., list[object]]) -> None:
    async def main() -> None:
        making = asyncio.create_task(run("later"))
        asyncio.get_running_loop().call_soon(making.cancel)
        await making

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
