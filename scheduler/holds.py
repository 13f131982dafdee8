"""What a call that a gate has held carries on: its wait, and why it was held."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from .tickets import Decision, Receipt, Ticket


class Passed(NamedTuple):
    """A call that has been let through.

    Attributes:
        call: its id.
        at_s: when, on the clock that the gate is told.
        held_s: how long it was held, seconds.
        reason: why it was held; empty where it was not.
    """

    call: str
    at_s: float
    held_s: float
    reason: str


def ticket_with_hold(ticket: Ticket, passed: Passed) -> Ticket:
    """The ticket of a call that was held: to the queue, too, its program has waited."""
    if not passed.held_s:
        return ticket
    return ticket._replace(program_wait_s=ticket.program_wait_s + passed.held_s)


def receipt_with_hold(receipt: Receipt, passed: Passed | None) -> Receipt:
    """The receipt of a call that was held: the time is wait, and a decision says why."""
    if passed is None or not passed.held_s:
        return receipt
    level = receipt.levels[0] if receipt.levels else 1
    reason = f"held {passed.held_s:.3g} s: {passed.reason}"
    decision = Decision(passed.at_s, "admission", level, reason)
    return replace(
        receipt,
        wait_s=receipt.wait_s + passed.held_s,
        decisions=(decision, *receipt.decisions),
    )
