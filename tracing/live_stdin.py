"""The program's standard input while somebody else reads keys from the same terminal."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

_READS = ("read", "read1", "readinto", "readinto1", "readline", "readlines", "peek")


@contextlib.contextmanager
def lend_stdin(
    lent: Callable[[], AbstractContextManager[None]], given_up: Callable[[], None]
) -> Iterator[None]:
    """Inside, ``input()`` and reads of ``sys.stdin`` happen inside ``lent()``.

    Args:
        lent: makes the terminal the program's for as long as it lasts.
        given_up: called when the program takes the file descriptor, to read in its own way.
    """
    stdin, ask = sys.stdin, builtins.input

    def asking(prompt: object = "", /) -> str:
        with lent():
            ours, sys.stdin = sys.stdin, stdin if sys.stdin is shown else sys.stdin
            try:
                return ask(prompt)
            finally:
                sys.stdin = ours

    shown: Any = _Lent(stdin, lent, given_up)
    sys.stdin, builtins.input = shown, asking
    try:
        yield
    finally:
        # What the program has put in their place since stays.
        if sys.stdin is shown:
            sys.stdin = stdin
        if builtins.input is asking:
            builtins.input = ask


class _Lent:
    """A stream whose reads borrow the terminal; everything else is the stream's own."""

    def __init__(
        self,
        stream: Any,
        lent: Callable[[], AbstractContextManager[None]],
        given_up: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._lent = lent
        self._given_up = given_up

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        if name in ("buffer", "raw"):
            return _Lent(found, self._lent, self._given_up)
        if name in ("fileno", "detach"):
            return self._leaving(found)
        return self._borrowing(found) if name in _READS else found

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        # Not the stream's own iterator, which reads ahead.
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def _borrowing(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*args: Any, **kwargs: Any) -> Any:
            with self._lent():
                return read(*args, **kwargs)

        return reading

    def _leaving(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def leaving() -> Any:
            self._given_up()
            return call()

        return leaving
