"""Our balancer: programs stay where their KV is, as long as that pays for all."""

from __future__ import annotations

import math
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler import expected_cost
from autellix.scheduler.balancers import balancer_named
from autellix.scheduler.call_rates import CallRates
from autellix.scheduler.engine_model import preset_named
from autellix.scheduler.expected_cost import ExpectedCost
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.simulator import CallRecord, Simulation
from autellix.scheduler.tickets import Receipt, Ticket
from benchmarks.workloads import poisson, workload

SEATS, KV_TOKENS = 10, 100_000
OUTPUT = 100
STEP_S, PROMPT_TOKEN_S = 0.02, 1e-4


class Fleet:
    """Replicas that serve calls as told; a call takes what the rates say."""

    def __init__(self, replicas: int, *, kv_tokens: int = KV_TOKENS) -> None:
        self.balancer = ExpectedCost()
        self.loads: list[float] = [0] * replicas
        self.where: dict[str, int] = {}
        self.kv_tokens = kv_tokens
        self._ids = count()
        for index in range(replicas):
            self.serves(index)

    def serves(self, index: int) -> None:
        self.loads[index] = 0
        self.balancer.replica_serves(index, seats=SEATS, kv_tokens=self.kv_tokens)

    def only(self, *replicas: int) -> None:
        """Let these alone take calls."""
        under_way = list(self.where.values())
        for index in range(len(self.loads)):
            self.loads[index] = under_way.count(index) if index in replicas else math.inf

    def begin(self, program: str, prompt: int) -> Ticket:
        ticket = Ticket(program=program, call=str(next(self._ids)), prompt_tokens=prompt)
        index = self.balancer.place(ticket, self.loads)
        self.loads[index] += 1
        self.where[ticket.call] = index
        return ticket

    def end(self, ticket: Ticket, *, cached: int = 0) -> int:
        """The replica on which it was."""
        index = self.where.pop(ticket.call)
        self.loads[index] -= 1
        receipt = Receipt(
            program=ticket.program,
            call=ticket.call,
            service_s=OUTPUT * STEP_S + (ticket.prompt_tokens - cached) * PROMPT_TOKEN_S,
            wait_s=0.0,
            levels=(1,),
            preemptions=0,
            prompt_tokens=ticket.prompt_tokens,
            cached_tokens=cached,
            output_tokens=OUTPUT,
            replica=index,
        )
        self.balancer.call_ended(ticket.call, receipt)
        return index

    def serve(self, program: str, prompt: int, *, cached: int = 0) -> int:
        return self.end(self.begin(program, prompt), cached=cached)


def test_new_programs_go_where_least_is_to_do() -> None:
    fleet = Fleet(3)
    assert sorted(fleet.where[fleet.begin(f"p{i}", 1000).call] for i in range(6)) == [
        0, 0, 1, 1, 2, 2,
    ]  # fmt: skip


def test_work_counts_not_calls() -> None:
    fleet = Fleet(2)
    fleet.begin("long", 50_000)
    assert {fleet.where[fleet.begin(f"p{i}", 100).call] for i in range(5)} == {1}


def test_a_program_s_next_call_goes_where_its_context_is_though_others_have_less_to_do() -> None:
    fleet = Fleet(3)
    home = fleet.serve("chat", 4000)
    others = [fleet.begin(f"p{i}", 100) for i in range(3)]
    at_home = [t for t in others if fleet.where[t.call] == home]
    assert at_home
    for ticket in others:
        if ticket not in at_home:
            fleet.end(ticket)
    assert fleet.serve("chat", 4300, cached=4100) == home


def test_a_short_context_counts_too() -> None:
    fleet = Fleet(2)
    home = fleet.serve("chat", 600)
    assert {fleet.serve("chat", 700 + 100 * i, cached=600 + 100 * i) for i in range(5)} == {home}


def test_it_moves_when_its_replica_has_so_much_to_do_that_computing_again_is_sooner_done() -> None:
    fleet = Fleet(2)
    home = fleet.serve("chat", 4000)
    fleet.only(home)
    for i in range(60):
        fleet.begin(f"p{i}", 2000)
    fleet.only(0, 1)
    assert fleet.where[fleet.begin("chat", 4200).call] == 1 - home


@given(parallel=st.integers(2, 300))
@settings(max_examples=30, deadline=None)
def test_affinity_never_overloads_a_replica(parallel: int) -> None:
    """One program's calls all at once, with nothing else to do anywhere."""
    fleet = Fleet(4)
    fleet.serve("tree", 3000)
    for _ in range(parallel):
        fleet.begin("tree", 3100)
    backlogs = [replica.backlog_s for replica in fleet.balancer._replicas]
    rates = fleet.balancer.rates
    # What it may have more to do than another: a context computed while all seats sit through it,
    # and the call placed last.
    bound_s = 3100 * rates.prompt_token_s * (1 + SEATS) + OUTPUT * rates.output_token_s
    assert max(backlogs) - min(backlogs) <= bound_s + 3100 * rates.prompt_token_s


def test_a_program_whose_replica_is_lost_moves_and_what_was_cached_there_is_not_counted_on() -> (
    None
):
    fleet = Fleet(2)
    home = fleet.serve("chat", 4000)
    fleet.loads[home] = math.inf
    moved = fleet.serve("chat", 4300)
    assert moved == 1 - home
    fleet.serves(home)
    fleet.only(moved)
    fleet.begin("busy", 100)
    fleet.only(0, 1)
    # Its old replica has nothing to do and the new one something; its context is on the new one.
    assert fleet.serve("chat", 4500, cached=4400) == moved


@pytest.mark.parametrize(("written", "stays"), [(3000, True), (12_000, False)])
def test_what_was_used_longest_ago_is_taken_for_evicted(written: int, stays: bool) -> None:
    fleet = Fleet(2, kv_tokens=10_000)
    home = fleet.serve("chat", 4000)
    fleet.only(home)
    fleet.serve("other", written)
    fleet.begin("busy", 100)
    fleet.only(0, 1)
    assert (fleet.serve("chat", 4200) == home) is stays


def test_a_cache_that_keeps_less_than_expected_is_trusted_less() -> None:
    fleet = Fleet(1)
    for i in range(200):
        fleet.serve("tree", 2000 + i, cached=500)
    (replica,) = fleet.balancer._replicas
    assert replica.found == pytest.approx(0.25, abs=0.05)


def test_all_work_is_taken_off_again() -> None:
    fleet = Fleet(3)
    rng = Random(5)
    tickets = [fleet.begin(f"p{i % 9}", rng.randrange(10, 9000)) for i in range(100)]
    for ticket in tickets[:50]:
        fleet.end(ticket)
    for ticket in tickets[50:]:
        fleet.balancer.call_ended(ticket.call, None)
    assert [replica.backlog_s for replica in fleet.balancer._replicas] == [0.0, 0.0, 0.0]
    assert fleet.balancer._placed == {}
    for i in range(9):
        fleet.balancer.program_ended(f"p{i}")
    assert fleet.balancer._programs == {}


def test_programs_whose_end_nobody_tells_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_cost, "_MOST_PROGRAMS", 20)
    fleet = Fleet(2)
    home = fleet.serve("often", 4000)
    for i in range(100):
        fleet.serve(f"once{i}", 10)
        assert fleet.serve("often", 4000, cached=3990) == home
    assert len(fleet.balancer._programs) == 20


def test_rates_are_found_whatever_the_engine_s_speed() -> None:
    rng = Random(2)
    rates = CallRates()
    for _ in range(2000):
        output, computed = rng.randrange(1, 400), rng.randrange(0, 4000)
        rates.learn(
            Receipt(
                program="p",
                call="c",
                service_s=output * 0.2 + computed * 0.003,
                wait_s=9.0,
                levels=(1,),
                preemptions=0,
                prompt_tokens=computed + 64,
                cached_tokens=64,
                output_tokens=output,
            )
        )
    assert rates.output_token_s == pytest.approx(0.2, rel=0.1)
    assert rates.prompt_token_s == pytest.approx(0.003, rel=0.1)


def test_calls_that_were_not_served_teach_nothing() -> None:
    rates = CallRates()
    before = (rates.output_token_s, rates.prompt_token_s)
    rates.learn(
        Receipt(
            program="p",
            call="c",
            service_s=0.0,
            wait_s=5.0,
            levels=(1,),
            preemptions=0,
            prompt_tokens=900,
        )
    )
    assert (rates.output_token_s, rates.prompt_token_s) == before


@pytest.mark.parametrize("name", ["bfcl", "tot"])
def test_programs_are_served_faster_than_with_either_baseline(name: str) -> None:
    """On four modelled replicas at three quarters of their capacity and above it."""
    model = preset_named("a100-llama3-8b")
    served = workload(name, 60, 1, model=model).programs
    latency: dict[str, float] = {}
    for balancer in ("expected-cost", "least-used", "round-robin"):
        simulation = Simulation(
            model, sim_policy("default"), replicas=4, balancer=balancer_named(balancer)
        )
        programs = simulation.run(poisson(served, 6.0, 1)).programs
        latency[balancer] = sum(program.token_latency_s for program in programs)
    assert latency["expected-cost"] < latency["least-used"]
    assert latency["expected-cost"] < latency["round-robin"]


def test_receipts_of_a_simulation_name_the_replica() -> None:
    model = preset_named("a100-llama3-8b")
    records: list[CallRecord] = []
    simulation = Simulation(model, sim_policy("plas"), replicas=3, on_call=records.append)
    simulation.run_offline(workload("bfcl", 12, 1, model=model).programs)
    served = simulation.result.calls_served
    assert [sum(r.receipt.replica == i for r in records) for i in range(3)] == served
    assert min(served) > 0
