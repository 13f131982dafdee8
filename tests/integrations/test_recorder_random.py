"""Random programs: what is recorded is what the program's structure says.

A program is a tree of the shapes below. Two readings of it are compared: ``Expected`` walks the
tree and says which calls must follow which; ``Runner`` builds a LangGraph graph from it and runs it
under the recorder.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from tests.integrations.recording import State, World, recording


@dataclass(frozen=True)
class Call:
    """One LLM call."""


@dataclass(frozen=True)
class Then:
    """One after the other; empty: no call at all."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Fork:
    """Beside each other, in tasks (threads where the code is synchronous) or always in threads."""

    parts: tuple[Any, ...]
    threads: bool


@dataclass(frozen=True)
class Tool:
    """A tool around what it does."""

    inside: Any


@dataclass(frozen=True)
class Node:
    """A stage of a graph: one node."""

    body: Any


@dataclass(frozen=True)
class Loop:
    """A stage: one node that runs once per body."""

    bodies: tuple[Any, ...]


@dataclass(frozen=True)
class Map:
    """A stage: one ``Send`` per body."""

    bodies: tuple[Any, ...]


@dataclass(frozen=True)
class Branches:
    """A stage: chains of nodes beside each other, then a join."""

    chains: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Graph:
    """Stages one after the other; also the body of a node (a subgraph)."""

    stages: tuple[Any, ...]


def several(shape: Any, least: int = 0) -> Any:
    return st.lists(shape, min_size=least, max_size=3).map(tuple)


blocks = st.recursive(
    st.just(Call()),
    lambda inner: st.one_of(
        several(inner).map(Then),
        st.builds(Fork, several(inner, 1), st.booleans()),
        st.builds(Tool, inner),
    ),
    max_leaves=5,
)


def stages_of(body: Any) -> Any:
    return st.one_of(
        st.builds(Node, body),
        st.builds(Loop, several(body, 1)),
        st.builds(Map, several(body, 1)),
        st.builds(Branches, several(several(body, 1), 2)),
    )


graphs = st.builds(Graph, several(stages_of(blocks), 1))
nested = st.builds(Graph, several(stages_of(st.one_of(blocks, graphs)), 1))


class Expected:
    """The edges that the structure of a program demands."""

    def __init__(self) -> None:
        self.edges: Counter[tuple[str, str]] = Counter()
        self._names: dict[int, Any] = {}

    def walk(self, shape: Any, path: str, before: frozenset[str]) -> frozenset[str]:
        """What follows the shape follows these calls."""
        match shape:
            case Call():
                self.edges.update((one, path) for one in before)
                return frozenset({path})
            case Then(parts):
                for i, part in enumerate(parts):
                    before = self.walk(part, f"{path}.{i}", before)
                return before
            case Fork(parts):
                return self.beside(parts, path, before)
            case Tool(inside):
                self.edges.update((one, path) for one in before)
                return self.walk(inside, f"{path}.t", frozenset({path}))
            case Node(body):
                return self.walk(body, path, before)
            case Loop(bodies):
                return self.walk(Then(bodies), path, before)
            case Map(bodies):
                return self.beside(bodies, path, before)
            case Branches(chains):
                for step in range(max(len(chain) for chain in chains)):
                    tasks = {
                        f"{path}.{i}.{step}": chain[step]
                        for i, chain in enumerate(chains)
                        if step < len(chain)
                    }
                    before = self.superstep(tasks, before)
                return before
            case Graph(stages):
                return self.walk(Then(stages), path, before)
        raise AssertionError(shape)

    def beside(self, parts: Sequence[Any], path: str, before: frozenset[str]) -> frozenset[str]:
        return self.superstep({f"{path}.{i}": part for i, part in enumerate(parts)}, before)

    def superstep(self, tasks: dict[str, Any], before: frozenset[str]) -> frozenset[str]:
        exits = [self.walk(task, path, before) for path, task in tasks.items()]
        made = [calls for calls in exits if calls is not before and calls != before]
        return frozenset().union(*made) if made else before


class Runner:
    """Runs a program on LangGraph."""

    def __init__(self, world: World) -> None:
        self.world = world

    # -- inside a node ------------------------------------------------------------------------

    def do(self, shape: Any, path: str) -> None:
        match shape:
            case Call():
                self.world.call(path)
            case Then(parts):
                for i, part in enumerate(parts):
                    self.do(part, f"{path}.{i}")
            case Fork(parts):
                forked = threading.Event()

                def branch(part: Any, path: str) -> None:
                    forked.wait()
                    self.do(part, path)

                threads = [
                    threading.Thread(target=branch, args=(part, f"{path}.{i}"))
                    for i, part in enumerate(parts)
                ]
                for thread in threads:
                    thread.start()
                forked.set()
                for thread in threads:
                    thread.join()
            case Tool(inside):
                name = path

                def work() -> str:
                    self.do(inside, f"{path}.t")
                    return "ok"

                StructuredTool.from_function(work, name=name, description="work").invoke({})
            case Graph():
                self.graph(shape, path).invoke({"i": 0})

    async def ado(self, shape: Any, path: str) -> None:
        match shape:
            case Call():
                await self.world.acall(path)
            case Then(parts):
                for i, part in enumerate(parts):
                    await self.ado(part, f"{path}.{i}")
            case Fork(parts, threads):
                if threads:
                    work = [
                        asyncio.to_thread(self.do, part, f"{path}.{i}")
                        for i, part in enumerate(parts)
                    ]
                else:
                    work = [self.ado(part, f"{path}.{i}") for i, part in enumerate(parts)]
                await asyncio.gather(*work)
            case Tool(inside):

                async def inner() -> str:
                    await self.ado(inside, f"{path}.t")
                    return "ok"

                tool = StructuredTool.from_function(coroutine=inner, name=path, description="work")
                await tool.ainvoke({})
            case Graph():
                await self.graph(shape, path).ainvoke({"i": 0})

    # -- graphs -------------------------------------------------------------------------------

    def node(self, body: Any, path: str) -> Any:
        if isinstance(body, Graph):
            return self.graph(body, path)

        def work(state: State) -> State:
            self.do(body, path)
            return {"xs": []}

        async def awork(state: State) -> State:
            await self.ado(body, path)
            return {"xs": []}

        return self.world.both(work, awork)

    def picked(self, bodies: Sequence[Any], path: str, pick: Any) -> Any:
        """A node that runs one of several bodies."""

        def work(state: State) -> State:
            i = pick(state)
            self.do(bodies[i], f"{path}.{i}")
            return {"xs": []}

        async def awork(state: State) -> State:
            i = pick(state)
            await self.ado(bodies[i], f"{path}.{i}")
            return {"xs": []}

        return self.world.both(work, awork)

    def graph(self, shape: Graph, path: str) -> Any:
        graph = StateGraph(Anything)
        last = START
        for i, stage in enumerate(shape.stages):
            last = self.add(graph, stage, f"{path}.{i}", last)
        graph.add_edge(last, END)
        return graph.compile()

    def add(self, graph: Any, stage: Any, path: str, last: str) -> str:
        """Add a stage after a node; returns the node that the next stage comes after."""
        match stage:
            case Node(body):
                graph.add_node(path, self.node(body, path))
                graph.add_edge(last, path)
                return path
            case Loop(bodies):
                turn = itertools.count()
                graph.add_node(path, self.picked(bodies, path, lambda state: next(turn)))
                graph.add_edge(last, path)
                graph.add_node(path + " over", quiet)
                left = iter([path] * (len(bodies) - 1))
                graph.add_conditional_edges(
                    path, lambda state: next(left, path + " over"), [path, path + " over"]
                )
                return path + " over"
            case Map(bodies):
                graph.add_node(path + " fork", quiet).add_edge(last, path + " fork")
                graph.add_node(path, self.picked(bodies, path, lambda state: state["i"]))
                sends = [Send(path, {"i": i}) for i in range(len(bodies))]
                graph.add_conditional_edges(path + " fork", lambda state: sends, [path])
                graph.add_node(path + " join", quiet).add_edge(path, path + " join")
                return path + " join"
            case Branches(chains):
                graph.add_node(path + " fork", quiet).add_edge(last, path + " fork")
                ends = []
                for i, chain in enumerate(chains):
                    end = path + " fork"
                    for step, body in enumerate(chain):
                        end = self.add(graph, Node(body), f"{path}.{i}.{step}", end)
                    ends.append(end)
                graph.add_node(path + " join", quiet).add_edge(ends, path + " join")
                return path + " join"
        raise AssertionError(stage)


class Anything(State):
    """A state that any number of tasks may write at once."""

    i: Annotated[Any, lambda one, other: other]  # pyright: ignore


def quiet(state: Any) -> Any:
    """A node that makes no call."""
    return {"xs": []}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=nested, mode=st.sampled_from(["sync", "async", "stream", "astream"]),
       loop=st.sampled_from(["asyncio", "uvloop"]))  # fmt: skip
def test_recorded_edges_are_the_generated_ones(program: Graph, mode: str, loop: str) -> None:
    expected = Expected()
    expected.walk(program, "p", frozenset())
    with recording() as world:
        world.loop = loop
        world.run(Runner(world).graph(program, "p"), {"xs": []}, mode)
        assert world.seen.edges() == expected.edges
        assert world.recorder.tables() == {"runs": 0, "calls": 0, "programs": 0}
