"""Who comes in next at a gate, who would go first, and what time alone brings about.

Of several tenants, the one whose programs have least room inside for its share comes in next;
among a tenant's programs, the best placed.

Heaps. A program that moves leaves its old entries behind; they are thrown out when they come
up. So every change costs O(log programs), and to look who is next O(tenants). Where there is room
for all nobody looks who would go first: that heap is cleared of old entries whenever it has grown
to twice what was left the last time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from .gate_program import GateProgram, GateTenant

_FEW = 64


class GateQueues:
    """The order of the programs at one gate.

    Args:
        idle_s: seconds that a program between two calls keeps its room.
    """

    __slots__ = ("_clear_at", "_entries", "_idle_s", "_inside", "_lapses", "_rises", "_tenants")

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._entries = count()
        self._tenants: dict[str, GateTenant] = {}
        self._inside: list[tuple[float, float, int, GateProgram]] = []
        self._clear_at = _FEW
        self._lapses: list[tuple[float, int, GateProgram]] = []
        self._rises: list[tuple[float, int, GateProgram]] = []

    def tenant(self, name: str, share: float) -> GateTenant:
        """The tenant of that name."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = GateTenant(share)
        tenant.share = share
        return tenant

    def inside(self, program: GateProgram) -> None:
        """The program is in, or its place there is another one."""
        program.entry = entry = next(self._entries)
        heappush(self._inside, (-program.place[0], -program.place[1], entry, program))
        if len(self._inside) >= self._clear_at:
            self._inside = [kept for kept in self._inside if self._counts(kept[2], kept[3])]
            heapify(self._inside)
            self._clear_at = max(_FEW, 2 * len(self._inside))

    def held(self, program: GateProgram) -> None:
        """The program has a held call, or its place at the door is another one."""
        program.held_entry = next(self._entries)
        heappush(program.tenant.waiting, (program.place, program.held_entry, program))

    def idle(self, program: GateProgram, now: float) -> None:
        """The program's last call has ended."""
        program.idle_since_s = now
        heappush(self._lapses, (now + self._idle_s, next(self._entries), program))

    def rises_at(self, program: GateProgram, at_s: float) -> None:
        """From then on the program stands in the best level for having waited."""
        program.rises_s = at_s
        heappush(self._rises, (at_s, next(self._entries), program))

    @property
    def best_held(self) -> GateProgram | None:
        """The program that comes in next."""
        best: GateProgram | None = None
        for tenant in self._tenants.values():
            if tenant.waiting and (program := self._best_of(tenant)) is not None:
                used = tenant.used, program.place
                if best is None or used < (best.tenant.used, best.place):
                    best = program
        return best

    @staticmethod
    def _best_of(tenant: GateTenant) -> GateProgram | None:
        held = tenant.waiting
        while held:
            _, entry, program = held[0]
            if program.held and program.held_entry == entry:
                return program
            heappop(held)
        return None

    @property
    def worst_inside(self) -> GateProgram | None:
        """The program that would be told to go first."""
        inside = self._inside
        while inside:
            _, _, entry, program = inside[0]
            if self._counts(entry, program):
                return program
            heappop(inside)
        return None

    @staticmethod
    def _counts(entry: int, program: GateProgram) -> bool:
        return program.inside and not program.going and program.entry == entry

    @property
    def next_s(self) -> float:
        """When time next brings something about; infinite for never."""
        lapses, rises = self._lapses, self._rises
        while lapses and not self._may_lapse(lapses[0]):
            heappop(lapses)
        while rises and not self._may_rise(rises[0]):
            heappop(rises)
        return min(lapses[0][0] if lapses else math.inf, rises[0][0] if rises else math.inf)

    def lapsed(self, now: float) -> Iterator[GateProgram]:
        """The programs that have been idle too long by now."""
        while self._lapses and self._lapses[0][0] <= now:
            entry = heappop(self._lapses)
            if self._may_lapse(entry):
                yield entry[2]

    def raise_starved(self, now: float) -> None:
        """Held programs that have waited for it by now stand in the best level."""
        while self._rises and self._rises[0][0] <= now:
            entry = heappop(self._rises)
            if self._may_rise(entry):
                program = entry[2]
                program.place = (0, program.place[1])
                self.held(program)

    def _may_lapse(self, entry: tuple[float, int, GateProgram]) -> bool:
        at_s, _, program = entry
        return program.idle_since_s + self._idle_s == at_s

    @staticmethod
    def _may_rise(entry: tuple[float, int, GateProgram]) -> bool:
        at_s, _, program = entry
        return bool(program.held) and program.rises_s == at_s and program.place[0] > 0
