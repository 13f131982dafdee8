"""What a call's KV has cost, as its receipt tells."""

from __future__ import annotations

from autellix.scheduler.kv_costs import KvCosts, merged
from autellix.scheduler.tickets import Receipt

RECEIPT = Receipt(program="p", call="c", service_s=1.0, wait_s=0.0, levels=(1,), preemptions=0)


def test_what_is_not_found_again_was_computed_again() -> None:
    costs = KvCosts()
    costs.lost("r", 100)
    costs.back("r", 64, 32)
    costs.back("r", 0, 0)  # it drops out of the batch and comes again: nothing is lost by that
    receipt = costs.on_receipt("r", RECEIPT)
    assert (receipt.swapped_in_tokens, receipt.recomputed_tokens) == (32, 36)
    assert costs.on_receipt("r", RECEIPT) is RECEIPT, "it is forgotten"


def test_who_finds_more_than_it_had_has_lost_nothing() -> None:
    costs = KvCosts()
    costs.lost("r", 10)
    costs.back("r", 16, 0)
    assert costs.on_receipt("r", RECEIPT).recomputed_tokens == 0


def test_a_first_admission_counts_what_was_loaded() -> None:
    costs = KvCosts()
    costs.back("r", 40, 40)
    receipt = costs.on_receipt("r", RECEIPT)
    assert (receipt.swapped_in_tokens, receipt.recomputed_tokens) == (40, 0)


def test_a_call_of_several_requests_tells_their_sum() -> None:
    costs = KvCosts()
    receipt = None
    for request in ("0_c", "1_c"):
        costs.back(request, 40, 40)
        receipt = merged(receipt, costs.on_receipt(request, RECEIPT))
    assert receipt is not None and receipt.swapped_in_tokens == 80
