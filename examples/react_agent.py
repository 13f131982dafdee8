"""A ReAct agent: reason, act with a tool, observe, until it can answer.

    autellix run examples/react_agent.py --input examples/react_agent.jsonl --concurrency 8

Each input is ``{"question": "..."}``. The model must choose a tool in every step (guided decoding
keeps even a small model to the tools' schemas), so the program is a chain of calls and tools.
"""

from __future__ import annotations

import operator
from typing import Annotated, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode

from autellix import ChatAutellix

MAX_STEPS = 4
FACTS = {
    "France": "France: capital Paris, 68 million people, 551,500 square km, currency euro.",
    "Japan": "Japan: capital Tokyo, 124 million people, 377,975 square km, currency yen.",
    "Kenya": "Kenya: capital Nairobi, 55 million people, 580,367 square km, currency shilling.",
    "Brazil": "Brazil: capital Brasilia, 216 million people, 8,515,767 square km, currency real.",
    "Norway": "Norway: capital Oslo, 5.5 million people, 385,207 square km, currency krone.",
    "India": "India: capital New Delhi, 1,428 million people, 3,287,263 square km, currency rupee.",
    "Canada": "Canada: capital Ottawa, 40 million people, 9,984,670 square km, currency dollar.",
    "Egypt": "Egypt: capital Cairo, 112 million people, 1,010,408 square km, currency pound.",
}


class State(TypedDict):
    """What the graph carries."""

    question: str
    messages: Annotated[list[AnyMessage], operator.add]


Country = Literal["France", "Japan", "Kenya", "Brazil", "Norway", "India", "Canada", "Egypt"]


@tool
def look_up(country: Country) -> str:
    """Look up capital, people, area and currency of a country."""
    return FACTS[country]


@tool
def finish() -> str:
    """Say that enough is known to answer the question."""
    return "Now answer the question."


TOOLS = [look_up, finish]
MODEL = ChatAutellix(temperature=0, max_tokens=64)
ACTOR = MODEL.bind_tools(TOOLS, tool_choice="required", parallel_tool_calls=False)
RULES = SystemMessage(
    "You answer questions about countries. Use look_up for each country in the question, then "
    "finish. Tools: look_up(country), finish()."
)


async def act(state: State) -> dict:
    """Choose the next tool."""
    fresh = [] if state["messages"] else [HumanMessage(state["question"])]
    move = await ACTOR.ainvoke([RULES, *state["messages"], *fresh])
    return {"messages": [*fresh, move]}


def go_on(state: State) -> str:
    """Stop acting after ``finish``, a repeated look-up, or too many steps."""
    said = [m for m in state["messages"] if isinstance(m, AIMessage) and m.tool_calls]
    moves = [message.tool_calls[0] for message in said]
    asked = [str(move["args"]) for move in moves]
    over = moves[-1]["name"] == "finish" or len(moves) >= MAX_STEPS
    return "answer" if over or len(set(asked)) < len(asked) else "act"


async def answer(state: State) -> dict:
    """Answer from what the tools said."""
    notes = {m.content for m in state["messages"] if m.type == "tool"}
    prompt = f"Notes:\n{chr(10).join(sorted(notes))}\n\nAnswer in one sentence: {state['question']}"
    return {"messages": [await MODEL.ainvoke(prompt)]}


graph = (
    StateGraph(State)
    .add_node("act", act)
    .add_node("tools", ToolNode(TOOLS))
    .add_node("answer", answer)
    .add_edge(START, "act")
    .add_edge("act", "tools")
    .add_conditional_edges("tools", go_on, ["act", "answer"])
    .add_edge("answer", END)
    .compile()
)
