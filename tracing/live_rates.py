"""Rates of the last seconds, from successive snapshots."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from .snapshot import ReplicaRow, RunSnapshot

WINDOW_S = 10.0
HISTORY = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRates:
    """What happened on a replica, per second."""

    preemptions: float = 0.0
    promotions: float = 0.0
    demotions: float = 0.0
    swaps: float = 0.0


class Rates:
    """Remembers snapshots for as long as the window is; gauges all rates over it.

    Attributes:
        tokens_per_s: output tokens per second in the window.
        history: the rate between each two snapshots, oldest first.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[RunSnapshot] = deque()
        self.tokens_per_s = 0.0
        self.history: deque[float] = deque(maxlen=HISTORY)

    def take(self, snapshot: RunSnapshot) -> None:
        """The next snapshot; one that is not newer than the last is left out."""
        if self._seen and snapshot.elapsed_s <= self._seen[-1].elapsed_s:
            return
        if self._seen:
            self.history.append(_tokens_rate(self._seen[-1], snapshot))
        snapshot = replace(snapshot, programs=())  # of which there may be many
        self._seen.append(snapshot)
        begin_s = snapshot.elapsed_s - self._window_s
        while len(self._seen) > 2 and self._seen[1].elapsed_s <= begin_s:
            self._seen.popleft()
        first = self._seen[0]
        one = first is snapshot
        self.tokens_per_s = snapshot.tokens_per_s if one else _tokens_rate(first, snapshot)

    def of(self, replica: ReplicaRow) -> ReplicaRates:
        """The rates of a replica of the last snapshot."""
        first, last = (self._seen[0], self._seen[-1]) if self._seen else (None, None)
        if first is None or last is None or first is last:
            return ReplicaRates()
        before = next((row for row in first.replicas if row.index == replica.index), None)
        span_s = last.elapsed_s - first.elapsed_s
        if before is None:
            return ReplicaRates()
        return ReplicaRates(
            # A replica that has been started anew counts from 0 again.
            **{
                name: max(0, getattr(replica, name) - getattr(before, name)) / span_s
                for name in ReplicaRates.__slots__
            }
        )


def _tokens_rate(before: RunSnapshot, after: RunSnapshot) -> float:
    return max(0, after.tokens - before.tokens) / (after.elapsed_s - before.elapsed_s)
