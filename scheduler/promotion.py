"""Anti-starvation: which calls have waited too long for what their program has got.

A call qualifies when (W + w) / (T + t) >= beta: W and T are the wait and the service of its
program's finished calls, w and t its own since it was promoted last.

Nobody looks at every call. Waiting brings a call nearer to promotion at a known rate, so the moment
at which it qualifies is known when it begins to wait, and a heap keeps these moments. Running moves
it away again. A call whose moment turns out to be too early is given a later one.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from .live_call import LiveCall, ProgramTotals
from .service_clock import ServiceClock
from .tickets import Ticket

_LEAST_SWEEP = 256


class Starved(NamedTuple):
    """A call that qualifies, with W + w and T + t, seconds."""

    call: LiveCall
    wait_s: float
    service_s: float


class Promotions:
    """Watches the calls below the best level.

    Args:
        beta: the ratio; infinite for never.
        program_aware: whether W and T count, or w and t alone.
        clock: measures w and t.
    """

    def __init__(self, beta: float, *, program_aware: bool, clock: ServiceClock) -> None:
        self.programs: dict[str, ProgramTotals] = {}
        self._beta = beta
        self._program_aware = program_aware
        self._clock = clock
        self._order = count()
        self._reviews: list[tuple[float, int, LiveCall]] = []
        self._sweep_at = _LEAST_SWEEP

    def program(self, ticket: Ticket, now: float, expected_s: float = 0.0) -> ProgramTotals:
        """The totals that the ticket's call is to share with its program's other live calls.

        Args:
            expected_s: service that its place stands for: a program that has not begun is judged by
                that, or any wait would be too long for it.
        """
        # No program has taken less than the chain that leads to its new call.
        service_s = max(ticket.program_service_s, ticket.attained_s, expected_s)
        program = self.programs.get(ticket.program)
        if program is None:
            program = ProgramTotals(service_s, ticket.program_wait_s)
            self.programs[ticket.program] = program
            return program
        # A ticket may not know yet what ended here, nor do we know what ended elsewhere.
        self._raise(
            program,
            max(ticket.program_wait_s - program.wait_s, 0.0),
            max(service_s - program.service_s, 0.0),
            now,
        )
        return program

    def review(self, call: LiveCall, now: float) -> None:
        """Set when the call is to be looked at next; tell it of every change of level or seat."""
        if not call.level or self._beta == math.inf:
            call.promotion_due_s = math.inf
            return
        wait_s, service_s = self._sums(call, now)
        lack_s = self._beta * service_s - wait_s
        if call.seated and lack_s > 0:
            call.promotion_due_s = math.inf
            return
        call.promotion_due_s = due = now + max(lack_s, 0.0)
        reviews = self._reviews
        heappush(reviews, (due, next(self._order), call))
        if len(reviews) > self._sweep_at:
            self._sweep()

    def due(self, now: float) -> list[Starved]:
        """The calls that qualify now, in the order in which they came to."""
        reviews = self._reviews
        if not reviews or reviews[0][0] > now:
            return []
        looked_at: list[LiveCall] = []
        while reviews and reviews[0][0] <= now:
            at, _, call = heappop(reviews)
            if call.promotion_due_s == at:
                call.promotion_due_s = math.inf
                looked_at.append(call)
        starved: list[Starved] = []
        for call in looked_at:
            wait_s, service_s = self._sums(call, now)
            if wait_s > 0 and wait_s >= self._beta * service_s:
                starved.append(Starved(call, wait_s, service_s))
            else:
                self.review(call, now)
        return starved

    @property
    def next_review_s(self) -> float:
        """When the next call is to be looked at, if not later; infinite for never."""
        return self._reviews[0][0] if self._reviews else math.inf

    def restart(self, call: LiveCall, now: float) -> None:
        """The call is promoted, which pays for its wait and its program's.

        Its own w and t start again at 0 for the rule, and so does W. Calls of the program that are
        due in the same run are promoted with it.
        """
        call.program.paid_wait_s = call.program.wait_s
        call.rule_wait_s = self._clock.wait(call, now)
        call.rule_service_s = self._clock.service(call)

    def leave(self, call: LiveCall, wait_s: float, service_s: float, now: float) -> None:
        """The call has ended: what it took counts for its siblings at once.

        Args:
            wait_s: all its wait, seconds; the part that a promotion paid for is left out.
            service_s: all its service, seconds.
        """
        call.promotion_due_s = math.inf
        program = call.program
        del program.calls[call.key]
        if not program.calls:
            del self.programs[call.ticket.program]
            return
        self._raise(program, wait_s - call.rule_wait_s, service_s, now)

    def _raise(self, program: ProgramTotals, wait_s: float, service_s: float, now: float) -> None:
        program.wait_s += wait_s
        program.service_s += service_s
        if self._program_aware and wait_s > self._beta * service_s:
            # Only then do its live calls qualify sooner than thought; if later, it is found out.
            for call in program.calls.values():
                self.review(call, now)

    def _sums(self, call: LiveCall, now: float) -> tuple[float, float]:
        # A wait that begins now has added nothing.
        waits = not call.seated and call.waiting_since_s != now
        wait_s = self._clock.wait(call, now) if waits else call.waited_s
        service_s = call.served_s if call.joined_s is None else self._clock.service(call)
        wait_s -= call.rule_wait_s
        service_s -= call.rule_service_s
        if self._program_aware:
            wait_s += call.program.wait_s - call.program.paid_wait_s
            service_s += call.program.service_s
        return wait_s, service_s

    def _sweep(self) -> None:
        """Throw out entries that a later review has replaced."""
        self._reviews = [entry for entry in self._reviews if entry[2].promotion_due_s == entry[0]]
        heapify(self._reviews)
        self._sweep_at = max(_LEAST_SWEEP, 2 * len(self._reviews))
