"""Recognises LangGraph's and LangChain's objects by the names of their classes.

So that finding a program needs neither library, and loads none that the program does not use.
"""

from __future__ import annotations

from typing import Any

GRAPHS = ("langgraph", {"Pregel", "CompiledStateGraph", "PregelProtocol"})
BUILDERS = ("langgraph", {"StateGraph"})
RUNNABLES = ("langchain_core", {"Runnable"})


def is_a(value: Any, kind: tuple[str, set[str]]) -> bool:
    """Whether the value's class, or one that it inherits from, is of a kind."""
    library, names = kind
    return any(
        c.__name__ in names and c.__module__.partition(".")[0] == library
        for c in type(value).__mro__
    )


def is_program(value: Any) -> bool:
    """Whether it is a graph, a builder or another runnable."""
    return any(is_a(value, kind) for kind in (GRAPHS, BUILDERS, RUNNABLES))
