"""``autellix.program``: marks a piece of plain Python as one program."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from .protocols import ProgramEnd
from .session import Session, current_session

F = TypeVar("F", bound=Callable[..., Any])

_numbers: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
_GIVEN_UP = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)


class program:
    """All calls made inside belong to one program.

    As a context manager (``with`` and ``async with``) or a decorator; each call of a decorated
    function, sync or async, is a program of its own.

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
        self._session: Session | None = None
        self._token: Any = None

    def __enter__(self) -> Self:
        self._session = current_session()
        fresh = self.id is None
        if self.id is None:
            self.id = f"{self.name}-{next(_numbers[self.name])}"
        self._token = self._session.recorder.enter_program(self.id, self.name, fresh=fresh)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._session is not None
        status: ProgramEnd = "done"
        if error is not None:
            status = "cancelled" if isinstance(error, _GIVEN_UP) else "failed"
        text = f"{type(error).__name__}: {error}" if status == "failed" else None
        self._session.recorder.exit_program(self._token, status, text)

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
        """Decorate: each call of ``function`` is a program."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with program(self.name):
                    return await function(*args, **kwargs)

            return run_async  # pyright: ignore[reportReturnType]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with program(self.name):
                return function(*args, **kwargs)

        return run  # pyright: ignore[reportReturnType]
