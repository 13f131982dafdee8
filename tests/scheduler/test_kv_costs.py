"""What a call's KV has cost, as its receipt tells."""

from __future__ import annotations

from typing import Any

from autellix.scheduler.kv_costs import KvCosts, merged
from autellix.scheduler.tickets import Receipt


def receipt(service_s: float, costs: tuple[int, int]) -> dict[str, Any]:
    return Receipt(
        program="p",
        call="c",
        service_s=service_s,
        wait_s=0.0,
        levels=(1,),
        preemptions=1,
        output_tokens=3,
        swapped_in_tokens=costs[0],
        recomputed_tokens=costs[1],
    ).to_wire()


def test_what_is_not_found_again_was_computed_again() -> None:
    costs = KvCosts()
    costs.lost("r", 100)
    costs.back("r", 64, 32)
    costs.back("r", 0, 0)  # it drops out of the batch and comes again: nothing is lost by that
    assert costs.ends("r") == (32, 36)
    assert costs.ends("r") == (0, 0), "it is forgotten"


def test_who_finds_more_than_it_had_has_lost_nothing() -> None:
    costs = KvCosts()
    costs.lost("r", 10)
    costs.back("r", 16, 0)
    assert costs.ends("r") == (0, 0)


def test_a_first_admission_counts_what_was_loaded() -> None:
    costs = KvCosts()
    costs.back("r", 40, 40)
    assert costs.ends("r") == (40, 0)


def test_a_call_of_several_requests_tells_their_sum_and_the_longest_ones_times() -> None:
    costs = KvCosts()
    found = None
    for request, service_s in (("0_c", 2.0), ("1_c", 1.0)):
        costs.back(request, 40, 40)
        found = merged(found, receipt(service_s, costs.ends(request)))
    assert found is not None
    assert Receipt.from_wire(found) == Receipt.from_wire(
        receipt(2.0, (80, 0)) | {"preemptions": 2, "output_tokens": 6}
    )
