"""The cells of ``benchmarks.replay`` and ``benchmarks.sweep``: which there are, and their runs.

A cell is one workload under one policy at one load with one seed. Cells of a simulated engine do
not depend on each other: ``--jobs`` spreads them over processes, and the results are the same in
the same order. On the real engine they run one after the other, the policies in turns for every
load and seed.

``gittins`` has seen as many programs of the workload before, generated from another seed, and
none of the cell's own. Of recorded programs there is one set, so of a trace it has seen none.
``default`` remembers too, where there is something to remember; in its cells there is nothing, as
in a first run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import sha256
from multiprocessing import get_context
from time import perf_counter
from typing import Any

from autellix.errors import UsageError
from autellix.scheduler.service_history import ServiceHistory
from autellix.scheduler.sim_host import HostMemory
from autellix.scheduler.sim_orders import SIM_POLICIES, sim_policy
from autellix.scheduler.simulator import CallRecord, SimResult
from benchmarks.capacity import Capacity
from benchmarks.cell_store import CellStore
from benchmarks.metrics import Cell, cell
from benchmarks.options import (
    MOST_LOAD,
    REAL,
    fewer_collections,
    names_in,
    numbers_in,
    setting_in,
    whole_numbers_in,
)
from benchmarks.result_file import result_document
from benchmarks.simulated_engine import SimulatedEngine, engine_model
from benchmarks.workloads import Workload, poisson, trace_files, workload

Note = Callable[[str], None]
# Added to a cell's seed: the seed of the programs that policies that remember have seen before.
EARLIER_SEED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CellKey:
    """Which cell.

    Attributes:
        load, rate: None where programs do not come at a rate; the load is None too where a rate
            was asked for.
    """

    workload: str
    seed: int
    load: float | None
    rate: float | None
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityKey:
    """Which capacity."""

    workload: str
    seed: int
    what: str = "capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One cell with what plots need beside it; those are None of a cell that was there before."""

    cell: Cell
    result: SimResult | None = None
    spans: list[tuple[float, float]] = field(default_factory=list)


class Experiment:
    """Cells of the options given.

    Attributes:
        loads: those of every workload and seed.
        capacities: found so far, by workload and seed.
        factors: by which programs were scaled for the real engine, by workload.
        store: keeps finished cells until the result is written.

    Raises:
        UsageError, SettingsError, InputError: an option or a trace is wrong.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.workloads: list[str] = list(dict.fromkeys(options.workload or ["mixed"]))
        self.policies = self._policies()
        self.seeds = list(dict.fromkeys(whole_numbers_in(options.seed, "--seed")))
        self.settings = dict(setting_in(text) for text in options.set)
        self.loads = numbers_in(options.load, "--load", MOST_LOAD)
        self.rates = None if options.rate is None else numbers_in(options.rate, "--rate")
        self.store = CellStore(None, {})
        self.capacities: dict[tuple[str, int], Capacity] = {}
        self.factors: dict[str, float] = {}
        if options.jobs < 1:
            raise UsageError(f"--jobs must be a whole number >= 1, got {options.jobs}")
        if options.closed_loop is not None and options.closed_loop < 1:
            raise UsageError(
                f"--closed-loop must be a whole number >= 1, got {options.closed_loop}"
            )
        if options.json is not None and not options.json.parent.is_dir():
            raise UsageError(f"there is no folder {options.json.parent} for --json; make it first")
        if options.engine == REAL:
            from benchmarks.real_cells import check_options

            check_options(options, self.policies, self.settings)
        else:
            engine = self.engine
            for policy in self.policies:
                engine.simulation(policy)

    def _policies(self) -> list[str]:
        given = self.options.policies
        if given is not None:
            return list(dict.fromkeys(names_in(given, "--policies")))
        real = self.options.engine == REAL
        return [n for n in SIM_POLICIES if not real or sim_policy(n).order == "core"]

    @property
    def engine(self) -> SimulatedEngine:
        """The simulated engine of the options."""
        options = self.options
        memory = HostMemory(gib=options.host_gib, tier=options.tier) if options.host_gib else None
        return SimulatedEngine(
            model=engine_model(options.engine, seats=options.seats, kv_tokens=options.kv_tokens),
            replicas=options.replicas,
            balancer=options.balancer,
            memory=memory,
            settings=self.settings,
        )

    def runs(self, note: Note) -> list[Run]:
        """All of them: by workload, seed, load and policy, in this order.

        Args:
            note: is told what happens, a line at a time.
        """
        if self.options.engine == REAL:
            from benchmarks.real_cells import real_runs

            return real_runs(self, note)
        self.store = CellStore(self.options.json, self.identity(), enabled=not self.options.plots)
        with self.store, _mapper(self.options.jobs) as each:
            return self._serve(self._keys(each, note), each, note)

    def document(self, runs: list[Run], **more: Any) -> dict[str, Any]:
        """The result: cells, capacities and, of the real engine, factors."""
        capacities = [
            {"workload": name, "seed": seed, **asdict(found)}
            for (name, seed), found in self.capacities.items()
        ]
        factors = {"token_factors": self.factors} if self.factors else {}
        cells = [run.cell for run in runs]
        return result_document(capacity=capacities, **factors, cells=cells, **more)

    def identity(self) -> dict[str, Any]:
        """What decides the cells' figures beside their keys, for a later run to go on with them."""
        options = vars(self.options)
        ignored = {"json", "plots", "jobs", "policies", "load", "rate", "seed", "workload"}
        identity = {name: str(value) for name, value in options.items() if name not in ignored}
        files = [f for name in self.workloads for f in trace_files(name) if f.is_file()]
        digests = {str(file): sha256(file.read_bytes()).hexdigest() for file in files}
        return {**identity, "model": self.engine.model.to_dict(), "traces": digests}

    def _keys(self, each: Any, note: Note) -> list[CellKey]:
        """Every cell, after the capacities have been found where loads ask for them."""
        groups = [(name, seed) for name in self.workloads for seed in self.seeds]
        for lines in each(_describe, [(self.options, *group) for group in groups]):
            for line in lines:
                note(line)
        options = self.options
        if options.offline or options.closed_loop is not None:
            rates = {group: [(None, None)] for group in groups}
        elif self.rates is not None:
            rates = {group: [(None, rate) for rate in self.rates] for group in groups}
        else:
            self._find_capacities(groups, each, note)
            rates = {
                group: [(load, load * self.capacities[group].programs_per_s) for load in self.loads]
                for group in groups
            }
        return [
            CellKey(workload=name, seed=seed, load=load, rate=rate, policy=policy)
            for name, seed in groups
            for load, rate in rates[name, seed]
            for policy in self.policies
        ]

    def _find_capacities(self, groups: list[tuple[str, int]], each: Any, note: Note) -> None:
        keys = {group: CapacityKey(workload=group[0], seed=group[1]) for group in groups}
        there = {group: self.store.find(key) for group, key in keys.items()}
        wanted = [group for group in groups if there[group] is None]
        found = each(_capacity, [(self.engine, self.options, *group) for group in wanted])
        for group in groups:
            known = there[group]
            here = Capacity(**known) if known is not None else next(found)
            self.capacities[group] = here
            self.store.keep(keys[group], asdict(here))
            note(capacity_line(group, here))

    def _serve(self, keys: list[CellKey], each: Any, note: Note) -> list[Run]:
        store = self.store
        there = {key: found for key in keys if (found := store.find(key)) is not None}
        if there:
            note(f"{len(there)} of {len(keys)} cells were there before")
        wanted = [key for key in keys if key not in there]
        runs: dict[CellKey, Run] = {key: Run(cell=found) for key, found in there.items()}
        began_s = perf_counter()
        tasks = [(self.engine, self.options, key) for key in wanted]
        for number, (key, run) in enumerate(zip(wanted, each(_run_cell, tasks), strict=True), 1):
            runs[key] = run
            store.keep(key, run.cell)
            left_s = (perf_counter() - began_s) / number * (len(wanted) - number)
            note(f"[{number}/{len(wanted)}, {left_s:.0f} s left] {cell_line(run.cell)}")
        return [runs[key] for key in keys]


@contextmanager
def _mapper(jobs: int) -> Iterator[Any]:
    """``map`` over argument tuples, in order; over processes where there are several jobs."""
    if jobs == 1:
        yield lambda work, tasks: (work(*task) for task in tasks)
        return
    # Not forked: a fresh process has none of the caller's threads and locks.
    with ProcessPoolExecutor(jobs, get_context("spawn"), fewer_collections) as pool:
        try:
            yield lambda work, tasks: pool.map(work, *zip(*tasks, strict=True))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@lru_cache(maxsize=3)
def _served(
    name: str, programs: int, seed: int, strict: bool, engine: str, kv_tokens: int | None
) -> Workload:
    model = engine_model(engine, kv_tokens=kv_tokens)
    return workload(name, programs, seed, model=model, strict=strict)


def served_workload(options: argparse.Namespace, name: str, seed: int) -> Workload:
    """The programs of a group of cells; kept for the group's other cells."""
    return _served(*_group(options, name, seed))


def _group(
    options: argparse.Namespace, name: str, seed: int
) -> tuple[str, int, int, bool, str, int | None]:
    programs, kv_tokens = options.programs, options.kv_tokens
    return name, programs, seed, options.strict, options.engine, kv_tokens


@lru_cache(maxsize=2)
def _learned(
    name: str,
    programs: int,
    seed: int,
    strict: bool,
    engine: str,
    kv_tokens: int | None,
    seats: int | None,
) -> dict[str, Any]:
    """What these programs teach on such an engine, whatever its settings."""
    earlier = _served(name, programs, seed, strict, engine, kv_tokens).programs
    model = engine_model(engine, seats=seats, kv_tokens=kv_tokens)
    return SimulatedEngine(model=model).learned(earlier)


def _describe(options: argparse.Namespace, name: str, seed: int) -> list[str]:
    return workload_lines(served_workload(options, name, seed))


def _capacity(
    engine: SimulatedEngine, options: argparse.Namespace, name: str, seed: int
) -> Capacity:
    return engine.capacity(served_workload(options, name, seed).programs, seed)


def _run_cell(engine: SimulatedEngine, options: argparse.Namespace, key: CellKey) -> Run:
    """One cell; without a rate, offline or as a closed loop."""
    served = served_workload(options, key.workload, key.seed)
    spans: list[tuple[float, float]] = []

    def ended(record: CallRecord) -> None:
        spans.append((record.started_s, record.ended_s))

    history = None
    if key.policy == "gittins" and not key.workload.startswith("trace:"):
        earlier = _group(options, key.workload, key.seed + EARLIER_SEED)
        history = ServiceHistory.from_wire(_learned(*earlier, options.seats))
    simulation = engine.simulation(key.policy, ended if options.plots else None, history)
    if key.rate is not None:
        result = simulation.run(poisson(served.programs, key.rate, key.seed))
    elif options.closed_loop is not None:
        result = simulation.run_closed(served.programs, options.closed_loop)
    else:
        result = simulation.run_offline(served.programs)
    found = cell(
        result,
        workload=served.name,
        policy=key.policy,
        engine=options.engine,
        load=key.load,
        rate=key.rate,
        seed=key.seed,
    )
    return Run(cell=found, result=result if options.plots else None, spans=spans)


def capacity_line(group: tuple[str, int], found: Capacity) -> str:
    """For people."""
    name, seed = group
    return (
        f"{name}, seed {seed}: load 1 is {found.programs_per_s:.4g} programs/s, the best rate of "
        f"vllm-opt in a closed loop ({found.live} programs under way)"
    )


def workload_lines(served: Workload) -> list[str]:
    """For people: what is served and what was left out."""
    lines = [f"left out: {line}" for line in served.skipped[:10]]
    if len(served.skipped) > 10:
        lines.append(f"left out: {len(served.skipped) - 10} further lines")
    if served.too_long:
        lines.append(f"left out: {served.too_long} programs whose contexts the engine cannot hold")
    lines.append(f"{served.name}: {len(served.programs)} programs, {served.calls} calls")
    return lines


def cell_line(figures: Cell) -> str:
    """For people."""
    at = f"load {figures['load']:<5g}" if figures["load"] is not None else ""
    if not at and figures["rate"] is not None:
        at = f"rate {figures['rate']:<8.4g}"
    state = {True: "stable", False: "queue grows", None: ""}[figures["stable"]]
    return (
        f"{figures['workload']} seed {figures['seed']} {at} {figures['policy']:13} "
        f"mean {1e3 * figures['mean_token_latency_s']:8.1f} "
        f"P95 {1e3 * figures['p95_token_latency_s']:8.1f} "
        f"P99 {1e3 * figures['p99_token_latency_s']:8.1f} ms/token, "
        f"makespan {figures['makespan_s']:8.1f} s, wait {figures['wait_share']:4.0%}, "
        f"hits {figures['cache_hit_rate']:4.0%} {state}"
    ).strip()
