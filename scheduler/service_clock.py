"""A clock that advances by engine steps: what calls took, without touching them at every step.

1. The clock's reading is the sum of the steps charged so far.
2. A call in the batch has taken ``served + reading - joined``: steps that do not change the batch
   cost nothing per call. Only those that join or drop out are touched.
3. Dispatch and output are apart: with run-ahead, a step is dispatched before the output of the one
   before it. Who joins or drops out travels with the step and takes effect when it is charged.
4. A step lasts from the later of (its dispatch, the previous step's output) to its output; so
   the steps that are charged never overlap.
5. A call that has left is not charged for steps still in flight: their output is thrown away.
6. Alarms are kept in readings of the clock, since that is how service runs out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from .live_call import LiveCall

_LEAST_SWEEP = 256


class ServiceClock:
    """Charges steps to the calls that took part in them.

    Attributes:
        reading_s: sum of the steps charged, seconds.
        last_output_s: when the last charged step gave its output.
        batch_size: how many calls the step dispatched last has.
    """

    __slots__ = (
        "_alarms",
        "_dispatched",
        "_order",
        "_steps",
        "_sweep_at",
        "batch_size",
        "last_output_s",
        "reading_s",
    )

    def __init__(self) -> None:
        self.reading_s = 0.0
        self.last_output_s = -math.inf
        self.batch_size = 0
        self._dispatched = 0
        self._steps: deque[tuple[float, Sequence[LiveCall], Sequence[LiveCall], int]] = deque()
        self._alarms: list[tuple[float, int, LiveCall]] = []
        self._order = count()
        self._sweep_at = _LEAST_SWEEP

    def dispatch(
        self, joining: Sequence[LiveCall], dropping: Sequence[LiveCall], now: float
    ) -> None:
        """A step goes out whose batch is the one before, plus ``joining``, minus ``dropping``."""
        for call in dropping:
            call.in_batch = False
            call.last_step = self._dispatched
        for call in joining:
            call.in_batch = True
        self.batch_size += len(joining) - len(dropping)
        self._dispatched += 1
        self._steps.append((now, joining, dropping, self.batch_size))

    def dispatch_same(self, now: float) -> None:
        """A step goes out whose batch is the one before."""
        self._dispatched += 1
        self._steps.append((now, (), (), self.batch_size))

    def charge(self, now: float) -> float:
        """The oldest step in flight has given its output: its duration, 0 if it had no calls."""
        dispatched_s, joining, dropping, size = self._steps.popleft()
        for call in dropping:
            if call.joined_s is not None:
                self._stop(call)
        for call in joining:
            if not call.gone:
                call.joined_s = self.reading_s
                self._arm(call)
        last = self.last_output_s
        self.last_output_s = now
        if not size:
            return 0.0
        step_s = now - (dispatched_s if dispatched_s > last else last)
        self.reading_s += step_s
        return step_s

    def service(self, call: LiveCall) -> float:
        """What the call has taken, seconds."""
        if call.joined_s is None:
            return call.served_s
        return call.served_s + self.reading_s - call.joined_s

    def wait(self, call: LiveCall, now: float) -> float:
        """How long the call has been without a seat, all together, seconds.

        A step that a call is still in when it loses its seat is service, so the wait begins at that
        step's output: service and wait never exceed the wall time.
        """
        if call.seated:
            return call.waited_s
        served_until = call.last_output_s if call.joined_s is None else self.last_output_s
        return call.waited_s + max(now - max(call.waiting_since_s, served_until), 0.0)

    def in_flight(self, call: LiveCall) -> bool:
        """Whether a step that has the call has still to give its output."""
        charged = self._dispatched - len(self._steps)
        return (self._dispatched if call.in_batch else call.last_step) > charged

    def remove(self, call: LiveCall) -> float:
        """The call has left; its service, seconds."""
        if call.joined_s is not None:
            self._stop(call)
        call.alarm = math.inf
        return call.served_s

    def grant(self, call: LiveCall, quantum_s: float) -> None:
        """From now on the call may take that much, seconds; then :meth:`due` returns it."""
        call.quantum_s = quantum_s
        if call.joined_s is None:
            call.quantum_end_s = call.served_s + quantum_s
            call.alarm = math.inf
        else:
            call.quantum_end_s = self.service(call) + quantum_s
            self._arm(call)

    def due(self) -> list[LiveCall]:
        """The calls that have used up their quantum, once each, earliest first."""
        rung: list[LiveCall] = []
        alarms, reading = self._alarms, self.reading_s
        while alarms and alarms[0][0] <= reading:
            at, _, call = heappop(alarms)
            if call.alarm == at:
                call.alarm = math.inf
                rung.append(call)
        return rung

    @property
    def until_alarm_s(self) -> float:
        """Seconds to charge until a call's quantum is used up; it may be later than that."""
        return self._alarms[0][0] - self.reading_s if self._alarms else math.inf

    def _arm(self, call: LiveCall) -> None:
        assert call.joined_s is not None
        call.alarm = at = call.joined_s + call.quantum_end_s - call.served_s
        if at == math.inf:
            return
        alarms = self._alarms
        heappush(alarms, (at, next(self._order), call))
        if len(alarms) > self._sweep_at:
            # Calls that drop out and come back leave dead entries behind.
            self._alarms = [entry for entry in alarms if entry[2].alarm == entry[0]]
            heapify(self._alarms)
            self._sweep_at = max(_LEAST_SWEEP, 2 * len(self._alarms))

    def _stop(self, call: LiveCall) -> None:
        assert call.joined_s is not None
        call.served_s += self.reading_s - call.joined_s
        call.joined_s = None
        call.last_output_s = self.last_output_s
        if call.alarm > self.reading_s:
            call.alarm = math.inf
