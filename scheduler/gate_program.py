"""A program as the gate before a replica sees it."""

from __future__ import annotations

import math
from typing import NamedTuple

from .tickets import Receipt, Ticket
from .working_set import CallMeans, WorkingSet

Place = tuple[float, int]
# Caches keep whole blocks, and the last token of a prompt is computed in any case.
_ROUNDING_TOKENS = 64


class HeldCall(NamedTuple):
    """Since when a call has been held, and why."""

    since_s: float
    reason: str


class GateTenant:
    """What the programs of one tenant have at the gate.

    Attributes:
        share: of the engine, against others' shares.
        room: KV tokens of its programs that are inside.
        waiting: its programs that are held, best place first; older entries may be dead.
    """

    __slots__ = ("room", "share", "waiting")

    def __init__(self, share: float) -> None:
        self.share = share
        self.room = 0
        self.waiting: list[tuple[Place, int, GateProgram]] = []

    @property
    def used(self) -> float:
        """Room for its share: the tenant that has least comes in next."""
        return self.room / self.share


class GateProgram:
    """State of one program; the gate alone changes it.

    Attributes:
        tenant: on whose behalf it is.
        place: level and number; smaller is better.
        running: calls that have been let through, with the tokens they should find in the cache.
        held: calls that wait at the gate.
        inside: whether its calls may run; ``going``: whether it has been told to go.
        room: KV tokens that it has, while it is inside.
        kept_room: whether it has had its room since its last call ended.
        over: whether it has ended; its last calls are still to end.
        idle_since_s: end of its last call; infinite while it has calls.
        rises_s: when it stands in the best level for having waited.
        entry, held_entry: its newest places among those inside and those held.
        ended_calls: how many calls have ended.
    """

    __slots__ = (
        "_known",
        "_set",
        "ended_calls",
        "entry",
        "going",
        "held",
        "held_entry",
        "idle_since_s",
        "inside",
        "kept_room",
        "name",
        "over",
        "place",
        "rises_s",
        "room",
        "running",
        "tenant",
    )

    def __init__(self, name: str, means: CallMeans, tenant: GateTenant) -> None:
        self.name = name
        self.tenant = tenant
        self.place: Place = (0, 0)
        self.running: dict[str, int] = {}
        self.held: dict[str, HeldCall] = {}
        self.inside = False
        self.going = False
        self.room = 0
        self.kept_room = False
        self.over = False
        self.idle_since_s = math.inf
        self.rises_s = math.inf
        self.entry = self.held_entry = -1
        self.ended_calls = 0
        self._set = WorkingSet(means)
        self._known: dict[str, int] = {}

    @property
    def tokens(self) -> int:
        """Its working set."""
        return self._set.tokens

    @property
    def work_tokens(self) -> int:
        """Work of its calls so far, in prompt tokens."""
        return self._set.work_tokens

    def call_comes(self, ticket: Ticket, known_tokens: int, held: HeldCall) -> None:
        """A call is at the gate."""
        known = min(known_tokens, ticket.prompt_tokens)
        self._set.call_comes(ticket.call, ticket.prompt_tokens, known)
        self._known[ticket.call] = known
        self.held[ticket.call] = held
        self.idle_since_s = math.inf
        self.over = False

    def let_through(self) -> dict[str, HeldCall]:
        """Its held calls run from now on."""
        through, self.held = self.held, {}
        for call in through:
            self.running[call] = self._known.pop(call) if self.kept_room else 0
        self._known.clear()
        return through

    def call_ended(self, call: str, receipt: Receipt | None) -> int:
        """A call is over; prompt tokens it computed although they should have been in the cache."""
        self.held.pop(call, None)
        self._known.pop(call, None)
        expected = self.running.pop(call, 0)
        if receipt is None:
            self._set.call_gone(call)
            return 0
        self._set.call_ended(call, receipt.output_tokens)
        self.ended_calls += 1
        self.kept_room = self.inside and not self.going
        return max(0, expected - receipt.cached_tokens - _ROUNDING_TOKENS)
