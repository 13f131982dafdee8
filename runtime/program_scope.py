"""``autellix.program``: marks a piece of plain Python as one program."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from autellix.errors import UsageError

from ..integrations.langgraph_private import is_interrupt
from .protocols import ProgramEnd
from .session import Session, current_session

F = TypeVar("F", bound=Callable[..., Any])

_numbers: WeakKeyDictionary[Session, Counter[str]] = WeakKeyDictionary()
_numbering = threading.Lock()
_GIVEN_UP = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)


def _next_number(session: Session, name: str) -> int:
    """How many programs of that name the run has, this one included."""
    with _numbering:
        numbers = _numbers.setdefault(session, Counter())
        numbers[name] += 1
        return numbers[name]


class program:
    """All calls made inside belong to one program.

    As a context manager (``with`` and ``async with``) or a decorator; each call of a decorated
    function, sync or async, is a program of its own; with an ``id``, its next turn.

    Args:
        name: for people, in tables and traces.
        id: unique id; by default the name and a number, and inside another program that one's.

    Example::

        with autellix.program("summarise"):
            model.invoke("...")
    """

    def __init__(self, name: str, *, id: str | None = None) -> None:
        self.name = name
        self.id = id
        self._given_id = id
        self.ending: ProgramEnd = "done"  # how it ends where nothing is raised
        self._session: Session | None = None
        self._token: Any = None

    def __enter__(self) -> Self:
        if self._session is not None:
            raise UsageError(
                f"The scope of program {self.name!r} is entered twice at once. Make one for each: "
                f"with autellix.program({self.name!r})."
            )
        self._session = current_session()
        fresh = self._given_id is None
        self.id = self._given_id or f"{self.name}-{_next_number(self._session, self.name)}"
        self._token = self._session.recorder.enter_program(self.id, self.name, fresh=fresh)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._session is not None
        session, self._session = self._session, None
        status = self.ending
        if error is not None and is_interrupt(error):
            status = "interrupted"
        elif error is not None:
            status = "cancelled" if isinstance(error, _GIVEN_UP) else "failed"
        text = f"{type(error).__name__}: {error}" if status == "failed" else None
        session.recorder.exit_program(self._token, status, text)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        """Decorate: each call of ``function`` is a program.

        Raises:
            UsageError: it is a generator, whose body runs in pieces among its caller's code.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"{function.__name__}() yields, so autellix.program cannot decorate it. Put the "
                f"loop over it into a scope: with autellix.program({self.name!r})."
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with program(self.name, id=self._given_id):
                    return await function(*args, **kwargs)

            return run_async  # pyright: ignore[reportReturnType]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with program(self.name, id=self._given_id):
                return function(*args, **kwargs)

        return run  # pyright: ignore[reportReturnType]
