"""Engines without a model: a virtual one for the core, vLLM's own scheduler for the adapter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.core import Scheduler
from autellix.scheduler.live_call import LiveCall
from autellix.scheduler.policies import policy_named
from autellix.scheduler.process_table import ProcessTable
from autellix.scheduler.tickets import Receipt, Ticket


@dataclass
class Seats:
    """A capacity of seats alone, KV blocks without end."""

    free_seats: int
    free_blocks: int = 1 << 30

    def may_start(self, call: LiveCall) -> bool:
        return True

    def may_stop(self, call: LiveCall) -> bool:
        return True

    def blocks_needed(self, call: LiveCall) -> int:
        return 0

    def blocks_freed(self, call: LiveCall) -> int:
        return 0

    def seconds_back(self, call: LiveCall) -> float:
        return 0.0


@dataclass
class VirtualEngine:
    """A batch of seats on a virtual clock; the scheduler under test decides who sits.

    Every call needs a number of steps. Calls come in by :meth:`arrive` or, program by program, by
    :meth:`run_programs`.
    """

    config: SchedulerConfig
    seats: int
    step_s: float = 1.0
    now: float = 0.0
    steps: int = 0
    left: dict[LiveCall, int] = field(default_factory=dict)
    batch: list[LiveCall] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    ran: list[tuple[float, list[LiveCall]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = Scheduler(self.config)

    def arrive(self, ticket: Ticket, steps: int) -> LiveCall:
        call = self.core.arrive(ticket, self.now)
        self.left[call] = steps
        return call

    def step(self) -> list[Receipt]:
        """One engine step; the receipts of the calls that finished with it."""
        core = self.core
        if self.steps % self.config.policy_interval == 0:
            core.tick(self.now)
            free = self.seats - sum(core.running_by_level)
            for victim in core.victims(Seats(free), self.now):
                core.preempt(victim.call, self.now, victim.reason)
        running = [call for call in self.left if call.seated]
        waiting = sorted((call for call in self.left if not call.seated), key=core.rank)
        batch = running + waiting[: self.seats - len(running)]
        joining = [call for call in batch if call not in self.batch or not call.seated]
        dropping = [call for call in self.batch if call not in batch or not call.seated]
        core.dispatch(joining, dropping, self.now)
        self.batch = batch
        self.steps += 1
        self.now += self.step_s
        core.charge(self.now)
        self.ran.append((self.step_s, list(batch)))
        finished = []
        for call in batch:
            self.left[call] -= 1
            if not self.left[call]:
                del self.left[call]
                finished.append(core.leave(call, self.now))
        core.check()
        self.receipts += finished
        return finished

    def run_programs(self, programs: dict[str, list[int]]) -> dict[str, float]:
        """Run programs whose calls, given in steps, follow each other; when each one ends."""
        table = ProcessTable(policy_named(self.config.policy))
        left = {name: deque(calls) for name, calls in programs.items()}
        count = dict.fromkeys(programs, 0)
        ended: dict[str, float] = {}

        def next_call(name: str) -> None:
            ticket = table.call_started(name, f"{name}{count[name]}", self.now)
            count[name] += 1
            self.arrive(ticket, left[name].popleft())

        for name in programs:
            table.open(name, self.now)
            next_call(name)
        while len(ended) < len(programs):
            for receipt in sorted(self.step(), key=lambda r: r.program):
                table.call_ended(receipt.call, self.now, receipt)
                if left[receipt.program]:
                    next_call(receipt.program)
                else:
                    ended[receipt.program] = self.now
                    table.close(receipt.program)
        assert not len(table)
        return ended

    @property
    def waited_s(self) -> float:
        return sum(receipt.wait_s for receipt in self.receipts)


@pytest.fixture
def virtual_engine() -> Iterator[Callable[..., VirtualEngine]]:
    """Makes virtual engines and checks the scheduler of each when the test is over."""
    made: list[VirtualEngine] = []

    def make(seats: int = 2, step_s: float = 1.0, **settings: object) -> VirtualEngine:
        engine = VirtualEngine(SchedulerConfig(**settings), seats, step_s)  # type: ignore[arg-type]
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.core.check()
