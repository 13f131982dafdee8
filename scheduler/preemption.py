"""Which running calls may give way to better-placed waiting ones, and when it pays.

Starting over costs work, so nobody loses a seat lightly:

1. A victim stands at least ``preempt_gap`` levels below the call it makes room for.
2. It has had its seat for ``min_run_steps``, and the waiting call has stood in its place for
   ``patience_steps``: on a busy engine a seat comes free by itself before that.
3. *Cost test.* What is gained is that better-placed calls do not wait for what is left of the
   victim. As in attained service, what its program is placed by stands in for that: the lower bound
   of its level. What it costs is the time until the victim's KV is back, and while it is computed
   again every seated call waits for that. So a victim is taken only where
   ``seconds_back * seated calls <= lower bound of its level``.
4. Calls of a tenant that is ahead of its share make nobody give way.
5. Worst level first; in a level, the one whose KV is back soonest (:mod:`.victims`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from .config import SchedulerConfig
from .levels import Levels
from .live_call import LiveCall
from .service_clock import ServiceClock
from .victims import Capacity, Victim, choose_victims

_RANK = attrgetter("rank")
_Places = Sequence[dict[LiveCall, None]]


class Preemption:
    """The rule over the live calls of one replica.

    Args:
        config: the replica's settings.
        waiting, running: live calls by level, without and with a seat; the scheduler keeps them.
        clock: measures service.
    """

    __slots__ = ("_clock", "_config", "_running", "_waiting")

    def __init__(
        self, config: SchedulerConfig, waiting: _Places, running: _Places, clock: ServiceClock
    ) -> None:
        self._config = config
        self._waiting = waiting
        self._running = running
        self._clock = clock

    @property
    def contested(self) -> bool:
        """Whether some running call stands so low that a waiting one may take its seat."""
        return self._lowest_victim() is not None

    def victims(
        self, capacity: Capacity, levels: Levels, step_s: float, now: float
    ) -> list[Victim]:
        """The running calls that should give way now.

        Args:
            capacity: the engine's.
            levels: as they are now.
            step_s: the engine's typical step, seconds.
        """
        lowest = self._lowest_victim()
        if lowest is None:
            return []
        waiting = self._patient(capacity, now - self._config.patience_steps * step_s)
        running = self._stoppable(lowest, capacity, levels, step_s)
        return choose_victims(waiting, running, capacity, self._config.preempt_gap)

    def _lowest_victim(self) -> int | None:
        """The best level in which there may be a victim; None where nobody is one."""
        if not self._config.preempt:
            return None
        best = next((level for level, calls in enumerate(self._waiting) if calls), None)
        if best is None:
            return None
        lowest = best + self._config.preempt_gap
        return lowest if any(self._running[lowest:]) else None

    def _patient(self, capacity: Capacity, before_s: float) -> Iterator[LiveCall]:
        """Waiting calls, best first, that have stood in their place since then."""
        for calls in self._waiting:
            for call in sorted(calls, key=_RANK):
                if call.tenant.ahead or not capacity.may_start(call):
                    continue
                if call.placed_s > before_s or call.waiting_since_s > before_s:
                    return  # it comes before the others and would take the room made for them
                yield call

    def _stoppable(
        self, lowest: int, capacity: Capacity, levels: Levels, step_s: float
    ) -> Iterator[LiveCall]:
        """Running calls whose going pays, worst level first, down to one."""
        least_s = self._config.min_run_steps * step_s
        seated = sum(map(len, self._running))
        for level in range(len(self._running) - 1, lowest - 1, -1):
            pays_s = levels.bounds[level - 1] / seated
            costs = [
                (capacity.seconds_back(call), -call.rank, call)
                for call in self._running[level]
                if self._clock.service(call) - call.seat_service_s >= least_s
                and capacity.may_stop(call)
            ]
            yield from (call for cost_s, _, call in sorted(costs) if cost_s <= pays_s)
