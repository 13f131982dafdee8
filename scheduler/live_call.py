"""A call that is in the scheduler now: its place, its meters, and what was done with it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .tickets import Cause, Decision, DecisionKind, Receipt, Ticket

if TYPE_CHECKING:
    from .tenant_shares import TenantLoad


class ProgramTotals:
    """What the finished calls of a program took, while it has a live call on this replica.

    Attributes:
        service_s: T_program, seconds.
        wait_s: W_program, seconds.
        paid_wait_s: the part of it that promotions have paid for, seconds.
        calls: the program's live calls by key.
    """

    __slots__ = ("calls", "paid_wait_s", "service_s", "wait_s")

    def __init__(self, service_s: float, wait_s: float) -> None:
        self.service_s = service_s
        self.wait_s = wait_s
        self.paid_wait_s = 0.0
        self.calls: dict[str, LiveCall] = {}


class LiveCall:
    """State of one call; the scheduler and its service clock alone change it.

    Attributes:
        ticket: as it came.
        key: unique among live calls; the ticket's call id unless the engine has its own.
        program: totals that the call shares with its program's other live calls.
        tenant: on whose behalf it is, and what that one has had.
        level: from 0, best first.
        tie: where the level ties by program, its program's place among programs, and its own among
            the program's calls; else 0.
        rank: orders all calls: by level, by tie, then by entry into the level.
        placed_s: when it entered its level.
        seated: whether it has a seat in the engine.
        started: whether it ever had one.
        gone: whether it has left.
        waited_s, waiting_since_s: wait up to the last loss of the seat, and when that was.
        preemptions: how often it lost its seat.
        levels: levels visited, from 1.
        served_s, joined_s: service up to when it last left the batch, and the clock's reading when
            it last joined; None while the clock does not run for it.
        in_batch, last_step, last_output_s: whether the step dispatched last has it, and after it
            dropped out of the batch the last step that had it and that step's output.
        quantum_s, quantum_end_s: the quantum granted last, and the service at which it is used up.
        alarm: the clock's reading at which it will have; infinite while the clock does not run.
        rule_service_s, rule_wait_s: its service and wait when it was promoted last: the promotion
            rule counts from there.
        promotion_due_s: when the rule is to be looked at next; infinite for never.
        seat_service_s: its service when it got its seat.
        cached_tokens: of its prompt, whose KV was there at its first seat; the engine notes it.
    """

    __slots__ = (
        "_kept",
        "_log",
        "alarm",
        "cached_tokens",
        "gone",
        "in_batch",
        "joined_s",
        "key",
        "last_output_s",
        "last_step",
        "level",
        "levels",
        "placed_s",
        "preemptions",
        "program",
        "promotion_due_s",
        "quantum_end_s",
        "quantum_s",
        "rank",
        "rule_service_s",
        "rule_wait_s",
        "seat_service_s",
        "seated",
        "served_s",
        "started",
        "tenant",
        "ticket",
        "tie",
        "waited_s",
        "waiting_since_s",
    )

    def __init__(
        self, ticket: Ticket, key: str, program: ProgramTotals, now: float, kept_decisions: int
    ) -> None:
        self.ticket = ticket
        self.key = key
        self.program = program
        self.tenant: TenantLoad
        self.level = 0
        self.tie = 0
        self.rank = 0
        self.placed_s = now
        self.seated = False
        self.started = False
        self.gone = False
        self.waited_s = 0.0
        self.waiting_since_s = now
        self.preemptions = 0
        self.levels: list[int] = []
        self.served_s = 0.0
        self.joined_s: float | None = None
        self.in_batch = False
        self.last_step = 0
        self.last_output_s = -math.inf
        self.quantum_s = math.inf
        self.quantum_end_s = math.inf
        self.alarm = math.inf
        self.rule_service_s = 0.0
        self.rule_wait_s = 0.0
        self.promotion_due_s = math.inf
        self.seat_service_s = 0.0
        self.cached_tokens = 0
        self._log: list[tuple[float, DecisionKind, int, Cause]] = []
        self._kept = kept_decisions

    def __repr__(self) -> str:
        place = "seated" if self.seated else "waiting"
        return f"<LiveCall {self.key} of {self.ticket.program}: level {self.level + 1}, {place}>"

    def log(self, at_s: float, kind: DecisionKind, cause: Cause) -> None:
        """Note a decision; beyond the kept number the middle ones go, so that both ends stay."""
        log = self._log
        if len(log) == self._kept:
            del log[self._kept // 2]
        log.append((at_s, kind, self.level + 1, cause))

    def wire(
        self,
        *,
        service_s: float,
        wait_s: float,
        replica: int,
        prompt_tokens: int,
        output_tokens: int,
        swapped_in_tokens: int,
        recomputed_tokens: int,
    ) -> dict[str, Any]:
        """What :meth:`receipt` gives as plain types, as ``Receipt.from_wire`` reads them."""
        return {
            "program": self.ticket.program,
            "call": self.ticket.call,
            "service_s": service_s,
            "wait_s": wait_s,
            "levels": self.levels,
            "preemptions": self.preemptions,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": output_tokens,
            "swapped_in_tokens": swapped_in_tokens,
            "recomputed_tokens": recomputed_tokens,
            "replica": replica,
            "decisions": self._log,
        }

    def receipt(
        self,
        *,
        service_s: float,
        wait_s: float,
        replica: int,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
    ) -> Receipt:
        """What the call cost, with the meters as given."""
        return Receipt(
            program=self.ticket.program,
            call=self.ticket.call,
            service_s=service_s,
            wait_s=wait_s,
            levels=tuple(self.levels),
            preemptions=self.preemptions,
            prompt_tokens=prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=output_tokens,
            replica=replica,
            decisions=tuple(map(Decision._make, self._log)),
        )
