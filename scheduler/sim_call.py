"""A call on a simulated replica, and the orders in which such calls may stand."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from .holds import Passed, ticket_with_hold
from .live_call import LiveCall
from .prefix_cache import CacheNode
from .sim_live import LiveProgram
from .tickets import Receipt, Ticket


class ReplicaCall:
    """A call on a simulated replica.

    Attributes:
        program: whose it is.
        index: which of its calls.
        ticket: as given by the process table.
        prompt_tokens, output_tokens: lengths.
        known_tokens: leading part of its context that was computed before, by an earlier call of
            its program or by itself.
        tail: where its context ends in the replica's cache.
        live: the core's view of it; None before it has entered.
        rank: orders waiting calls; smaller runs first.
        generated: tokens generated up to when it last lost its seat.
        computed: tokens whose KV it had when it began to generate, or has so far in its prefill.
        prefill_left: tokens of its context still to be computed; 0 while it generates.
        admitted_blocks: whole blocks of its context when it was admitted; they are in the cache.
        began_at, ends_at: the replica's count of steps when it began to generate and when it will
            have all its tokens; ``ends_at`` is -1 while it does not generate.
        cached_tokens: found in the cache when it was first admitted; -1 before.
        loaded_tokens: of its KV, loaded from host memory so far.
        recomputed_tokens: computed again after it had lost its seat.
        ready_s: when the load of its KV ends that it has been given blocks for.
        loading: whether it waits for that.
        passed: how the gate let it through; None without a gate.
    """

    __slots__ = (
        "admitted_blocks",
        "began_at",
        "cached_tokens",
        "computed",
        "ends_at",
        "generated",
        "index",
        "known_tokens",
        "live",
        "loaded_tokens",
        "loading",
        "output_tokens",
        "passed",
        "prefill_left",
        "program",
        "prompt_tokens",
        "rank",
        "ready_s",
        "recomputed_tokens",
        "tail",
        "ticket",
    )

    def __init__(
        self,
        program: LiveProgram,
        index: int,
        ticket: Ticket,
        *,
        output_tokens: int,
        known_tokens: int,
        tail: CacheNode,
    ) -> None:
        self.program = program
        self.index = index
        self.ticket = ticket
        self.prompt_tokens = ticket.prompt_tokens
        self.output_tokens = output_tokens
        self.known_tokens = known_tokens
        self.tail = tail
        self.live: LiveCall | None = None
        self.rank: float = 0
        self.generated = 0
        self.computed = 0
        self.prefill_left = 0
        self.admitted_blocks = 0
        self.began_at = 0
        self.ends_at = -1
        self.cached_tokens = -1
        self.loaded_tokens = 0
        self.recomputed_tokens = 0
        self.ready_s = 0.0
        self.loading = False
        self.passed: Passed | None = None

    def hold(self, passed: Passed) -> None:
        """The gate has let it through: what it waited there counts as its program's wait."""
        self.passed = passed
        self.ticket = ticket_with_hold(self.ticket, passed)


class Order(Protocol):
    """An order of calls that takes the place of the core's rank, in the simulator alone."""

    def __call__(self, call: ReplicaCall) -> float:
        """The call's place: smaller runs first."""
        ...


class Ended(NamedTuple):
    """A call that has ended, with what it cost."""

    call: ReplicaCall
    receipt: Receipt
