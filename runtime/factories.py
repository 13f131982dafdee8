"""Factories: functions that make the graph to run.

A factory takes nothing or ``config``, and is one of::

    def make(): return graph                                the graph is made at once
    async def make(): return graph                          on the event loop that runs it
    @asynccontextmanager                                    the same, and closed after the run
    async def make(): yield graph                           (so is one that is not async)

It is called once for the whole run: all inputs run on one graph.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from autellix.errors import TargetError

from .graph_kinds import is_program
from .import_errors import plain_import_errors


def is_factory(function: Any) -> bool:
    """Whether a function makes a graph: a program takes one argument, its input."""
    names = list(inspect.signature(function).parameters)
    return names == ["config"] or (not names and function.__name__ != "main")


class Factory:
    """A factory of a target's module.

    Args:
        function: the factory itself.
        name: what it is called there.
        place: the file or module, for messages.
    """

    def __init__(self, function: Any, name: str, place: str) -> None:
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            decorator = (
                "asynccontextmanager" if inspect.isasyncgenfunction(function) else "contextmanager"
            )
            raise TargetError(
                f"{name}() in {place} yields its graph. Put @contextlib.{decorator} above it, so "
                "that it is closed after the run, or return the graph."
            )
        self._function = function
        self._name = name
        self._place = place
        self._made: Any = None

    @property
    def is_deferred(self) -> bool:
        """Whether the graph is made only when the run begins; a plain one is made here."""
        if inspect.iscoroutinefunction(self._function):
            return True
        if self._made is None:
            self._made = self._call()
        return inspect.isawaitable(self._made) or _closes(self._made)

    def make(self) -> Any:
        """The graph of a factory that is not deferred."""
        return self._checked(self._made)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        """The graph, made on the running event loop and closed at the end."""
        made = self._call() if self._made is None else self._made
        async with contextlib.AsyncExitStack() as stack:
            with self._plain_errors():
                if inspect.isawaitable(made):
                    made = await made
                if hasattr(type(made), "__aenter__"):
                    made = await stack.enter_async_context(made)
                elif _closes(made):
                    made = stack.enter_context(made)
            yield self._checked(made)

    def _call(self) -> Any:
        takes_config = bool(inspect.signature(self._function).parameters)
        with self._plain_errors():
            return self._function({"configurable": {}}) if takes_config else self._function()

    def _plain_errors(self) -> contextlib.AbstractContextManager[None]:
        return plain_import_errors(Path(inspect.getfile(self._function)), Path.cwd())

    def _checked(self, made: Any) -> Any:
        if is_program(made):
            return made
        raise TargetError(
            f"{self._name}() in {self._place} returned {type(made).__name__}, not a graph. A "
            "factory returns a graph; a program takes one argument, its input."
        )


def _closes(made: Any) -> bool:
    kind = type(made)
    return not is_program(made) and (hasattr(kind, "__aenter__") or hasattr(kind, "__enter__"))
