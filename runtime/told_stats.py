"""A replica's state as its engine tells it, step by step, without being asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .protocols import EngineStats

_NEWEST = 0.2  # weight of the newest interval in the step's duration


class ToldStats:
    """Stands where vLLM's front passes its engine's statistics on, and passes them on too.

    Args:
        before: what stood there; None for nothing.
        clock: seconds.

    Attributes:
        sink: is told every new state.
        latest: what was told last: calls, KV in use and the duration of a step.
    """

    def __init__(self, before: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.sink: Callable[[EngineStats], None] | None = None
        self.latest = EngineStats()
        self._before = before
        self._clock = clock
        self._step_s = 0.0
        self._at_s = 0.0
        self._step = -1

    def record(self, *, scheduler_stats: Any, **others: Any) -> None:
        """The front has got outputs, with statistics or (None) without."""
        if scheduler_stats is not None:
            self._take(scheduler_stats)
        if self._before is not None:
            self._before.record(scheduler_stats=scheduler_stats, **others)

    def _take(self, stats: Any) -> None:
        now_s, step = self._clock(), stats.step_counter
        if 0 <= self._step < step and self.latest.running:
            lasted_s = (now_s - self._at_s) / (step - self._step)
            weight = _NEWEST if self._step_s else 1.0
            self._step_s += weight * (lasted_s - self._step_s)
        self._at_s, self._step = now_s, step
        self.latest = EngineStats(
            running=stats.num_running_reqs,
            waiting=stats.num_waiting_reqs,
            kv_usage=stats.kv_cache_usage,
            step_s=self._step_s,
        )
        if self.sink is not None:
            self.sink(self.latest)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the front tells its loggers."""
        return _nothing if self._before is None else getattr(self._before, name)


def _nothing(*given: Any, **named: Any) -> None:
    pass
