"""What holds for every schedule: random ones on a virtual clock, with steps in flight."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.core import Scheduler
from autellix.scheduler.live_call import LiveCall
from autellix.scheduler.policies import POLICIES
from autellix.scheduler.tickets import Receipt, Ticket

TICK = 1 / 64  # all times are multiples of it, so that sums are exact
BETA = 2.0


@dataclass(frozen=True)
class Plan:
    """A random run: settings, and one action a turn, drawn as numbers in [0, 1)."""

    policy: str
    interval: int
    depth: int
    seats: int
    turns: list[tuple[float, float, float, float]]


FRACTIONS = st.integers(0, 63).map(lambda n: n / 64)
PLANS = st.builds(
    Plan,
    policy=st.sampled_from([policy.name for policy in POLICIES]),
    interval=st.sampled_from([1, 3]),
    depth=st.sampled_from([1, 2, 3]),
    seats=st.integers(1, 4),
    turns=st.lists(st.tuples(*[FRACTIONS] * 4), min_size=5, max_size=60),
)


class Run:
    """Plays a plan and keeps its own books of who was in which step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.core = Scheduler(
            SchedulerConfig(
                policy=plan.policy,
                levels=4,
                first_quantum_s=2.0,
                beta=BETA,
                policy_interval=plan.interval,
            )
        )
        self.now = 0.0
        self.last_output = 0.0
        self.count = 0
        self.batch: list[LiveCall] = []
        self.in_flight: deque[tuple[float, list[LiveCall]]] = deque()
        self.service: dict[str, float] = {}
        self.arrived: dict[str, float] = {}
        self.receipts: list[tuple[Receipt, float]] = []
        self.promoted: list[tuple[LiveCall, float, float]] = []
        self.log: list[object] = []

    def play(self) -> None:
        for turn, (kind, who, size, extra) in enumerate(self.plan.turns):
            self.now += int(size * 64) * TICK
            if kind < 0.35:
                self.arrive(who, size, extra)
            elif kind < 0.45 and self.core.calls:
                self.leave(self.pick(list(self.core.calls.values()), who))
            elif kind < 0.6 and any(call.seated for call in self.core.calls.values()):
                seated = [call for call in self.core.calls.values() if call.seated]
                self.core.preempt(self.pick(seated, who), self.now, "drawn")
            else:
                self.step(extra)
            if turn % self.plan.interval == 0:
                self.tick()
            self.check()
        while self.core.calls:
            self.leave(next(iter(self.core.calls.values())))

    @staticmethod
    def pick(calls: list[LiveCall], who: float) -> LiveCall:
        return calls[int(who * len(calls))]

    def arrive(self, who: float, size: float, extra: float) -> None:
        name = f"c{self.count}"
        self.count += 1
        ticket = Ticket(
            program=f"P{int(who * 3)}",
            call=name,
            attained_s=int(size * 20),
            program_service_s=int(size * 20),
            program_wait_s=int(extra * 20),
        )
        self.core.arrive(ticket, self.now)
        self.service[name], self.arrived[name] = 0.0, self.now

    def leave(self, call: LiveCall) -> None:
        receipt = self.core.leave(call, self.now)
        self.log.append(receipt)
        self.receipts.append((receipt, self.now))

    def step(self, extra: float) -> None:
        core = self.core
        seated = [call for call in core.calls.values() if call.seated]
        waiting = sorted((c for c in core.calls.values() if not c.seated), key=core.rank)
        room = max(self.plan.seats - len(seated), 0)
        admitted = waiting[:room]
        # Some of the seated have no work in this step.
        batch = [c for i, c in enumerate(seated) if extra < 0.7 or i % 2] + admitted
        core.dispatch(
            [c for c in batch if c not in self.batch or not c.seated],
            [c for c in self.batch if c not in batch or not c.seated],
            self.now,
        )
        self.batch = batch
        self.in_flight.append((self.now, batch))
        while len(self.in_flight) >= self.plan.depth:
            self.output(extra)

    def output(self, extra: float) -> None:
        dispatched, batch = self.in_flight.popleft()
        self.now += (1 + int(extra * 64)) * TICK
        step_s = self.core.charge(self.now)
        assert step_s == (self.now - max(dispatched, self.last_output) if batch else 0.0)
        self.last_output = self.now
        for call in batch:
            if call.key in self.core.calls:
                self.service[call.key] += step_s

    def tick(self) -> None:
        core = self.core
        before = {call: (call.level, core.rank(call)) for call in core.calls.values()}
        used_up = {call for call in core.calls.values() if core.service(call) >= call.quantum_end_s}
        ratios = {call: self.ratio(call) for call in core.calls.values()}
        moved = core.tick(self.now)
        self.log.append([(call.key, call.level) for call in moved])
        for call in core.calls.values():
            level, rank = before[call]
            if core.rank(call) != rank:
                assert call in moved
            demoted = call in used_up
            promoted = call.level == 0 and level + demoted > 0
            assert call.level == (0 if promoted else level + demoted)
            if promoted:
                assert ratios[call] >= BETA, "promoted without having starved"
            elif call.level > 0 and not call.seated:
                assert ratios[call] < BETA, "starved, and not promoted by this policy run"

    def ratio(self, call: LiveCall) -> float:
        wait = self.core.wait(call, self.now) - call.rule_wait_s
        service = self.core.service(call) - call.rule_service_s
        if self.core.policy.program_aware:
            wait += call.program.wait_s - call.program.paid_wait_s
            service += call.program.service_s
        return wait / service if service else (math.inf if wait else 0.0)

    def check(self) -> None:
        self.core.check()
        for name, call in self.core.calls.items():
            assert self.core.service(call) == self.service[name]


@given(PLANS)
@settings(max_examples=300, deadline=None)
def test_no_call_is_lost_and_each_leaves_with_one_receipt(plan: Plan) -> None:
    run = Run(plan)
    run.play()
    assert sorted(r.call for r, _ in run.receipts) == sorted(run.arrived)
    assert not run.core.calls and sum(run.core.running_by_level + run.core.waiting_by_level) == 0


@given(PLANS)
@settings(max_examples=300, deadline=None)
def test_service_is_the_sum_of_the_steps_with_the_call_and_with_wait_fits_into_the_wall_time(
    plan: Plan,
) -> None:
    run = Run(plan)
    run.play()
    for receipt, left in run.receipts:
        assert receipt.service_s == run.service[receipt.call]
        assert receipt.service_s + receipt.wait_s <= left - run.arrived[receipt.call]


@given(PLANS)
@settings(max_examples=150, deadline=None)
def test_the_same_events_give_the_same_decisions(plan: Plan) -> None:
    first, second = Run(plan), Run(plan)
    first.play()
    second.play()
    assert first.log == second.log


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=40),
    attained=st.lists(st.integers(0, 30), min_size=6, max_size=6),
    numbers=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    ties=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_inside_a_level_the_older_program_comes_first_or_who_entered_first(
    steps: list[tuple[int, int]], attained: list[int], numbers: list[int], ties: bool
) -> None:
    core = Scheduler(
        SchedulerConfig(
            policy="plas", levels=4, first_quantum_s=2.0, beta=math.inf, program_ties=ties
        )
    )
    program: dict[LiveCall, int] = {}
    entered: dict[LiveCall, int] = {}
    order = iter(range(10_000))
    for i, attained_s in enumerate(attained):
        ticket = Ticket(
            program=f"P{numbers[i]}",
            call=f"c{i}",
            attained_s=float(attained_s),
            program_number=numbers[i],
        )
        call = core.arrive(ticket, 0.0)
        entered[call], program[call] = next(order), numbers[i] if ties else 0
    calls, now, batch = list(entered), 0.0, []
    for who, length in steps:
        call = calls[who]
        core.dispatch([] if batch == [call] else [call], [c for c in batch if c != call], now)
        batch = [call]
        now += length
        core.charge(now)
        for moved in core.tick(now):
            entered[moved] = next(order)
        by_rank = sorted(calls, key=core.rank)
        assert by_rank == sorted(calls, key=lambda c: (c.level, program[c], entered[c]))
        assert len({core.rank(c) for c in calls}) == len(calls)


@given(
    service=st.integers(1, 50),
    waited=st.integers(0, 200),
    interval_s=st.integers(1, 9),
    others=st.lists(st.integers(1, 40), max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_starvation_bound_a_waiting_call_is_promoted_in_time(
    service: int, waited: int, interval_s: int, others: list[int]
) -> None:
    """At the latest in the first policy run after beta * (T + t) - (W + w) seconds of wait."""
    core = Scheduler(SchedulerConfig(policy="plas", levels=4, first_quantum_s=0.5, beta=BETA))
    for i, attained_s in enumerate(others):
        core.arrive(Ticket(program=f"Q{i}", call=f"q{i}", attained_s=float(attained_s)), 0.0)
    starved = core.arrive(
        Ticket(
            program="P",
            call="starved",
            attained_s=float(service),
            program_service_s=float(service),
            program_wait_s=float(waited),
        ),
        0.0,
    )
    bound_s = max(BETA * service - waited, 0.0)
    now = 0.0
    while starved.level:
        now += interval_s
        core.tick(now)
        assert now < bound_s + interval_s or not starved.level
    assert now >= bound_s
