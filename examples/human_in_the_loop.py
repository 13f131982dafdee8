"""Letters that a person approves: the graph stops to ask, and goes on in another process.

    autellix run examples/human_in_the_loop.py --input examples/human_in_the_loop.jsonl \
        --checkpointer sqlite:letters.db --thread-id letter
    autellix run examples/human_in_the_loop.py \
        --checkpointer sqlite:letters.db --thread-id letter-1 --resume '"approve"'

Each input is ``{"topic": "..."}`` and runs on a thread of its own: letter-1, letter-2 and so on.
The answer is ``approve``, or what to change. While the person thinks the program holds nothing; it
goes on with the place in the schedule that it had.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from autellix import ChatAutellix

MODEL = ChatAutellix(temperature=0, max_tokens=48)


class Letter(TypedDict, total=False):
    """A letter on its way."""

    topic: str
    text: str
    change: str
    sent: bool


async def write(letter: Letter) -> Letter:
    """Write the letter, or write it again with the change that was asked for."""
    prompt = f"Write one short sentence to a friend about {letter['topic']}."
    if letter.get("change"):
        prompt += f" Before, you wrote: {letter['text']} Now {letter['change']}."
    return {"text": (await MODEL.ainvoke(prompt)).text}


def approve(letter: Letter) -> Command[Literal["send", "write"]]:
    """Ask a person; the graph stops here until there is an answer."""
    answer = interrupt(f"Send this? {letter['text']}")
    if answer == "approve":
        return Command(goto="send")
    return Command(goto="write", update={"change": answer})


def send(letter: Letter) -> Letter:
    """Send it."""
    return {"sent": True}


graph = (
    StateGraph(Letter)
    .add_node("write", write)
    .add_node("approve", approve)
    .add_node("send", send)
    .add_edge(START, "write")
    .add_edge("write", "approve")
    .add_edge("send", END)
    .compile()
)
