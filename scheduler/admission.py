"""Admission with pausing: only programs whose KV fits the cache together run calls.

Ordering alone does not stop a cache from thrashing: calls of more programs than it holds throw each
other's contexts out, and everybody computes them again. The gate stands before one replica.

1. A program is *in* when its calls may run. Its *room* is its working set; a prefix that all
   programs share counts once.
2. A call of a program that is in passes while the rooms fit the limit (:mod:`room_limit`); there is
   none while nothing thrashes, so that the gate does nothing then.
3. A call of another program is held. Held programs come in best place first, in the queue's own
   order: level of attained service, then arrival. Of several tenants, the one that has least room
   for its share is next, and nobody goes for one that has more.
4. Where there is no room for the best of them, programs that stand at least ``gap`` levels below it
   are told to go, worst first: their running calls end, further ones are held, and with the last
   running call their room is free. The better one need not wait for that where the cache, which is
   larger than the limit, holds both, nor where it is small: of those who go the engine takes what
   it needs, and they compute their contexts again anyway. The same happens when the rooms have
   outgrown the cache.
   A program that goes will compute its context again (its room), and all that are held wait for
   that. What is gained: in its room, as often as the better one fits into it, others do not wait
   for what is left of it, for which the work it has had stands in, as in attained service. The
   room cancels out; it pays where work so far >= calls held x room of the better one. Small ones
   come one after the other, the more of them the further the two stand apart: what is left of one
   is to what is left of the other as their levels' bounds, and each of as many saves half of it on
   average, so that the work counts max(1, ratio ^ levels between them / 2) times.
5. A program between two calls keeps its room for ``idle_s``; after that it has to come in again.
6. A held program whose wait has reached beta times its service stands in the best level from then
   on, as in the queue itself.
7. While no call runs, the best held program comes in whatever its room: a program alone is never
   too large, and an engine never idles with calls at its door.

The gate is told the time and does no I/O. Every event costs O(log programs).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from .config import SchedulerConfig
from .course import course_level
from .gate_program import GateProgram, HeldCall, Place
from .gate_queues import GateQueues
from .holds import Passed
from .levels import Levels, TypicalStep
from .policies import policy_named
from .room_limit import RoomLimit
from .tickets import Receipt, Ticket
from .working_set import CallMeans

_FIRST_CALLS = 8
# A program is small that needs no more than such a part of the cache.
_SMALL = 1 / 64
_MOST_LEVELS_APART = 64


class Gate:
    """The door of one replica.

    Args:
        config: the replica's scheduling settings.
        capacity_tokens: KV that the replica holds.
        place: stands in for the queue's own order; smaller comes in first.

    Attributes:
        limit: how much room programs may have together.
        used_tokens: room of the programs that are in.
        held_calls, paused_programs: totals since the start.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        capacity_tokens: int,
        *,
        place: Callable[[Ticket], float] | None = None,
    ) -> None:
        self.limit = RoomLimit(capacity_tokens)
        self.used_tokens = 0
        self.held_calls = 0
        self.paused_programs = 0
        self._config = config
        self._policy = policy_named(config.policy)
        self._given_place = place
        self._typical = TypicalStep()
        self._level_step_s = config.expected_step_s
        self._levels = Levels.derive(config, self._level_step_s)
        self._means = CallMeans()
        self._programs: dict[str, GateProgram] = {}
        self._program_of: dict[str, GateProgram] = {}
        self._going_tokens = 0
        self._running = 0
        self._queues = GateQueues(config.admission_idle_s)
        self._first_cached: deque[int] = deque(maxlen=_FIRST_CALLS)
        self._passed: list[Passed] = []

    # What happens.

    def call_comes(self, ticket: Ticket, now: float, *, known_tokens: int = 0) -> None:
        """A call is ready to run.

        Args:
            ticket: the call's, with the length of its prompt.
            known_tokens: leading part of the prompt that an earlier call of the program had.

        Raises:
            ValueError: a call of that id is here already.
        """
        if ticket.call in self._program_of:
            raise ValueError(f"call {ticket.call!r} is here already; give every call its own id")
        self._lapse(now)
        program = self._programs.get(ticket.program)
        if program is None:
            tenant = self._queues.tenant(ticket.tenant, ticket.share)
            program = GateProgram(ticket.program, self._means, tenant)
            self._programs[ticket.program] = program
        self._program_of[ticket.call] = program
        if not program.held:
            self._stand(program, self._place(ticket))
        program.call_comes(ticket, known_tokens, HeldCall(now, self._why(program)))
        if program.inside:
            self._measure(program)
            self._shed()
            if not program.going and program.inside:
                self._pass(program, now)
        if program.held:
            self._hold(program, ticket, now)
        self._settle(now)
        if ticket.call in program.held:
            self.held_calls += 1
            self.limit.held()

    def call_ended(self, call: str, now: float, receipt: Receipt | None = None) -> None:
        """A call is over, or was given up; a held one as well. One that is not known is ignored.

        Args:
            receipt: what it cost; None where that is not known.
        """
        program = self._program_of.pop(call, None)
        if program is None:
            return
        self._running -= call in program.running
        first = not program.ended_calls
        lost_tokens = program.call_ended(call, receipt)
        self._measure(program)
        if receipt is not None:
            self._learn(receipt, lost_tokens, first=first)
        if not program.running and program.going:
            self._leave(program)
        if not program.running and not program.held:
            if program.over:
                self._forget(program)
            else:
                self._queues.idle(program, now)
        self._settle(now)

    def program_ended(self, program: str, now: float) -> None:
        """A program is over; calls of it that still run are told by :meth:`call_ended`."""
        found = self._programs.get(program)
        if found is None:
            return
        found.over = True
        if not found.running and not found.held:
            self._forget(found)
        self._settle(now)

    def tick(self, now: float) -> None:
        """Time has passed; to be called at :attr:`next_s`."""
        self._settle(now)

    def passed(self) -> list[Passed]:
        """The calls that were let through since this was asked last, in order."""
        passed, self._passed = self._passed, []
        return passed

    @property
    def next_s(self) -> float:
        """When something happens by itself; infinite for never."""
        return math.inf if self._queues.best_held is None else self._queues.next_s

    @property
    def idle_s(self) -> float:
        """How long a program between two calls keeps its room, seconds."""
        return self._config.admission_idle_s

    @property
    def holds(self) -> int:
        """How many calls are held."""
        return len(self._program_of) - self._running

    @property
    def holding(self) -> list[str]:
        """The held calls, best first."""
        programs = sorted((p for p in self._programs.values() if p.held), key=lambda p: p.place)
        return [call for program in programs for call in program.held]

    def check(self) -> None:
        """Assert what must hold between any two calls of the other methods."""
        programs = list(self._programs.values())
        assert self.used_tokens == sum(p.room for p in programs if p.inside)
        assert self._going_tokens == sum(p.room for p in programs if p.going)
        assert self._running == sum(len(p.running) for p in programs)
        assert all(p.inside for p in programs if p.going or p.running)
        assert not any(p.held and p.inside and not p.going for p in programs)
        held = [p for p in programs if p.held]
        assert not held or self._running, "calls are held at an idle engine"
        assert len(self._program_of) == sum(len(p.running) + len(p.held) for p in programs)

    # Places.

    def _place(self, ticket: Ticket) -> Place:
        if self._given_place is not None:
            return self._given_place(ticket), ticket.program_number
        if not self._policy.multilevel:
            return 0, ticket.program_number
        return self._level(ticket), ticket.program_number

    def _level(self, ticket: Ticket) -> int:
        if not ticket.course:
            return self._levels.of(ticket.attained_s)
        return course_level(ticket.course, self._levels, self._token_s, 0.0)[0]

    @property
    def _token_s(self) -> float:
        """What a token of a course counts as, seconds: the step that bounds are derived from."""
        if self._config.first_quantum_s is None:
            return self._level_step_s
        return self._typical.step_s or self._config.expected_step_s

    def _stand(self, program: GateProgram, place: Place) -> None:
        program.place = place
        if program.inside and not program.going:
            self._queues.inside(program)

    # In and out.

    def _settle(self, now: float) -> None:
        """Let in whoever may come in now."""
        self._lapse(now)
        self._queues.raise_starved(now)
        while (best := self._queues.best_held) is not None:
            if not self._fits(best) and not self._make_room(best):
                return
            self._enter(best)
            self._pass(best, now)

    def _fits(self, program: GateProgram) -> bool:
        if not self._running:
            return True
        limit = self.limit.tokens - self._shared
        staying = self.used_tokens - self._going_tokens
        if program.inside:
            return staying + program.room <= limit
        needed = program.tokens - self._shared
        most = self.limit.most_tokens - self._shared
        beside = self.used_tokens + needed <= most or self._small(program)
        return beside and staying + needed <= limit

    def _small(self, program: GateProgram) -> bool:
        return program.tokens - self._shared <= _SMALL * (self.limit.most_tokens - self._shared)

    def _make_room(self, best: GateProgram) -> bool:
        """Tell worse programs to go for this one; whether it fits already."""
        room = best.room if best.inside else best.tokens - self._shared
        while self.used_tokens - self._going_tokens + room > self.limit.tokens - self._shared:
            worst = self._queues.worst_inside
            if worst is None or not self._pays(worst, best):
                return False
            self._send_away(worst)
        return self._fits(best)

    def _pays(self, worst: GateProgram, best: GateProgram) -> bool:
        """Whether it is worth it that one program goes for another (rule 4)."""
        if worst.place[0] - best.place[0] < self._config.admission_gap:
            return False
        if worst.tenant is not best.tenant and worst.tenant.used <= best.tenant.used:
            return False  # nobody goes for a tenant that has more room for its share
        gained = worst.work_tokens * self._one_after_the_other(worst, best)
        return gained >= self.holds * (best.tokens - self._shared)

    def _one_after_the_other(self, worst: GateProgram, best: GateProgram) -> float:
        """How many like the better one go through the room that the worse one would keep."""
        if self._given_place is not None or not self._small(best):
            return 1.0  # a given place is no level
        apart = min(worst.place[0] - best.place[0], _MOST_LEVELS_APART)
        return max(1.0, self._config.quantum_ratio**apart / 2)

    def _shed(self) -> None:
        """Tell the worst programs to go while the rooms exceed the cache; one may stay anyway."""
        while self.used_tokens - self._going_tokens > self.limit.most_tokens - self._shared:
            worst = self._queues.worst_inside
            if worst is None or worst.room == self.used_tokens - self._going_tokens:
                return
            self._send_away(worst)

    def _send_away(self, program: GateProgram) -> None:
        program.going = True
        self._going_tokens += program.room
        self.paused_programs += 1
        if not program.running:
            self._leave(program)

    def _enter(self, program: GateProgram) -> None:
        if program.going:
            program.going = False
            self._going_tokens -= program.room
        elif not program.inside:
            program.inside = True
            program.room = max(program.tokens - self._shared, 0)
            program.tenant.room += program.room
            self.used_tokens += program.room
        self._queues.inside(program)

    def _leave(self, program: GateProgram) -> None:
        self.used_tokens -= program.room
        program.tenant.room -= program.room
        if program.going:
            self._going_tokens -= program.room
        program.inside = program.going = False
        program.kept_room = False

    def _forget(self, program: GateProgram) -> None:
        if program.inside:
            self._leave(program)
        program.idle_since_s = math.inf
        if self._programs.get(program.name) is program:
            del self._programs[program.name]

    def _measure(self, program: GateProgram) -> None:
        """The program's room is another one now."""
        if not program.inside:
            return
        grown = max(program.tokens - self._shared, 0) - program.room
        program.room += grown
        program.tenant.room += grown
        self.used_tokens += grown
        if program.going:
            self._going_tokens += grown

    def _hold(self, program: GateProgram, ticket: Ticket, now: float) -> None:
        if len(program.held) > 1:
            return
        self._queues.held(program)
        level, beta = program.place[0], self._config.beta
        if self._given_place is None and level and beta < math.inf:
            # One that has not begun is judged by the service that its place stands for, as in the
            # queue: by its service of nothing any wait would be too long.
            expected_s = ticket.course[1] * self._token_s if ticket.course else 0.0
            service_s = max(ticket.program_service_s, expected_s)
            lack_s = max(beta * service_s - ticket.program_wait_s, 0.0)
            self._queues.rises_at(program, now + lack_s)

    def _why(self, program: GateProgram) -> str:
        return (
            f"its program's {program.tokens} tokens beside {self.used_tokens} of others: "
            f"limit {self.limit.tokens:.0f}"
        )

    def _pass(self, program: GateProgram, now: float) -> None:
        for call, held in program.let_through().items():
            held_s = now - held.since_s
            self._running += 1
            self._passed.append(Passed(call, now, held_s, held.reason if held_s > 0 else ""))
        self._measure(program)

    def _lapse(self, now: float) -> None:
        for program in self._queues.lapsed(now):
            self._forget(program)

    # What receipts teach.

    @property
    def _shared(self) -> int:
        """Leading tokens that the prompts of all programs have in common."""
        cached = self._first_cached
        return min(cached) if len(cached) == _FIRST_CALLS else 0

    def _learn(self, receipt: Receipt, lost_tokens: int, *, first: bool) -> None:
        steps = receipt.output_tokens
        if steps:
            self._typical.add(receipt.service_s / steps)
            if self._config.first_quantum_s is None and self._typical.has_left(self._level_step_s):
                self._level_step_s = self._typical.step_s
                self._levels = Levels.derive(self._config, self._level_step_s)
        if first:
            self._first_cached.append(receipt.cached_tokens)
        computed = max(receipt.prompt_tokens - receipt.cached_tokens, 1)
        self.limit.measured(lost_tokens, computed, holding=self._queues.best_held is not None)
        if lost_tokens:
            self._shed()
