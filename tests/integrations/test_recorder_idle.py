"""Nodes with an idle timeout: a call that waits in the engine's queue is a sign of life."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langgraph import types
from langgraph.graph import START, StateGraph

from autellix.integrations import langgraph_private
from tests.integrations.recording import State, World

pytestmark = pytest.mark.skipif(
    not hasattr(types, "TimeoutPolicy"), reason="this LangGraph has no idle timeouts"
)


def graph_with(node: Any, **timeouts: float) -> Any:
    policy = types.TimeoutPolicy(**timeouts)  # type: ignore[attr-defined]
    return StateGraph(State).add_node("n", node, timeout=policy).add_edge(START, "n").compile()


def test_a_node_with_an_idle_timeout_can_be_told_of_life_and_others_need_not() -> None:
    found = []

    async def node(state: State) -> State:
        found.append(langgraph_private.heartbeat_of_node())
        return {}

    asyncio.run(graph_with(node, idle_timeout=60.0).ainvoke({"xs": []}))
    asyncio.run(graph_with(node, run_timeout=60.0).ainvoke({"xs": []}))
    found.append(langgraph_private.heartbeat_of_node())
    assert callable(found[0])
    assert found[1:] == [None, None]


def test_open_llm_calls_are_told_of_and_ended_ones_are_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[str] = []
    monkeypatch.setattr(
        langgraph_private, "heartbeat_of_node", lambda: lambda: beats.append("alive")
    )
    thread = threading.Thread(target=world.model.invoke, args=("a@gate",))
    thread.start()
    world.gates.wait("a began")
    world.recorder.beat()
    assert beats == ["alive"]
    world.gates.open("gate")
    thread.join()
    world.recorder.beat()
    assert beats == ["alive"]


def test_a_node_that_waits_for_a_call_outlives_its_idle_timeout(world: World) -> None:
    idle_s = 2.0

    async def node(state: State) -> State:
        beating = asyncio.create_task(beat())
        await world.model.ainvoke("a@gate")
        await beating
        return {"i": 1}

    async def beat() -> None:
        # Far longer than the timeout, told of life much more often than it allows.
        for _ in range(15):
            await asyncio.sleep(idle_s / 10)
            world.recorder.beat()
        world.gates.open("gate")

    assert asyncio.run(graph_with(node, idle_timeout=idle_s).ainvoke({"xs": []}))["i"] == 1
