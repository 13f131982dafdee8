"""Algorithm 1 of the paper, but for the swap: a multilevel queue over programs' attained service.

The rules, in the order of a call's life. Levels count from 0 here and from 1 in what is reported.

1. A call arrives at the level that holds its ticket's attained service, behind those already there,
   with that level's whole quantum. Where the ticket carries a course, that gives the level, and the
   quantum lasts until the course comes to a worse one.
2. Calls run in the order of their rank: by level, inside it by the arrival of their program where
   the policy ties by program, there the calls of one program by the chain that is expected to come
   after them, longest first, and then by entry into the level (first come, first served). Losing
   the seat does not change the rank.
3. Every N steps the policy runs (:meth:`Scheduler.tick`). A call that has used up its quantum goes
   one level down (or where its course says), to the end, with the new level's whole quantum.
4. A call below the best level whose program has waited too long, (W + w) / (T + t) >= beta, goes to
   the end of the best level; its own w and t start again at 0 for this rule, so that a program's
   calls tend to be promoted together. W and T are the finished calls of its program. A call in the
   best level has nothing to gain and keeps its place. A promotion has paid for W as well: it starts
   again at 0.
5. When seats or KV blocks are short, running calls give way to better-placed waiting ones, where it
   pays (:mod:`.preemption`).
6. A call leaves with a receipt.
7. With calls of several tenants, those of a tenant that has had more than its share come after all
   others (:mod:`.tenant_shares`); among equals rule 2 holds.

Starvation bound: a call below the best level that waits is promoted, at the latest, in the first
policy run after it has waited ``beta * (T + t) - (W + w)`` seconds more.

The scheduler does no I/O and is told the time. What it costs per engine step does not depend on the
number of live calls: calls are touched when something happens to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

from .chains_to_come import PLACE_BITS, place_among_siblings
from .config import SchedulerConfig
from .course import course_level
from .levels import Levels, TypicalStep
from .live_call import LiveCall
from .policies import policy_named
from .preemption import Preemption
from .promotion import Promotions, Starved
from .quiet import FOR_EVER, Quiet
from .service_clock import ServiceClock
from .tenant_shares import TenantShares
from .tickets import Receipt, Ticket
from .victims import Capacity, Victim

# A rank is one whole number: tenant ahead or not, level, tie (0 without ties by program: else the
# program's number, and the call's place among its program's), entry.
_TIE_SHIFT = 40
PROGRAM_SHIFT = _TIE_SHIFT + PLACE_BITS
_LEVEL_SHIFT = PROGRAM_SHIFT + 40
_AHEAD_SHIFT = _LEVEL_SHIFT + 16
_LEVEL_MASK = (1 << _AHEAD_SHIFT - _LEVEL_SHIFT) - 1


class Scheduler:
    """Places, charges, demotes, promotes and preempts the live calls of one replica.

    Attributes:
        config: the settings.
        program_ties: whether the program that came first goes first inside a level.
        levels: bounds and quanta as they are now.
        calls: live calls by key, oldest first.
        preemptions, promotions, demotions: totals since the start.
        tenants: where calls of several have come, any policy is to run.
        dispatch_same: as :meth:`dispatch` with nobody who joins or drops out; takes the time.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.policy = policy_named(config.policy)
        ties = config.program_ties
        self.program_ties = self.policy.program_ties if ties is None else ties
        self._level_step_s = config.expected_step_s
        self.levels = self._derive_levels()
        self.calls: dict[str, LiveCall] = {}
        self.preemptions = 0
        self.promotions = 0
        self.demotions = 0
        self._typical = TypicalStep()
        self._clock = ServiceClock()
        self._promotions = Promotions(
            config.beta, program_aware=self.policy.program_aware, clock=self._clock
        )
        self._entries = count()
        self._latest_program = 0
        self._running: list[dict[LiveCall, None]] = [{} for _ in self.levels.quanta]
        self._waiting: list[dict[LiveCall, None]] = [{} for _ in self.levels.quanta]
        self._preemption = Preemption(config, self._waiting, self._running, self._clock)
        self.tenants = TenantShares()
        self._seated = 0
        # The step whose batch is the one before is the usual one.
        self.dispatch_same = self._clock.dispatch_same

    # What the engine tells.

    def arrive(self, ticket: Ticket, now: float, *, key: str | None = None) -> LiveCall:
        """A call enters the queue (rule 1).

        Args:
            ticket: came with the call.
            now: seconds, on the clock that all methods are told.
            key: unique among live calls; the ticket's call id if None.

        Raises:
            ValueError: a live call has that key.
        """
        key = ticket.call if key is None else key
        if key in self.calls:
            raise ValueError(f"call {key!r} is live already; give every call its own id")
        expected_s = ticket.course[1] * self._token_s if ticket.course else 0.0
        program = self._promotions.program(ticket, now, expected_s)
        call = LiveCall(ticket, key, program, now, self.config.kept_decisions)
        if self.program_ties:
            self._latest_program = max(self._latest_program, ticket.program_number)
            known = ticket.program_number >= 0
            number = ticket.program_number if known else self._latest_program
            call.tie = number << PLACE_BITS
            if self.config.critical_calls_first:
                call.tie += place_among_siblings(ticket.to_come_s)
        self.calls[key] = program.calls[key] = call
        call.tenant = self.tenants.arrive(ticket, self._lead_s)
        level, until_worse_s = self._standing(ticket, 0.0)
        self._enter(call, level, until_worse_s, now)
        self._waiting[level][call] = None
        by_course = ("expected {:.3g} s", expected_s) if ticket.course else None
        call.log(now, "arrival", by_course or ("attained {:.3g} s", ticket.attained_s))
        if level:
            self._promotions.review(call, now)
        return call

    def dispatch(
        self, joining: Sequence[LiveCall], dropping: Sequence[LiveCall], now: float
    ) -> None:
        """A step goes out whose batch is the one before, plus ``joining``, minus ``dropping``.

        Calls of the batch before that have left or lost their seat must be among ``dropping``; one
        that has got its seat back by now is among ``joining`` as well.
        """
        for call in joining:
            if not call.seated:
                self._seat(call, now)
        self._clock.dispatch(joining, dropping, now)

    def charge(self, now: float, steps: int = 1, growth_s: float = 0.0) -> float:
        """The oldest step in flight has given its output; its duration, seconds.

        The step lasts from the later of (its dispatch, the previous step's output) to ``now`` and
        is charged to the calls that are in it and still live.

        Args:
            steps: how many steps of the engine these were, told together because nothing else
                happened in them.
            growth_s: by how much each of them lasted longer than the one before, seconds.
        """
        step_s = self._clock.charge(now)
        if step_s:
            if self.tenants.several:
                self.tenants.charge(step_s)
            if steps == 1:
                self._typical.add(step_s)
            else:
                first_s = step_s / steps - growth_s * (steps - 1) / 2
                self._typical.add_series(first_s, growth_s, steps)
        return step_s

    def preempt(self, call: LiveCall, now: float, reason: str) -> None:
        """A call loses its seat and waits again, in its place (rule 2)."""
        if not call.seated:
            raise ValueError(f"call {call.key!r} has no seat to lose; preempt running calls only")
        call.seated = False
        call.waiting_since_s = now
        call.preemptions += 1
        self.preemptions += 1
        self.tenants.unseat(call.tenant, self._lead_s)
        self._seated -= 1
        del self._running[call.level][call]
        self._waiting[call.level][call] = None
        call.log(now, "preemption", reason)
        self._promotions.review(call, now)

    def leave(
        self,
        call: LiveCall,
        now: float,
        *,
        reason: str = "finished",
        prompt_tokens: int = 0,
        output_tokens: int = 0,
    ) -> Receipt:
        """A call has ended, one way or the other (rule 6).

        Args:
            reason: how it ended, in a word or two.
            prompt_tokens, output_tokens: for the receipt.

        Raises:
            ValueError: it has left before.
        """
        service_s, wait_s = self.end(call, now, reason)
        return call.receipt(
            service_s=service_s,
            wait_s=wait_s,
            replica=self.config.replica,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )

    def end(self, call: LiveCall, now: float, reason: str) -> tuple[float, float]:
        """As :meth:`leave`, without making a receipt of it: service and wait, seconds."""
        if call.gone:
            raise ValueError(f"call {call.key!r} has left already; its receipt was given then")
        wait_s = call.waited_s if call.seated else self._clock.wait(call, now)
        service_s = self._clock.remove(call)
        call.gone = True
        self.tenants.leave(call.tenant, seated=call.seated)
        self._seated -= call.seated
        del (self._running if call.seated else self._waiting)[call.level][call]
        del self.calls[call.key]
        call.log(now, "leave", reason)
        self._promotions.leave(call, wait_s, service_s, now)
        return service_s, wait_s

    # What the policy does.

    def tick(self, now: float) -> list[LiveCall]:
        """Run the policy (rules 3, 4 and 7); call it every ``policy_interval`` steps.

        Returns:
            The calls whose rank is another one now.
        """
        tenants = self.tenants
        stepped = self._follow_shares() if tenants.several and tenants.contested else []
        if not self.policy.multilevel:
            return stepped
        follows = self.config.first_quantum_s is None
        if follows and self._typical.has_left(self._level_step_s):
            # Live calls keep the level and the quantum they have; later moves use the new ones.
            self._level_step_s = self._typical.step_s
            self.levels = self._derive_levels()
        moved = self._clock.due()
        for call in moved:
            self._demote(call, now)
        for starved in self._promotions.due(now):
            self._promote(starved, now)
            moved.append(starved.call)
        return moved + stepped if stepped else moved

    def victims(self, capacity: Capacity, now: float) -> list[Victim]:
        """The running calls that should give way now (rule 5); tell :meth:`preempt` of each."""
        return self._preemption.victims(capacity, self.levels, self.typical_step_s, now)

    # What can be read.

    def rank(self, call: LiveCall) -> int:
        """Place of the call among all: smaller runs first (rule 2)."""
        return call.rank

    def service(self, call: LiveCall) -> float:
        """t(c): steps charged to the call so far, seconds."""
        return self._clock.service(call)

    def wait(self, call: LiveCall, now: float) -> float:
        """w(c): time without a seat so far, seconds."""
        return self._clock.wait(call, now)

    def quiet(self, now: float) -> Quiet:
        """How long :meth:`tick` and :meth:`victims` have nothing to do if nothing else happens."""
        contested = self.tenants.contested
        if not self.policy.multilevel:
            return FOR_EVER._replace(contested=contested)
        follows = self.config.first_quantum_s is None
        return Quiet(
            service_s=self._clock.until_alarm_s,
            time_s=self._promotions.next_review_s - now,
            steps=self._typical.left_in_window if follows else math.inf,
            contested=contested or self._preemption.contested,
        )

    @property
    def running_by_level(self) -> list[int]:
        """How many calls of each level have a seat, best level first."""
        return [len(calls) for calls in self._running]

    @property
    def waiting_by_level(self) -> list[int]:
        """How many calls of each level have none."""
        return [len(calls) for calls in self._waiting]

    @property
    def typical_step_s(self) -> float:
        """Median step as measured, seconds; the expected one before there is a measurement."""
        return self._typical.step_s or self.config.expected_step_s

    @property
    def measured_step_s(self) -> float:
        """Median step as measured, seconds; 0 before there is a measurement."""
        return self._typical.step_s

    def check(self) -> None:
        """Assert what must hold between any two calls of the other methods."""
        for key, call in self.calls.items():
            assert call.key == key and not call.gone, call
            assert call.program.calls[key] is call, call
            assert call.rank >> _LEVEL_SHIFT & _LEVEL_MASK == call.level, call
            assert call.rank >> _AHEAD_SHIFT == call.tenant.ahead, call
            assert call.levels[-1] == call.level + 1, call
            assert call.started or not call.seated, call
            assert call in (self._running if call.seated else self._waiting)[call.level], call
            assert self.service(call) >= -1e-9, call
        placed = sum(len(calls) for calls in (*self._running, *self._waiting))
        assert placed == len(self.calls), "a call has two places, or kept one after it left"
        assert self._seated == sum(map(len, self._running))
        ranks = {call.rank for call in self.calls.values()}
        assert len(ranks) == len(self.calls), "two calls have one rank"
        live = sum(len(program.calls) for program in self._promotions.programs.values())
        assert live == len(self.calls), "a program was forgotten or kept too long"
        assert all(program.calls for program in self._promotions.programs.values())
        self.tenants.check(self.calls.values())

    # How it is done.

    def _derive_levels(self) -> Levels:
        if not self.policy.multilevel:
            return Levels(())
        return Levels.derive(self.config, self._level_step_s)

    def _standing(self, ticket: Ticket, service_s: float) -> tuple[int, float]:
        """The level a call stands in by its ticket, and the service until it is a worse one."""
        if ticket.course:
            return course_level(ticket.course, self.levels, self._token_s, service_s)
        level = self.levels.of(ticket.attained_s)
        return level, self.levels.quanta[level]

    @property
    def _token_s(self) -> float:
        """What a token of a course counts as, seconds: the step that bounds are derived from."""
        follows = self.config.first_quantum_s is None
        return self._level_step_s if follows else self.typical_step_s

    def _enter(self, call: LiveCall, level: int, quantum_s: float, now: float) -> None:
        """Put the call at the end of a level."""
        call.level = level
        call.placed_s = now
        place = (level << _LEVEL_SHIFT) + (call.tie << _TIE_SHIFT)
        call.rank = (call.tenant.ahead << _AHEAD_SHIFT) + place + next(self._entries)
        call.levels.append(level + 1)
        self._clock.grant(call, quantum_s)

    def _move(self, call: LiveCall, level: int, quantum_s: float, now: float) -> None:
        places = self._running if call.seated else self._waiting
        del places[call.level][call]
        places[level][call] = None
        self._enter(call, level, quantum_s, now)

    def _seat(self, call: LiveCall, now: float) -> None:
        before_s = call.waited_s
        if not call.started:
            call.waited_s = max(now - call.waiting_since_s, 0.0)
        else:
            if not self._clock.in_flight(call):
                call.waited_s = self.wait(call, now)
            call.seat_service_s = self._clock.service(call)
        call.seated = True
        self.tenants.seat(call.tenant)
        self._seated += 1
        del self._waiting[call.level][call]
        self._running[call.level][call] = None
        cause = ("waited {:.3g} s", call.waited_s - before_s)
        call.log(now, "resume" if call.started else "dispatch", cause)
        call.started = True

    def _lead_s(self) -> float:
        """By how much a tenant may be ahead, seconds: a quantum of the best level for each seat."""
        return self.config.quantum_steps * self.typical_step_s * max(self._seated, 1)

    def _follow_shares(self) -> list[LiveCall]:
        """The calls of tenants that have come to be ahead, or are so no more."""
        changed = self.tenants.review(self._lead_s())
        moved = [c for tenant in changed for c in self.calls.values() if c.tenant is tenant]
        for call in moved:
            call.rank ^= 1 << _AHEAD_SHIFT
        return moved

    def _demote(self, call: LiveCall, now: float) -> None:
        used_up_s = call.quantum_s
        level = call.level + 1
        quantum_s = self.levels.quanta[level]
        if call.ticket.course:
            own, until_worse_s = self._standing(call.ticket, self._clock.service(call))
            if own >= level:
                level, quantum_s = own, until_worse_s
        self._move(call, level, quantum_s, now)
        self.demotions += 1
        call.log(now, "demotion", ("quantum of {:.3g} s used up", used_up_s))
        self._promotions.review(call, now)

    def _promote(self, starved: Starved, now: float) -> None:
        call = starved.call
        self._promotions.restart(call, now)
        quantum_s = self.levels.quanta[0]
        if call.ticket.course:
            own, until_worse_s = self._standing(call.ticket, self._clock.service(call))
            # In a better level than its own it gets what all get there.
            quantum_s = quantum_s if own else until_worse_s
        self._move(call, 0, quantum_s, now)
        self.promotions += 1
        cause = ("program waited {:.3g} s for {:.3g} s of service", *starved[1:])
        call.log(now, "promotion", cause)
