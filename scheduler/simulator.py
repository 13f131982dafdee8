"""Discrete-event simulator: programs on modelled replicas, scheduled by the same core as real ones.

Four kinds of event, on one heap: a program arrives, a call's tools are through, a replica's step
or stretch is over, a replica's gate has something to do by itself. At equal times they are handled
in this order, so that a replica sees all calls that came up to the moment at which it forms its
next step.

1. A program arrives: its entry in the process table is opened; calls without parents are ready.
2. A call is ready: the process table gives the ticket, the balancer the replica; the replica's
   stretch is cut.
3. A step is over: calls that ended get receipts, the table takes them; their children are ready
   after their tool time, at once if there is none. Then the replica plans on. Where the model has a
   turnaround, the program hears of a call's end so much later, and the replica has planned by then.
4. A program's last call has ended: the entry is closed. In a closed loop the next program comes.

Before a replica with admission control stands a :class:`Gate`, the same as before a real one. Host
memory for KV, where there is some, is room for the gate too.

Pure Python on virtual time; the same input gives the same result.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from autellix.errors import InputError, SettingsError

from .admission import Gate
from .balancers import DEFAULT_BALANCER, Balancer, balancer_named
from .engine_model import EngineModel
from .holds import receipt_with_hold
from .kv_home import HOSTED_IDLE_S
from .life_table import share_of_prompts
from .policies import policy_named
from .process_table import ProcessTable
from .service_history import ServiceHistory
from .sim_call import Ended, ReplicaCall
from .sim_host import HostMemory
from .sim_live import LiveProgram
from .sim_orders import SimPolicy
from .sim_programs import SimProgram
from .sim_records import CallRecord, ProgramRecord, SimResult
from .sim_replica import Replica
from .sim_siblings import SiblingsByChain
from .sim_work_left import LeastWorkLeft
from .tickets import Ticket
from .tool_times import ToolTimes

__all__ = ["CallRecord", "ProgramRecord", "SimResult", "Simulation"]

_TOLD, _ARRIVAL, _READY, _STEP, _GATE, _FETCH = range(6)


class Simulation:
    """One run.

    Args:
        model: every replica's.
        policy: who runs next.
        replicas: how many.
        balancer: places calls; the default one if None.
        memory: each replica's host tier for KV; None for none.
        on_call: is told of every call that has ended.
        longest_stretch: most steps taken at once; 1 for a comparison.
        history: what is known of earlier programs, for policies that learn.

    Attributes:
        now: virtual time, seconds.
        replicas: the modelled engines.
        gates: the gate before each of them; None without admission control.
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
        memory: HostMemory | None = None,
        on_call: Callable[[CallRecord], None] | None = None,
        longest_stretch: int = 1 << 40,
        history: ServiceHistory | None = None,
    ) -> None:
        if replicas < 1:
            raise SettingsError(f"replicas must be a whole number >= 1, got {replicas!r}")
        self.model = model
        self.policy = policy
        self._work_left = LeastWorkLeft(model) if policy.order == "srpt" else None
        self.replicas = [
            Replica(
                model,
                replace(policy.config, replica=index),
                prefix_cache=policy.prefix_cache,
                memory=memory,
                order=SiblingsByChain() if policy.order == "siblings" else self._work_left,
                longest_stretch=longest_stretch,
            )
            for index in range(replicas)
        ]
        self._memory = memory
        self._tool_times = ToolTimes()
        self.gates = self._gates(policy, replicas, memory)
        if history is None:
            history = ServiceHistory(share_of_prompts(model.seats))
        self.table = ProcessTable(policy_named(policy.config.policy), history)
        self.result = SimResult(busy_s=[0.0] * replicas, calls_served=[0] * replicas)
        self._balancer = balancer or balancer_named(DEFAULT_BALANCER)
        self._under_way = [0] * replicas
        for index in range(replicas):
            self._balancer.replica_serves(index, seats=model.seats, kv_tokens=model.kv_tokens)
        self._on_call = on_call
        self.now = 0.0
        self._stopped = False
        self._events: list[tuple[float, int, int, LiveProgram | None, int]] = []
        self._ties = count()
        self._arrivals: Iterator[tuple[float, SimProgram]] = iter(())
        self._backlog: Iterator[SimProgram] = iter(())
        self._coming: SimProgram | None = None
        self._untold: deque[Ended] = deque()
        self._started_s: dict[tuple[str, int], float] = {}
        self._at_gate: dict[str, ReplicaCall] = {}
        self._gate_due_s = [math.inf] * replicas

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
            now, kind, _, program, index = heappop(events)
            self.now = now
            if kind == _STEP:
                replica = replicas[index]
                if replica.ends_s == now:
                    for ended in replica.complete(now):
                        self._tell(ended, now, index)
                    self._plan(replica, index, now)
            elif kind == _FETCH and program is not None:
                self._fetch(program, index, now)
            elif program is not None:
                self._submit(program, index, now)
            elif kind == _TOLD:
                self._call_ended(self._untold.popleft(), now, index)
            elif kind == _GATE:
                self._gate_due(index, now)
            else:
                self._arrive(now)
        self._sum_up()
        return self.result

    def _plan(self, replica: Replica, index: int, now: float) -> None:
        end = replica.plan(now)
        if end < math.inf:
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

    def _start(self, spec: SimProgram, now: float) -> None:
        self._admissible(spec)
        program = LiveProgram(spec, now, len(self.replicas))
        if self._work_left is not None:
            self._work_left.program_comes(program)
        self.table.open(spec.name, now, spec.kind)
        for index in spec.roots:
            self._ready(program, index, now)

    def _admissible(self, program: SimProgram) -> None:
        if program.name in self.table.programs:
            raise InputError(f"program {program.name!r} is running already; give each its own name")
        if program.longest_context > self.model.blocks * self.model.block_tokens:
            raise InputError(
                f"program {program.name!r} has a context of {program.longest_context} tokens, but "
                f"a replica of {self.model.name} holds {self.model.kv_tokens}; leave the program "
                "out or take a larger preset"
            )

    def _ready(self, program: LiveProgram, index: int, now: float) -> None:
        tool_s = program.spec.calls[index].tool_s
        if tool_s:
            self._away(program, index, now, tool_s)
            self._tool_times.add(program.spec.kind, tool_s)
            heappush(self._events, (now + tool_s, _READY, next(self._ties), program, index))
        else:
            self._submit(program, index, now)

    def _away(self, program: LiveProgram, index: int, now: float, tool_s: float) -> None:
        """A program goes into a tool: the host tiers hear of it, unless calls of it run."""
        if self._memory is None or program.outstanding:
            return
        absence_s = self._tool_times.deciles_s(program.spec.kind)
        context = program.spec.calls[index].shared_prefix_tokens
        for where, replica in enumerate(self.replicas):
            if program.nodes[where]:
                after_s = replica.kv.away(program, where, absence_s, context, now)
                if after_s < tool_s:  # else it is back by then
                    due_s = now + after_s
                    heappush(self._events, (due_s, _FETCH, next(self._ties), program, index))

    def _fetch(self, program: LiveProgram, index: int, now: float) -> None:
        """A program that is away has its KV loaded where it was last."""
        parents = program.spec.calls[index].parents
        if program.outstanding or not parents:
            return
        tree = program.spec.tree(self.model.block_tokens)
        tail = tree.tails[parents[-1]]
        for where, replica in enumerate(self.replicas):
            node = program.nodes[where][tail] if program.nodes[where] and tail >= 0 else None
            if node is not None and replica.kv.fetches is not None:
                replica.kv.fetches.ask(program.spec.name, node)
                if replica.wake(now):
                    heappush(self._events, (replica.ends_s, _STEP, next(self._ties), None, where))

    def _submit(self, program: LiveProgram, index: int, now: float) -> None:
        """A call is ready: it goes to a replica."""
        if self._memory is not None:
            for replica in self.replicas:
                replica.kv.back(program)
        name = program.spec.name
        prompt_tokens = program.spec.calls[index].prompt_tokens
        program.call_comes(now)
        key = f"{name}/{index}"
        ticket = self.table.call_started(
            name,
            key,
            now,
            chain_s=program.chain_s(index),
            prompt_tokens=prompt_tokens,
            node=program.spec.calls[index].node,
        )
        if program.spec.tenant:
            ticket = ticket._replace(tenant=program.spec.tenant, share=program.spec.share)
        where = 0
        if len(self.replicas) > 1:
            where = self._balancer.place(ticket, self._under_way)
        self._under_way[where] += 1
        self.table.call_placed(key, where)
        call = self._replica_call(program, index, ticket, where)
        if self._on_call is not None:
            self._started_s[name, index] = now
        gate = self.gates[where]
        if gate is None:
            self._hand_over(call, where, now)
            return
        self._at_gate[key] = call
        gate.call_comes(ticket, now, known_tokens=call.known_tokens)
        self._let_through(gate, where, now)

    def _hand_over(self, call: ReplicaCall, where: int, now: float) -> None:
        """A call enters its replica."""
        replica = self.replicas[where]
        replica.submit(call)
        if self._work_left is not None:
            self._work_left.call_placed(call, replica)
        if replica.wake(now):
            heappush(self._events, (replica.ends_s, _STEP, next(self._ties), None, where))

    def _let_through(self, gate: Gate, where: int, now: float) -> None:
        """The calls that the gate has let through enter the replica."""
        for passed in gate.passed():
            call = self._at_gate.pop(passed.call)
            call.hold(passed)
            self._hand_over(call, where, now)
        if gate.next_s < self._gate_due_s[where]:
            self._gate_due_s[where] = due_s = max(now, gate.next_s)
            heappush(self._events, (due_s, _GATE, next(self._ties), None, where))

    def _gate_due(self, where: int, now: float) -> None:
        gate = self.gates[where]
        if gate is not None and self._gate_due_s[where] <= now:
            self._gate_due_s[where] = math.inf
            gate.tick(now)
            self._let_through(gate, where, now)

    def _replica_call(
        self, program: LiveProgram, index: int, ticket: Ticket, where: int
    ) -> ReplicaCall:
        spec, size = program.spec, self.model.block_tokens
        tree = spec.tree(size)
        nodes = program.nodes[where]
        if not nodes:
            nodes.extend([None] * len(tree.starts))
        return ReplicaCall(
            program,
            index,
            ticket,
            output_tokens=spec.calls[index].output_tokens,
            known_tokens=tree.shared_blocks[index] * size,
            tail=self.replicas[where].kv.cache.node(nodes, tree, tree.tails[index], spec.system),
        )

    def _tell(self, ended: Ended, now: float, where: int) -> None:
        """A call has given its last token; its program hears of it a little later."""
        if not self.model.turnaround_s:
            self._call_ended(ended, now, where)
            return
        self._untold.append(ended)
        at_s = now + self.model.turnaround_s
        heappush(self._events, (at_s, _TOLD, next(self._ties), None, where))

    def _call_ended(self, ended: Ended, now: float, where: int) -> None:
        call, receipt = ended
        program, index = call.program, call.index
        gate = self.gates[where]
        if gate is not None:
            gate.call_ended(receipt.call, now, receipt)
            receipt = receipt_with_hold(receipt, call.passed)
        self.table.call_ended(receipt.call, now, receipt)
        self.result.calls_served[where] += 1
        self._under_way[where] -= 1
        self._balancer.call_ended(receipt.call, receipt)
        ready = program.call_ended(index, receipt, now)
        if self._on_call is not None:
            name = program.spec.name
            started_s = self._started_s.pop((name, index))
            self._on_call(CallRecord(name, index, started_s, now, receipt))
        if self._work_left is not None:
            self._work_left.call_ended(call)
        for child in ready:
            self._ready(program, child, now)
        if not program.left:
            self._end(program, now)
        if gate is not None:
            self._let_through(gate, where, now)

    def _end(self, program: LiveProgram, now: float) -> None:
        """The program's last call has ended."""
        name = program.spec.name
        self.table.close(name, chains=program.chains())
        self._balancer.program_ended(name)
        for where, replica in enumerate(self.replicas):
            replica.kv.program_ended(program, where)
        for where, gate in enumerate(self.gates):
            if gate is not None:
                gate.program_ended(name, now)
                self._let_through(gate, where, now)
        if self._work_left is not None:
            self._work_left.program_ended(program)
        record = program.record(now)
        self.result.programs.append(record)
        self.result.calls += record.calls
        self.result.preemptions += record.preemptions
        self.result.ended_s = now
        following = next(self._backlog, None)
        if following is not None:
            self._start(following, now)

    def _gates(
        self, policy: SimPolicy, replicas: int, memory: HostMemory | None
    ) -> list[Gate | None]:
        config = policy.config
        if not config.admits:
            return [None] * replicas
        work_left = self._work_left

        def place(ticket: Ticket) -> float:
            assert work_left is not None
            return work_left.of_name(ticket.program)

        given = None if work_left is None else place
        room = self.model.kv_tokens
        if memory is not None and (hosted := memory.room_tokens(self.model)):
            room = max(room, hosted)
            config = replace(config, admission_idle_s=max(config.admission_idle_s, HOSTED_IDLE_S))
        return [Gate(config, room, place=given) for _ in range(replicas)]

    def _sum_up(self) -> None:
        result = self.result
        for index, replica in enumerate(self.replicas):
            result.busy_s[index] = replica.busy_s
            result.steps += replica.steps
            result.stretches += replica.stretches
            result.promotions += replica.core.promotions
            result.demotions += replica.core.demotions
            result.prompt_tokens += replica.kv.prompt_tokens
            result.cached_tokens += replica.kv.cached_tokens
            result.prefilled_tokens += replica.kv.prefilled_tokens
            result.known_tokens += replica.kv.known_tokens
            result.lost_tokens += replica.kv.lost_tokens
            result.recomputed_tokens += replica.kv.recomputed_tokens
            result.loads += replica.kv.loads
            result.loaded_tokens += replica.kv.loaded_tokens
            result.load_wait_s += replica.kv.load_wait_s
