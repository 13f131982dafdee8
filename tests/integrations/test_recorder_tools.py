"""Tools: calls with an exact start and end, and scopes for the calls inside them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from tests.integrations.recording import State, World, chain_of, dag


class Agent(BaseChatModel):
    """Asks for ``width`` tools in each of its first ``turns`` answers."""

    turns: int = 2
    width: int = 1

    @property
    def _llm_type(self) -> str:
        return "agent"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any) -> Any:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        calls: list[Any] = []
        if turn < self.turns:
            calls = [
                {"name": "look", "args": {"q": f"{turn}{i}"}, "id": str(uuid.uuid4())}
                for i in range(self.width)
            ]
        message = AIMessage(f"think{turn}", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def look_tool(world: World) -> Any:
    if world.agent_width == 1:  # type: ignore[attr-defined]
        gathered = None
    else:
        import threading

        gathered = threading.Barrier(world.agent_width)  # type: ignore[attr-defined]

    @tool
    def look(q: str) -> str:
        """Look something up."""
        if gathered is not None:
            gathered.wait(20)
        return "saw " + q

    return look


def ask(world: World, mode: str, build: Any, **agent: Any) -> None:
    world.agent_width = agent.get("width", 1)  # type: ignore[attr-defined]
    graph = build(Agent(**agent), [look_tool(world)])
    config = {"configurable": {"thread_id": "th"}}
    world.run(graph, {"messages": [HumanMessage("q")]}, mode, config)
    assert world.seen.programs() == {"th"}


def create_agent(model: Any, tools: Any) -> Any:
    from langchain.agents import create_agent

    return create_agent(model, tools)


def one_tool_node(model: Any, tools: Any) -> Any:
    from langgraph.prebuilt import create_react_agent

    return create_react_agent(model, tools, version="v1")


def test_an_agent_alternates_between_model_and_tool(world: World, mode: str) -> None:
    ask(world, mode, create_agent)
    assert world.seen.ordinal_edges() == dag("llm1>tool1 tool1>llm2 llm2>tool2 tool2>llm3")


def test_tools_of_one_answer_run_beside_each_other(world: World, mode: str) -> None:
    ask(world, mode, create_agent, width=2)
    assert world.seen.ordinal_edges() == dag(
        "llm1>tool1 llm1>tool2 tool1>llm2 tool2>llm2 llm2>tool3 llm2>tool4 tool3>llm3 tool4>llm3"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tools_inside_one_tool_node_run_beside_each_other(world: World, mode: str) -> None:
    ask(world, mode, one_tool_node, turns=1, width=3)
    assert world.seen.ordinal_edges() == dag(
        "llm1>tool1 llm1>tool2 llm1>tool3 tool1>llm2 tool2>llm2 tool3>llm2"
    )


def test_calls_inside_a_tool_hang_below_it(world: World, mode: str) -> None:
    @tool
    def deep(q: str) -> str:
        """Think while looking."""
        return world.call("in1") + world.call("in2")

    @tool
    def flat(q: str) -> str:
        """Do not think."""
        return q

    def node(state: State) -> State:
        world.call("before")
        deep.invoke("x")
        flat.invoke("x")
        world.call("after")
        return {"i": 1}

    world.run(chain_of(n=node).compile(), {"i": 0}, mode)
    assert world.seen.edges() == dag("before>deep deep>in1 in1>in2 in2>flat flat>after")


def test_an_asynchronous_tool_starts_and_ends_around_its_calls(world: World, loop: str) -> None:
    order: list[str] = []

    @tool
    async def deep(q: str) -> str:
        """Think while looking."""
        order.append("tool begins")
        answer = await world.acall("in")
        order.append("tool ends")
        return answer

    async def main() -> None:
        order.append(await world.acall("a"))
        await deep.ainvoke("x")
        order.append(await world.acall("b"))

    world.arun(main())
    assert order == ["a", "tool begins", "tool ends", "b"]
    assert [e[2] for e in world.seen.events if e[0] == "call"] == [
        "Model",
        "deep",
        "Model",
        "Model",
    ]
    assert [world.seen.named()[id] for id in world.seen.ends] == ["a", "in", "deep", "b"]
    assert world.seen.edges() == dag("a>deep deep>in in>b")


def test_a_tool_that_fails_is_a_failed_call(world: World) -> None:
    @tool
    def broken(q: str) -> str:
        """Fail."""
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        broken.invoke("x")
    assert world.seen.statuses() == {"broken": "failed"}
    assert list(world.seen.errors.values()) == ["ValueError: no such thing"]


def test_a_tool_that_asks_a_person_has_not_failed(world: World, mode: str) -> None:
    @tool
    def confirm(q: str) -> str:
        """Ask a person."""
        return str(interrupt("sure?"))

    def node(state: State) -> State:
        confirm.invoke("x")
        world.call("after")
        return {"i": 1}

    graph = chain_of(n=node).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    world.run(graph, {"i": 0}, mode, config)
    world.run(graph, Command(resume="yes"), mode, config)
    assert set(world.seen.ends.values()) == {"done"}
    assert world.seen.outcomes() == [("t", "interrupted"), ("t", "done")]
    assert world.seen.edges() == dag("confirm>confirm confirm>after")
