"""LangGraph and LangChain: recording programs, the chat model; the only room that imports them."""
