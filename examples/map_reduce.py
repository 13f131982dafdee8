"""Map and reduce with ``Send``: one call per section in parallel, then one that joins them.

    autellix run examples/map_reduce.py --input examples/map_reduce.jsonl

Each input is ``{"title": "...", "sections": ["...", ...]}``.
"""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from autellix import ChatAutellix

MODEL = ChatAutellix(temperature=0, max_tokens=48)


class State(TypedDict):
    """What the graph carries."""

    title: str
    sections: list[str]
    points: Annotated[list[str], operator.add]
    summary: str


class Section(TypedDict):
    """What one worker gets."""

    text: str


def spread(state: State) -> list[Send]:
    """One worker per section."""
    return [Send("condense", Section(text=text)) for text in state["sections"]]


async def condense(section: Section) -> dict:
    """One section in one sentence."""
    reply = await MODEL.ainvoke(f"Say in one short sentence: {section['text']}")
    return {"points": [reply.text]}


async def join(state: State) -> dict:
    """All sentences in one summary."""
    points = "\n".join(f"- {point}" for point in state["points"])
    reply = await MODEL.ainvoke(
        f"Points about {state['title']}:\n{points}\nWrite a two-sentence summary."
    )
    return {"summary": reply.text}


graph = (
    StateGraph(State)
    .add_node("condense", condense)
    .add_node("join", join)
    .add_conditional_edges(START, spread, ["condense"])
    .add_edge("condense", "join")
    .add_edge("join", END)
    .compile()
)
