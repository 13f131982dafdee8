"""Tenants share the engine by their weights, whatever their programs look like."""

from __future__ import annotations

from collections import Counter

import pytest

from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.core import Scheduler
from autellix.scheduler.live_call import LiveCall
from autellix.scheduler.tickets import Ticket

SEATS, STEP_S = 8, 0.01


class Engine:
    """Seats, and steps of one length; each tenant keeps so many calls of so many steps in it."""

    def __init__(self, policy: str) -> None:
        self.core = Scheduler(SchedulerConfig(policy=policy, expected_step_s=STEP_S))
        self.now = 0.0
        self.had: Counter[str] = Counter()
        self.waited: dict[str, list[float]] = {}
        self._left: dict[LiveCall, int] = {}
        self._number = 0
        self._gone: list[LiveCall] = []

    def come(self, tenant: str, steps: int, *, share: float = 1.0, number: int = -1) -> None:
        self._number += 1
        program = f"{tenant}/{self._number}"
        number = self._number if number < 0 else number
        ticket = Ticket(
            program=program, call=program, tenant=tenant, share=share, program_number=number
        )
        self._left[self.core.arrive(ticket, self.now)] = steps

    def waiting(self, tenant: str) -> int:
        return sum(c.ticket.tenant == tenant and not c.seated for c in self._left)

    def step(self, count: int) -> None:
        core = self.core
        if count % core.config.policy_interval == 0:
            core.tick(self.now)
        seated = [call for call in self._left if call.seated]
        waiting = sorted((call for call in self._left if not call.seated), key=core.rank)
        joining = waiting[: SEATS - len(seated)]
        core.dispatch(joining, self._gone, self.now)
        self._gone = []
        self.now += STEP_S
        core.charge(self.now)
        for call in [*seated, *joining]:
            self.had[call.ticket.tenant] += 1
            self._left[call] -= 1
            if not self._left[call]:
                del self._left[call]
                self._gone.append(call)
                receipt = core.leave(call, self.now)
                self.waited.setdefault(call.ticket.tenant, []).append(receipt.wait_s)
        core.check()


POLICIES = ("default", "plas", "atlas", "mlfq", "fcfs", "program-fcfs")


@pytest.mark.parametrize("policy", POLICIES)
def test_tenants_that_want_more_than_there_is_get_their_shares(policy: str) -> None:
    engine = Engine(policy)
    for count in range(6_000):
        for tenant, share, calls, steps in (("a", 1.0, 60, 20), ("b", 3.0, 20, 150)):
            while engine.waiting(tenant) < calls:
                engine.come(tenant, steps, share=share)
        engine.step(count)
    assert engine.had["b"] / engine.had["a"] == pytest.approx(3.0, rel=0.1)
    assert sum(engine.had.values()) == 6_000 * SEATS, "no seat stays empty"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tenant_with_a_thousand_calls_does_not_keep_another_waiting(policy: str) -> None:
    engine = Engine(policy)
    for _ in range(1_000):
        engine.come("greedy", 20, number=0)  # its programs claim to have come first
    for count in range(2_000):
        if count % 40 == 0:
            engine.come("modest", 20)
        engine.step(count)
    # Without shares each of them would have waited for all that came before: some 25 s.
    assert len(engine.waited["modest"]) >= 48
    assert max(engine.waited["modest"]) < 0.5
    assert engine.had["greedy"] == 2_000 * SEATS - engine.had["modest"], "no seat stays empty"


def test_time_without_calls_earns_no_more_than_a_lead() -> None:
    engine = Engine("plas")
    engine.come("late", 1)
    for count in range(4_000):
        while engine.waiting("early") < 20:
            engine.come("early", 20)
        engine.step(count)
    before = engine.had.copy()
    for count in range(4_000, 6_000):
        for tenant in ("early", "late"):
            while engine.waiting(tenant) < 20:
                engine.come(tenant, 20)
        engine.step(count)
    late = engine.had["late"] - before["late"]
    early = engine.had["early"] - before["early"]
    assert late / early == pytest.approx(1.0, rel=0.1)


def test_with_one_tenant_the_order_is_the_policys_alone() -> None:
    def order(tenant: str) -> list[int]:
        core = Scheduler(SchedulerConfig(policy="plas"))
        for number, attained_s in enumerate((9.0, 0.0, 99.0, 0.5)):
            core.arrive(
                Ticket(
                    program=f"p{number}", call=f"c{number}", attained_s=attained_s, tenant=tenant
                ),
                0.0,
            )
        core.tick(1.0)
        assert not core.tenants.several
        return [int(call.key[1:]) for call in sorted(core.calls.values(), key=core.rank)]

    assert order("") == order("somebody") == [1, 3, 0, 2]


def test_a_tenant_that_comes_second_may_be_served_first_by_the_lead_and_no_further() -> None:
    core = Scheduler(SchedulerConfig(policy="plas", expected_step_s=STEP_S))
    first, second = (
        core.arrive(Ticket(program=name, call=name, tenant=name), 0.0) for name in ("a", "b")
    )
    lead_s = core.config.quantum_steps * STEP_S
    assert second.tenant.had_s == pytest.approx(first.tenant.had_s - lead_s)
