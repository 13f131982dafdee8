"""Cells on the real engine: programs scaled so that a policy is through in the time allowed.

The preset of the embedded model says beforehand how long policies will take: the factor is the
largest at which every policy, at every load, needs at most ``--seconds`` in the simulation, with
some room for what it gets wrong. The capacity is then measured on the real engine, by the
definition of :mod:`benchmarks.capacity` with the number of programs under way that the simulation
found best; where the engine is slower than its preset, the factor is cut accordingly.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autellix.errors import InputError, UsageError
from autellix.scheduler.balancers import DEFAULT_BALANCER
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimProgram
from benchmarks.capacity import Capacity, closed_loop_rate, without_tools
from benchmarks.metrics import cell
from benchmarks.options import REAL
from benchmarks.scaling import scaled_programs
from benchmarks.simulated_engine import SimulatedEngine
from benchmarks.workloads import Workload, poisson, workload

if TYPE_CHECKING:
    from benchmarks.experiment import Experiment, Note, Run
    from benchmarks.real_engine import RealEngine

_ROOM = 0.8  # of the time allowed, for what the simulation gets wrong
_SLOWER = 0.9  # real capacity / simulated, below which the factor is cut
_TRIES = 8


def check_options(
    options: argparse.Namespace, policies: Sequence[str], settings: Mapping[str, Any]
) -> None:
    """Refuse what the real engine cannot do, before it starts.

    Raises:
        UsageError, SettingsError: an option is impossible, or for simulated engines alone.
    """
    from benchmarks.real_engine import require_real

    for name in policies:
        require_real(sim_policy(name, **settings))
    alone = {"replicas": 1, "balancer": DEFAULT_BALANCER, "host_gib": 0.0, "jobs": 1}
    for name, value in alone.items():
        if getattr(options, name) != value:
            option = name.replace("_", "-")
            raise UsageError(
                f"--{option} is for simulated engines; leave it out with --engine {REAL}"
            )
    if options.closed_loop is not None:
        raise UsageError(f"--closed-loop is for simulated engines; with --engine {REAL} give loads")
    if not options.seconds > 0:
        raise UsageError(f"--seconds must be above 0, got {options.seconds:g}")
    if options.factor is not None and not 0 < options.factor <= 1:
        raise UsageError(f"--factor must be above 0 and at most 1, got {options.factor:g}")
    if options.seats is not None and options.seats < 1:
        raise UsageError(f"--seats must be a whole number >= 1, got {options.seats}")
    if options.kv_tokens is not None and options.kv_tokens < 256:
        raise UsageError(f"--kv-tokens must be at least 256, got {options.kv_tokens}")
    for name in options.workload or ():
        workload(name, options.programs, 1, strict=options.strict)
    if options.programs < 1:
        raise UsageError(f"--programs must be a whole number >= 1, got {options.programs}")


def real_runs(experiment: Experiment, note: Note) -> list[Run]:
    """All cells of the experiment on one engine, the policies in turns."""
    from benchmarks.experiment import workload_lines
    from benchmarks.real_engine import RealEngine

    options = experiment.options
    note("the engine starts, some 20 s")
    engine = RealEngine.start(seats=options.seats, kv_tokens=options.kv_tokens)
    runs: list[Run] = []
    try:
        for name in experiment.workloads:
            for seed in experiment.seeds:
                served = workload(name, options.programs, seed, strict=options.strict)
                for line in workload_lines(served):
                    note(line)
                runs += _RealCells(experiment, engine, name, seed, served, note).runs()
    finally:
        engine.stop()
    return runs


class _RealCells:
    """The cells of one workload and seed."""

    def __init__(
        self,
        experiment: Experiment,
        engine: RealEngine,
        name: str,
        seed: int,
        served: Workload,
        note: Note,
    ) -> None:
        self._experiment = experiment
        self._engine = engine
        self._name = name
        self._seed = seed
        self._served = served
        self._note = note

    def runs(self) -> list[Run]:
        """By load and policy, in this order."""
        experiment = self._experiment
        factor = experiment.factors.get(self._name) or experiment.options.factor
        simulated = SimulatedEngine(model=self._engine.model, settings=experiment.settings)
        if factor is None:
            factor = self._chosen_factor(simulated)
        programs = self._scaled(factor)
        if experiment.rates is not None:
            rates = [(None, rate) for rate in experiment.rates]
        elif experiment.options.offline:
            rates = [(None, None)]
        else:
            factor, programs, found = self._capacity(simulated, factor, programs)
            experiment.capacities[self._name, self._seed] = found
            rates = [(load, load * found.programs_per_s) for load in experiment.loads]
        experiment.factors[self._name] = factor
        self._note(f"{self._name}: token counts and tool times x {factor:.4g}")
        return [
            self._run(programs, policy, load, rate)
            for load, rate in rates
            for policy in experiment.policies
        ]

    def _scaled(self, factor: float) -> list[SimProgram]:
        programs = scaled_programs(self._served.programs, factor)
        longest = max(program.longest_context for program in programs)
        if longest > self._engine.context_tokens:
            raise InputError(
                f"{self._name} x {factor:.4g} has a context of {longest:,} tokens, but the "
                f"embedded model takes {self._engine.context_tokens:,}; give a smaller --factor"
            )
        return programs

    def _chosen_factor(self, simulated: SimulatedEngine) -> float:
        """The largest with which the contexts fit and no policy takes longer than it may."""
        limit_s = _ROOM * self._experiment.options.seconds
        longest = max(program.longest_context for program in self._served.programs)
        # A call with the longest context must fit, and a rounded-up token for each of its parts.
        factor = min(1.0, (self._engine.context_tokens - 64) / longest)
        for _ in range(_TRIES):
            taken_s = self._longest_s(simulated, scaled_programs(self._served.programs, factor))
            if taken_s <= limit_s:
                return factor
            factor *= 0.98 * limit_s / taken_s
        return factor

    def _longest_s(self, simulated: SimulatedEngine, programs: Sequence[SimProgram]) -> float:
        experiment = self._experiment
        if experiment.options.offline:
            rates: list[float] = [float("inf")]
        elif experiment.rates is not None:
            rates = experiment.rates
        else:
            most = simulated.capacity(programs, self._seed).programs_per_s
            rates = [load * most for load in experiment.loads]
        return max(
            simulated.serve(poisson(programs, rate, self._seed), policy).ended_s
            for rate in rates
            for policy in experiment.policies
        )

    def _capacity(
        self, simulated: SimulatedEngine, factor: float, programs: list[SimProgram]
    ) -> tuple[float, list[SimProgram], Capacity]:
        """The real capacity; with a smaller factor where the engine is slower than its preset."""
        expected = simulated.capacity(programs, self._seed)
        given = self._experiment.options.factor is not None
        for last in (given, True):
            rate = closed_loop_rate(
                self._engine, without_tools(programs), expected.live, seed=self._seed
            )
            self._note(
                f"{self._name}, seed {self._seed}: load 1 is {rate:.4g} programs/s, the rate of "
                f"vllm-opt in a closed loop ({expected.live} programs under way); the preset says "
                f"{expected.programs_per_s:.4g}"
            )
            if last or rate >= _SLOWER * expected.programs_per_s:
                break
            factor *= rate / expected.programs_per_s
            programs = self._scaled(factor)
        found = Capacity(programs_per_s=rate, live=expected.live, tried=[(expected.live, rate)])
        return factor, programs, found

    def _run(
        self,
        programs: Sequence[SimProgram],
        policy: str,
        load: float | None,
        rate: float | None,
    ) -> Run:
        from benchmarks.experiment import Run, cell_line

        arrivals = poisson(programs, rate if rate is not None else float("inf"), self._seed)
        done = self._engine.serve(arrivals, sim_policy(policy, **self._experiment.settings))
        figures = cell(
            done.result,
            workload=self._served.name,
            policy=policy,
            engine=REAL,
            load=load,
            rate=rate,
            seed=self._seed,
        )
        self._note(cell_line(figures))
        return Run(cell=figures, result=done.result, spans=done.spans)
