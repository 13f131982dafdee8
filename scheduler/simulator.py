"""Discrete-event simulator: programs on modelled replicas, scheduled by the same core as real ones.

Three kinds of event, on one heap: a program arrives, a call's tools are through, a replica's step
or stretch is over. At equal times they are handled in this order, so that a replica sees all calls
that came up to the moment at which it forms its next step.

1. A program arrives: its entry in the process table is opened; calls without parents are ready.
2. A call is ready: the process table gives the ticket, the balancer the replica; the replica's
   stretch is cut.
3. A step is over: calls that ended get receipts, the table takes them; their children are ready
   after their tool time, at once if there is none. Then the replica plans on.
4. A program's last call has ended: the entry is closed. In a closed loop the next program comes.

Calls reach their replica in :meth:`Simulation._submit`, the one door: admission control can hold
them there, and let them through from :meth:`Simulation._call_ended`. A tier of KV in host memory
would stand between the replica's cache and its prefill, where a swapped call's KV is loaded now
(``Replica._load``).

Pure Python on virtual time; the same input gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from autellix.errors import InputError, SettingsError

from .balancers import Balancer, ProgramLocality
from .engine_model import EngineModel
from .policies import policy_named
from .prefix_cache import CacheNode
from .process_table import ProcessTable
from .sim_call import Order, ReplicaCall
from .sim_orders import SimPolicy
from .sim_programs import SimCall, SimProgram
from .sim_replica import Replica, Resume
from .tickets import Receipt, Ticket

_ARRIVAL, _READY, _STEP = 0, 1, 2


class CallRecord(NamedTuple):
    """A call that has ended.

    Attributes:
        number: which of its program's calls, from 0.
        started_s, ended_s: when it came and when it ended, virtual time.
    """

    program: str
    number: int
    started_s: float
    ended_s: float
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """A program that has ended.

    Attributes:
        name: the program's.
        arrived_s: its arrival.
        first_call_s, ended_s: when its first call came and its last one ended.
        response_s: the time between less the intervals in which no call of it was outstanding.
        service_s, wait_s: sums over its calls.
        critical_path_s: service along its longest chain of calls.
        calls, output_tokens, preemptions: how many.
    """

    name: str
    arrived_s: float
    first_call_s: float
    ended_s: float
    response_s: float
    service_s: float
    wait_s: float
    critical_path_s: float
    calls: int
    output_tokens: int
    preemptions: int

    @property
    def token_latency_s(self) -> float:
        """Program token latency: response time for each token generated."""
        return self.response_s / self.output_tokens


@dataclass(slots=True, kw_only=True)
class SimResult:
    """What a run gave.

    Attributes:
        programs: in the order in which they ended.
        ended_s: end of the last one.
        steps, stretches: of all replicas; a stretch is a number of steps taken at once.
        busy_s: time in steps, of each replica.
        calls_served: by each replica.
    """

    programs: list[ProgramRecord] = field(default_factory=list)
    ended_s: float = 0.0
    calls: int = 0
    preemptions: int = 0
    promotions: int = 0
    demotions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    recomputed_tokens: int = 0
    swapped_tokens: int = 0
    steps: int = 0
    stretches: int = 0
    busy_s: list[float] = field(default_factory=list)
    calls_served: list[int] = field(default_factory=list)


class _Run:
    """A program that has not ended."""

    __slots__ = (
        "arrived_s",
        "chains",
        "critical_path_s",
        "ended",
        "first_call_s",
        "idle_s",
        "idle_since_s",
        "lacking",
        "left",
        "nodes",
        "number",
        "outstanding",
        "placed",
        "preemptions",
        "service_s",
        "spec",
        "started",
        "wait_s",
        "work_left_s",
    )

    def __init__(self, spec: SimProgram, number: int, now: float, replicas: int) -> None:
        self.spec = spec
        self.number = number
        self.arrived_s = now
        self.first_call_s = -1.0
        self.idle_since_s = now
        self.idle_s = 0.0
        self.outstanding = 0
        self.left = len(spec.calls)
        self.lacking = [len(call.parents) for call in spec.calls]
        # Service along the longest chain up to the end of each call.
        self.chains = [0.0] * len(spec.calls)
        self.critical_path_s = 0.0
        self.service_s = 0.0
        self.wait_s = 0.0
        self.preemptions = 0
        self.nodes: list[list[CacheNode | None]] = [[] for _ in range(replicas)]
        self.work_left_s = 0.0
        self.started: dict[int, float] = {}
        self.placed: dict[int, tuple[Replica, ReplicaCall]] = {}


class Simulation:
    """One run.

    Args:
        model: every replica's.
        policy: who runs next.
        replicas: how many.
        balancer: places calls; Algorithm 2 of the paper if None.
        resume: how calls that lost their seat get their KV back.
        on_call: is told of every call that has ended.
        longest_stretch: most steps taken at once; 1 for a comparison.

    Attributes:
        now: virtual time, seconds.
        replicas: the modelled engines.
        table: the process table.
        result: what the run has given so far.

    Raises:
        SettingsError: a value is impossible.
    """

    def __init__(
        self,
        model: EngineModel,
        policy: SimPolicy,
        *,
        replicas: int = 1,
        balancer: Balancer | None = None,
        resume: Resume = "recompute",
        on_call: Callable[[CallRecord], None] | None = None,
        longest_stretch: int = 1 << 40,
    ) -> None:
        if replicas < 1:
            raise SettingsError(f"replicas must be a whole number >= 1, got {replicas!r}")
        self.model = model
        self.policy = policy
        order = self._order()
        self.replicas = [
            Replica(
                model,
                policy.config,
                prefix_cache=policy.prefix_cache,
                resume=resume,
                order=order,
                longest_stretch=longest_stretch,
            )
            for _ in range(replicas)
        ]
        self.table = ProcessTable(policy_named(policy.config.policy))
        self.result = SimResult(busy_s=[0.0] * replicas, calls_served=[0] * replicas)
        self._balancer = balancer or ProgramLocality()
        self._on_call = on_call
        self.now = 0.0
        self._stopped = False
        self._events: list[tuple[float, int, int, _Run | None, int]] = []
        self._ties = count()
        self._arrivals: Iterator[tuple[float, SimProgram]] = iter(())
        self._backlog: Iterator[SimProgram] = iter(())
        self._numbers = count()
        self._coming: SimProgram | None = None
        self._clairvoyant = policy.order == "srpt"

    def run(self, arrivals: Iterable[tuple[float, SimProgram]]) -> SimResult:
        """Serve programs that arrive at given times, seconds, in ascending order."""
        self._arrivals = iter(arrivals)
        self._next_arrival(0.0)
        return self._serve()

    def run_offline(self, programs: Iterable[SimProgram]) -> SimResult:
        """Serve programs that are all there at the start."""
        return self.run((0.0, program) for program in programs)

    def run_closed(self, programs: Iterable[SimProgram], live: int) -> SimResult:
        """Serve programs so that ``live`` of them are under way at any time: one ends, one comes.

        Raises:
            SettingsError: ``live`` is not positive.
        """
        if live < 1:
            raise SettingsError(f"a closed loop needs at least 1 program under way, got {live!r}")
        self._backlog = iter(programs)
        first = [program for _, program in zip(range(live), self._backlog, strict=False)]
        return self.run_offline(first)

    def stop(self) -> None:
        """End the run with the event at hand: programs under way are left as they are."""
        self._events.clear()
        self._stopped = True

    # The loop.

    def _serve(self) -> SimResult:
        events, replicas = self._events, self.replicas
        while events and not self._stopped:
            now, kind, _, run, index = heappop(events)
            self.now = now
            if kind == _STEP:
                replica = replicas[index]
                if replica.ends_s == now:
                    for ended in replica.complete(now):
                        self._call_ended(ended.call, ended.receipt, now, index)
                    self._plan(replica, index, now)
            elif run is not None:
                self._submit(run, index, now)
            else:
                self._arrive(now)
        self._sum_up()
        return self.result

    def _plan(self, replica: Replica, index: int, now: float) -> None:
        end = replica.plan(now)
        if replica.busy:
            heappush(self._events, (end, _STEP, next(self._ties), None, index))

    def _next_arrival(self, now: float) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            return
        at_s, program = arrival
        if at_s < now:
            raise InputError(
                f"program {program.name!r} arrives at {at_s} s, before the one ahead of it ({now} "
                "s); sort the programs by arrival"
            )
        self._coming = program
        heappush(self._events, (at_s, _ARRIVAL, next(self._ties), None, 0))

    def _arrive(self, now: float) -> None:
        assert self._coming is not None
        self._start(self._coming, now)
        self._next_arrival(now)

    # A program's life.

    def _start(self, program: SimProgram, now: float) -> None:
        self._admissible(program)
        run = _Run(program, next(self._numbers), now, len(self.replicas))
        if self._clairvoyant:
            for call in program.calls:
                run.work_left_s += self._work_s(call)
        self.table.open(program.name, now)
        for index in program.roots:
            self._ready(run, index, now)

    def _admissible(self, program: SimProgram) -> None:
        if program.name in self.table.programs:
            raise InputError(f"program {program.name!r} is running already; give each its own name")
        if program.longest_context > self.model.blocks * self.model.block_tokens:
            raise InputError(
                f"program {program.name!r} has a context of {program.longest_context} tokens, but "
                f"a replica of {self.model.name} holds {self.model.kv_tokens}; leave the program "
                "out or take a larger preset"
            )

    def _ready(self, run: _Run, index: int, now: float) -> None:
        tool_s = run.spec.calls[index].tool_s
        if tool_s:
            heappush(self._events, (now + tool_s, _READY, next(self._ties), run, index))
        else:
            self._submit(run, index, now)

    def _submit(self, run: _Run, index: int, now: float) -> None:
        """A call is ready: it goes to a replica."""
        spec = run.spec
        call = spec.calls[index]
        if run.first_call_s < 0:
            run.first_call_s = run.idle_since_s = now
        if not run.outstanding:
            run.idle_s += now - run.idle_since_s
        run.outstanding += 1
        key = f"{spec.name}/{index}"
        chain_s = max((run.chains[parent] for parent in call.parents), default=0.0)
        ticket = self.table.call_started(
            spec.name, key, now, chain_s=chain_s, prompt_tokens=call.prompt_tokens
        )
        replicas = self.replicas
        where = 0
        if len(replicas) > 1:
            loads = [replica.load for replica in replicas]
            where = self._balancer.place(spec.name, call.prompt_tokens, loads)
        self.table.call_placed(key, where)
        replica = replicas[where]
        placed = self._replica_call(run, index, ticket, replica, where)
        replica.submit(placed)
        if self._clairvoyant:
            run.placed[index] = (replica, placed)
        if self._on_call is not None:
            run.started[index] = now
        if replica.wake(now):
            heappush(self._events, (replica.ends_s, _STEP, next(self._ties), None, where))

    def _replica_call(
        self, run: _Run, index: int, ticket: Ticket, replica: Replica, where: int
    ) -> ReplicaCall:
        spec, size = run.spec, self.model.block_tokens
        tree = spec.tree(size)
        nodes = run.nodes[where]
        if not nodes:
            nodes.extend([None] * len(tree.starts))
        return ReplicaCall(
            run,
            index,
            ticket,
            output_tokens=spec.calls[index].output_tokens,
            known_tokens=tree.shared_blocks[index] * size,
            tail=replica.cache.node(nodes, tree, tree.tails[index], spec.system),
        )

    def _call_ended(self, ended: ReplicaCall, receipt: Receipt, now: float, where: int) -> None:
        run = ended.program
        assert isinstance(run, _Run)
        index = ended.index
        self.table.call_ended(receipt.call, now, receipt)
        self.result.calls_served[where] += 1
        run.service_s += receipt.service_s
        run.wait_s += receipt.wait_s
        run.preemptions += receipt.preemptions
        call = run.spec.calls[index]
        chain_s = max((run.chains[parent] for parent in call.parents), default=0.0)
        run.chains[index] = chain_s = chain_s + receipt.service_s
        run.critical_path_s = max(run.critical_path_s, chain_s)
        run.outstanding -= 1
        run.left -= 1
        if not run.outstanding:
            run.idle_since_s = now
        if self._on_call is not None:
            started_s = run.started.pop(index)
            self._on_call(CallRecord(run.spec.name, index, started_s, now, receipt))
        if self._clairvoyant:
            self._reorder(run, index)
        for child in run.spec.children[index]:
            run.lacking[child] -= 1
            if not run.lacking[child]:
                self._ready(run, child, now)
        if not run.left:
            self._end(run, now)

    def _end(self, run: _Run, now: float) -> None:
        """The program's last call has ended."""
        spec = run.spec
        self.table.close(spec.name)
        self._balancer.forget(spec.name)
        self.result.calls += len(spec.calls)
        self.result.preemptions += run.preemptions
        self.result.programs.append(
            ProgramRecord(
                name=spec.name,
                arrived_s=run.arrived_s,
                first_call_s=run.first_call_s,
                ended_s=now,
                response_s=now - run.first_call_s - run.idle_s,
                service_s=run.service_s,
                wait_s=run.wait_s,
                critical_path_s=run.critical_path_s,
                calls=len(spec.calls),
                output_tokens=spec.output_tokens,
                preemptions=run.preemptions,
            )
        )
        self.result.ended_s = now
        following = next(self._backlog, None)
        if following is not None:
            self._start(following, now)

    # Orders of the simulator's own.

    def _order(self) -> Order | None:
        if self.policy.order == "core":
            return None
        return _by_arrival if self.policy.order == "program-fcfs" else _by_work_left

    def _work_s(self, call: SimCall) -> float:
        new_tokens = call.prompt_tokens - call.shared_prefix_tokens
        return self.model.work_s(call.prompt_tokens, new_tokens, call.output_tokens)

    def _reorder(self, run: _Run, index: int) -> None:
        """A call of the program has ended: there is less left, its other calls move forward."""
        del run.placed[index]
        run.work_left_s -= self._work_s(run.spec.calls[index])
        for replica, call in run.placed.values():
            replica.reorder(call)

    def _sum_up(self) -> None:
        result = self.result
        for index, replica in enumerate(self.replicas):
            result.busy_s[index] = replica.busy_s
            result.steps += replica.steps
            result.stretches += replica.stretches
            result.promotions += replica.core.promotions
            result.demotions += replica.core.demotions
            result.prompt_tokens += replica.prompt_tokens
            result.cached_tokens += replica.cached_tokens
            result.prefilled_tokens += replica.prefilled_tokens
            result.recomputed_tokens += replica.recomputed_tokens
            result.swapped_tokens += replica.swapped_tokens


def _by_arrival(call: ReplicaCall) -> float:
    run = call.program
    assert isinstance(run, _Run)
    return run.number


def _by_work_left(call: ReplicaCall) -> float:
    run = call.program
    assert isinstance(run, _Run)
    return run.work_left_s * run.spec.output_tokens
