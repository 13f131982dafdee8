"""What travels with a call and what comes back, across process borders."""

from __future__ import annotations

import json

from autellix.scheduler.tickets import Decision, Receipt, Ticket


def test_a_ticket_comes_back_from_its_flat_form() -> None:
    ticket = Ticket(program="P", call="c", attained_s=1.5, prompt_tokens=7, course=(0.0, 32.0))
    assert Ticket.from_flat(json.loads(json.dumps(ticket.to_flat()))) == ticket


def test_a_call_from_outside_has_no_ticket() -> None:
    assert Ticket.from_flat({"other": 1}) is None
    assert Ticket.from_flat(None) is None


def test_the_cause_of_a_decision_is_put_into_words_where_it_is_read() -> None:
    told = Decision(1.0, "demotion", 2, ("quantum of {:.3g} s used up", 0.6412))
    assert told.reason == "quantum of 0.641 s used up"
    assert Decision(1.0, "preemption", 1, "KV cache full").reason == "KV cache full"
    assert Decision(1.0, "leave", 1, "odd {reason}").reason == "odd {reason}", "words stay as given"


def test_a_receipt_comes_back_from_its_wire_form() -> None:
    receipt = Receipt(
        program="P",
        call="c",
        service_s=2.5,
        wait_s=0.5,
        levels=(1, 2),
        preemptions=1,
        recomputed_tokens=9,
        decisions=(
            Decision(1.0, "dispatch", 1, ("waited {:.3g} s", 0.5)),
            Decision(2.0, "leave", 2, "stop"),
        ),
    )
    assert Receipt.from_wire(json.loads(json.dumps(receipt.to_wire()))) == receipt
