"""Tree search in the style of LATS: select, expand, evaluate, backpropagate, reflect.

    autellix run examples/tree_search.py --input examples/tree_search.jsonl

Each input is ``{"task": "..."}``. Every round picks the most promising node (UCT), asks for
``WIDTH`` continuations in parallel, rates them in parallel, carries the ratings up the tree, and
reflects on the weakest. The DAG is a sequence of fans: what the critical path is made for.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field

from autellix import ChatAutellix

WIDTH = 3
ROUNDS = 2
WRITER = ChatAutellix(temperature=0.8, seed=7, max_tokens=32)


class Rating(BaseModel):
    """A judge's mark."""

    score: Annotated[int, Field(ge=1, le=10)]


JUDGE = ChatAutellix(temperature=0, max_tokens=16).with_structured_output(Rating)


@dataclass
class Node:
    """A partial answer in the tree."""

    text: str
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """Mean rating of the node and what is below it."""
        return self.total / max(self.visits, 1)

    def uct(self) -> float:
        """Mean rating plus a bonus for nodes that were visited little."""
        assert self.parent is not None
        return self.mean + 2.0 * math.sqrt(math.log(self.parent.visits + 1) / (self.visits + 1))


class Task(TypedDict):
    """What the graph is given."""

    task: str


class Answer(TypedDict):
    """What the graph returns."""

    answer: str


class State(Task, Answer, total=False):
    """What the graph carries."""

    root: Any
    leaf: Any
    fresh: Any
    lesson: str
    round: int


def select(state: State) -> dict:
    """Walk down the best children to a leaf."""
    node: Node = state.get("root") or Node(text="")
    root = node
    while node.children:
        node = max(node.children, key=Node.uct)
    return {"root": root, "leaf": node, "round": state.get("round", 0) + 1}


async def expand(state: State) -> dict:
    """Continue the leaf in several ways at once."""
    leaf: Node = state["leaf"]
    lesson = f" Avoid this: {state['lesson']}" if state.get("lesson") else ""

    async def write(way: int) -> Node:
        prompt = f"{state['task']}{lesson}\nSo far: {leaf.text or '(nothing)'}\nIdea {way + 1}:"
        reply = await WRITER.bind(seed=100 * state["round"] + way).ainvoke(prompt)
        return Node(text=f"{leaf.text} {reply.text.strip()}".strip(), parent=leaf)

    leaf.children = list(await asyncio.gather(*(write(way) for way in range(WIDTH))))
    return {"fresh": leaf.children}


async def evaluate(state: State) -> dict:
    """Rate the new nodes at once and carry the ratings up the tree."""

    async def rate(node: Node) -> None:
        question = f"Task: {state['task']}\nAnswer: {node.text}\nScore from 1 to 10 as JSON:"
        score = float((await JUDGE.ainvoke(question)).score)
        above: Node | None = node
        while above is not None:
            above.visits, above.total, above = above.visits + 1, above.total + score, above.parent

    await asyncio.gather(*(rate(node) for node in state["fresh"]))
    return {}


async def reflect(state: State) -> dict:
    """Learn from the weakest of the new nodes."""
    worst = min(state["fresh"], key=lambda node: node.mean)
    reply = await WRITER.ainvoke(f"In a few words, what is weak about this answer? {worst.text}")
    return {"lesson": reply.text.strip()}


def finish(state: State) -> dict:
    """The best node's text is the answer."""
    best, pile = state["root"], [state["root"]]
    while pile:
        node = pile.pop()
        pile += node.children
        if node.text and (not best.text or node.mean > best.mean):
            best = node
    return {"answer": best.text}


graph = (
    StateGraph(State, input_schema=Task, output_schema=Answer)
    .add_node("select", select)
    .add_node("expand", expand)
    .add_node("evaluate", evaluate)
    .add_node("reflect", reflect)
    .add_node("finish", finish)
    .add_edge(START, "select")
    .add_edge("select", "expand")
    .add_edge("expand", "evaluate")
    .add_edge("evaluate", "reflect")
    .add_conditional_edges(
        "reflect", lambda s: "select" if s["round"] < ROUNDS else "finish", ["select", "finish"]
    )
    .add_edge("finish", END)
    .compile()
)
