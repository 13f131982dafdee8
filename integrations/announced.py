"""The LLM calls that LangChain has announced and that a context is in the middle of."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple
from uuid import UUID


class _Batch(NamedTuple):
    """The prompts of one ``generate``.

    Attributes:
        size: how many there are.
        calls: those that have been announced, in their order.
    """

    size: int
    calls: tuple[UUID, ...]


_NOTHING = _Batch(0, ())


class Announced:
    """Knows them by context: LangChain announces all prompts of a batch, then sends the first."""

    def __init__(self) -> None:
        self._batch: ContextVar[_Batch] = ContextVar("autellix_announced")

    def announce(self, call: UUID, batch_size: int) -> None:
        """A call begins, one of a batch."""
        size, calls = self._batch.get(_NOTHING)
        is_first = size != batch_size or len(calls) == size
        self._batch.set(_Batch(batch_size, (call,) if is_first else (*calls, call)))

    def calls(self) -> tuple[UUID, ...]:
        """Those of the running code, in their order; they may have ended."""
        return self._batch.get(_NOTHING).calls
