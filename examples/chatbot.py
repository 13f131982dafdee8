"""A chatbot with memory: several turns of one thread are one program.

    autellix run examples/chatbot.py --input examples/chatbot.jsonl

Each input is ``{"thread": "...", "turns": ["...", ...]}``. The graph keeps the conversation by
``thread_id``; the time between turns, when a person would think, is an interrupt of the program.
"""

from __future__ import annotations

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from autellix import ChatAutellix

MODEL = ChatAutellix(temperature=0, max_tokens=48)


async def reply(state: MessagesState) -> dict:
    """Answer the last message, with all that was said before."""
    return {"messages": [await MODEL.ainvoke(state["messages"])]}


_chat = (
    StateGraph(MessagesState)
    .add_node("reply", reply)
    .add_edge(START, "reply")
    .compile(checkpointer=InMemorySaver())
)


async def main(conversation: dict) -> dict:
    """Hold one conversation; what the bot said in each turn is the output."""
    config = {"configurable": {"thread_id": conversation["thread"]}}
    said = []
    for turn in conversation["turns"]:
        state = await _chat.ainvoke({"messages": [("user", turn)]}, config)
        said.append(state["messages"][-1].text)
    return {"said": said}
