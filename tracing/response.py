"""Response time of a program, kept as its calls come and go.

Response time runs from a program's first call to its last token, less the intervals in which no
call of it was outstanding (tools, people). What is left is the length of the union of the calls'
intervals, so two numbers are enough: the closed part of the union and where its open part began.
"""

from __future__ import annotations


class ResponseTime:
    """Length of the union of the calls' intervals, in constant time and memory.

    Reports of several threads may arrive slightly out of order; an instant is never counted twice.
    """

    __slots__ = ("_closed_s", "_closed_until_s", "_open_since_s", "_outstanding", "_seen_until_s")

    def __init__(self) -> None:
        self._outstanding = 0
        self._closed_s = 0.0
        self._closed_until_s = float("-inf")
        self._open_since_s = 0.0
        self._seen_until_s = float("-inf")

    @property
    def outstanding(self) -> int:
        """How many calls have begun and not ended."""
        return self._outstanding

    def begin(self, at_s: float) -> None:
        """A call begins at ``at_s`` (seconds)."""
        since = at_s if self._outstanding == 0 else min(at_s, self._open_since_s)
        self._open_since_s = max(since, self._closed_until_s)
        self._outstanding += 1

    def end(self, at_s: float) -> None:
        """A call that had begun ends at ``at_s`` (seconds)."""
        self._outstanding -= 1
        self._seen_until_s = max(self._seen_until_s, at_s)
        if self._outstanding == 0:
            self._closed_s += max(0.0, self._seen_until_s - self._open_since_s)
            self._closed_until_s = max(self._closed_until_s, self._seen_until_s)

    def value_s(self, now_s: float | None = None) -> float:
        """Response time so far, seconds.

        Args:
            now_s: outstanding calls count up to here; without it, up to the last end seen.
        """
        if self._outstanding == 0:
            return self._closed_s
        until = self._seen_until_s if now_s is None else max(now_s, self._seen_until_s)
        return self._closed_s + max(0.0, until - self._open_since_s)
