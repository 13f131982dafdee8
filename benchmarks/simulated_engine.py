"""A simulated engine as a benchmark's: one simulation for each run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autellix.errors import UsageError
from autellix.scheduler.balancers import DEFAULT_BALANCER, balancer_named
from autellix.scheduler.engine_model import EngineModel, preset_named
from autellix.scheduler.service_history import ServiceHistory
from autellix.scheduler.sim_host import HostMemory
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimProgram
from autellix.scheduler.simulator import CallRecord, SimResult, Simulation
from benchmarks.capacity import Capacity, capacity, room_for, without_tools

_TEACHERS = 8  # earlier programs under way at a time


@dataclass(slots=True, kw_only=True)
class SimulatedEngine:
    """What every run has in common.

    Attributes:
        model: every replica's.
        replicas: how many.
        balancer: places calls, by name.
        memory: each replica's host tier for KV; None for none.
        settings: the scheduler's, beside the policy.
    """

    model: EngineModel
    replicas: int = 1
    balancer: str = DEFAULT_BALANCER
    memory: HostMemory | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    _loop: Simulation | None = None

    def simulation(
        self,
        policy: str,
        on_call: Callable[[CallRecord], None] | None = None,
        history: ServiceHistory | None = None,
    ) -> Simulation:
        """A fresh one.

        Args:
            on_call: is told of every call that has ended.
            history: what is known of earlier programs, for policies that remember.

        Raises:
            SettingsError: a name or a value is impossible.
        """
        return Simulation(
            self.model,
            sim_policy(policy, **self.settings),
            replicas=self.replicas,
            balancer=balancer_named(self.balancer),
            memory=self.memory,
            on_call=on_call,
            history=history,
        )

    def learned(self, programs: Sequence[SimProgram]) -> dict[str, Any]:
        """What serving these programs teaches of their kinds, as plain types."""
        simulation = self.simulation("adaptive")
        simulation.run_closed(iter(programs), live=_TEACHERS)
        return simulation.table.history.to_wire()

    def serve(self, arrivals: Iterable[tuple[float, SimProgram]], policy: str) -> SimResult:
        """Serve programs that arrive at given times, seconds."""
        return self.simulation(policy).run(arrivals)

    def run_closed(
        self, programs: Iterator[SimProgram], live: int, on_tokens: Callable[[int], None]
    ) -> None:
        """Serve programs so that ``live`` of them are under way, until there are no more to come.

        Args:
            on_tokens: is told the number of tokens of every call that has ended.
        """

        def ended(record: CallRecord) -> None:
            on_tokens(record.receipt.output_tokens)

        self._loop = simulation = Simulation(
            self.model, sim_policy("vllm-opt"), replicas=self.replicas, on_call=ended
        )

        def feed() -> Iterator[SimProgram]:
            yield from programs
            simulation.stop()

        simulation.run_closed(feed(), live)

    def now(self) -> float:
        """Virtual time of the closed loop under way, seconds."""
        return self._loop.now if self._loop is not None else 0.0

    def capacity(self, programs: Sequence[SimProgram], seed: int = 0) -> Capacity:
        """What a load of 1 is."""
        seats, kv_tokens = self.model.seats, self.model.kv_tokens
        guess = room_for(programs, seats=seats, kv_tokens=kv_tokens) * self.replicas
        return capacity(self, without_tools(programs), guess=guess, seed=seed)


def engine_model(
    name: str, *, seats: int | None = None, kv_tokens: int | None = None
) -> EngineModel:
    """The modelled engine of ``sim:PRESET``, with other seats and KV capacity where given.

    Raises:
        UsageError: the name is none of a simulated engine.
        InputError: ``sim:FILE.json`` cannot be read.
        SettingsError: there is no such preset, or it cannot have so many seats.
    """
    kind, _, preset = name.partition(":")
    if kind != "sim" or not preset:
        raise UsageError(f"--engine must be sim:PRESET, sim:FILE.json or vllm, got {name!r}")
    model = preset_named(preset)
    changed: dict[str, int] = {}
    if seats is not None:
        changed["seats"] = seats
    if kv_tokens is not None:
        changed["kv_tokens"] = kv_tokens
    return replace(model, **changed) if changed else model
