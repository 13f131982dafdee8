"""Options and runs that ``benchmarks.replay`` and ``benchmarks.sweep`` have in common."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autellix.errors import AutellixError, UsageError
from autellix.scheduler.balancers import balancer_named
from autellix.scheduler.engine_model import EngineModel, preset_named
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.simulator import CallRecord, SimResult, Simulation
from benchmarks.capacity import Capacity, capacity
from benchmarks.metrics import Cell, cell
from benchmarks.workloads import NAMES, Workload, poisson, workload

MOST_LOAD = 3.0
POLICIES = "vllm,vllm-opt,mlfq,plas,atlas,program-fcfs,srpt,default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One cell with what plots need beside it."""

    cell: Cell
    result: SimResult
    spans: list[tuple[float, float]] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser, *, loads: str) -> None:
    """The options of both commands."""
    add = parser.add_argument
    names = ", ".join(NAMES)
    add("--workload", default="mixed", help=f"{names}, or trace:FILE[.gz][,FILE...]")
    add("--engine", default="sim:a100-llama3-8b", help="sim:PRESET")
    add("--policies", default=POLICIES, help="names, split by commas")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--load", default=loads, help="rate / capacity, split by commas, at most 3")
    when.add_argument("--rate", help="programs a second, split by commas")
    when.add_argument("--offline", action="store_true", help="all programs are there at the start")
    when.add_argument("--closed-loop", type=int, metavar="N", help="N programs under way")
    add("--programs", type=int, default=300, help="programs a cell")
    add("--seed", default="1", help="seeds, split by commas")
    add("--seats", type=int, help="most calls in a step, instead of the preset's")
    add("--replicas", type=int, default=1)
    add("--balancer", default="program", help="program, least-used or round-robin")
    add("--resume", default="recompute", help="recompute or swap, after a preemption")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a scheduler setting")
    add("--strict", action="store_true", help="stop at the first bad line of a trace")
    add("--json", type=Path, metavar="FILE", help="write the cells there")
    add("--plots", type=Path, metavar="DIR", help="draw figures there (needs matplotlib)")


class Experiment:
    """Cells of the options given.

    Raises:
        UsageError, SettingsError, InputError: an option or a trace is wrong.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.model = engine_model(options.engine, options.seats)
        self.policies = _names(options.policies, "--policies")
        self.seeds = [_whole(seed, "--seed") for seed in _names(options.seed, "--seed")]
        self.settings = dict(_setting(text) for text in options.set)
        self.loads = _numbers(options.load, "--load", MOST_LOAD)
        self.rates = None if options.rate is None else _numbers(options.rate, "--rate")
        for name in self.policies:
            sim_policy(name, **self.settings)
        balancer_named(options.balancer)
        self.capacities: dict[int, Capacity] = {}

    def runs(self, note: Callable[[str], None]) -> list[Run]:
        """All of them, policy by policy for each seed and load."""
        runs: list[Run] = []
        for seed in self.seeds:
            served = workload(
                self.options.workload,
                self.options.programs,
                seed,
                model=self.model,
                strict=self.options.strict,
            )
            _tell(served, note)
            for load, rate in self._rates(served, seed, note):
                for policy in self.policies:
                    runs.append(self.run(served, policy, seed, load, rate))
                    note(_line(runs[-1].cell))
        return runs

    def run(
        self, served: Workload, policy: str, seed: int, load: float | None, rate: float | None
    ) -> Run:
        """One cell; without a rate, offline or as a closed loop."""
        spans: list[tuple[float, float]] = []

        def note(record: CallRecord) -> None:
            spans.append((record.started_s, record.ended_s))

        options = self.options
        simulation = Simulation(
            self.model,
            sim_policy(policy, **self.settings),
            replicas=options.replicas,
            balancer=balancer_named(options.balancer),
            resume=options.resume,
            on_call=note if options.plots else None,
        )
        if rate is not None:
            result = simulation.run(poisson(served.programs, rate, seed))
        elif options.closed_loop is not None:
            result = simulation.run_closed(served.programs, options.closed_loop)
        else:
            result = simulation.run_offline(served.programs)
        figures = cell(
            result,
            workload=served.name,
            policy=policy,
            engine=options.engine,
            load=load,
            rate=rate,
            seed=seed,
        )
        return Run(cell=figures, result=result, spans=spans)

    def _rates(
        self, served: Workload, seed: int, note: Callable[[str], None]
    ) -> list[tuple[float | None, float | None]]:
        """Load and rate of each cell."""
        options = self.options
        if options.offline or options.closed_loop is not None:
            return [(None, None)]
        if self.rates is not None:
            return [(None, rate) for rate in self.rates]
        found = capacity(served.programs, self.model, replicas=options.replicas, seed=seed)
        self.capacities[seed] = found
        note(
            f"load 1 is {found.programs_per_s:.4g} programs/s: the best rate of vllm-opt in a "
            f"closed loop, with {found.live} programs under way"
        )
        return [(load, load * found.programs_per_s) for load in self.loads]


def engine_model(name: str, seats: int | None = None) -> EngineModel:
    """The modelled engine.

    Raises:
        UsageError: the name is none of a simulated engine.
        SettingsError: there is no such preset, or it cannot have so many seats.
    """
    kind, _, preset = name.partition(":")
    if kind != "sim" or not preset:
        raise UsageError(f"--engine must be sim:PRESET here, got {name!r}")
    model = preset_named(preset)
    return model if seats is None else replace(model, seats=seats)


def run_command(main: Callable[[Sequence[str]], None]) -> None:
    """Run a command; what is wrong with its options is said in a paragraph, with exit code 2."""
    # Millions of small objects and no cycles among them: looking for some takes a fifth of the
    # time.
    gc.set_threshold(200_000, 50, 50)
    try:
        main(sys.argv[1:])
    except AutellixError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def _tell(served: Workload, note: Callable[[str], None]) -> None:
    for line in served.skipped[:10]:
        note(f"left out: {line}")
    if len(served.skipped) > 10:
        note(f"left out: {len(served.skipped) - 10} further lines")
    if served.too_long:
        note(f"left out: {served.too_long} programs whose contexts exceed the KV cache")
    note(f"{served.name}: {len(served.programs)} programs, {served.calls} calls")


def _line(figures: Cell) -> str:
    at = f"load {figures['load']:<5g}" if figures["load"] is not None else ""
    if not at and figures["rate"] is not None:
        at = f"rate {figures['rate']:<8.4g}"
    state = {True: "stable", False: "queue grows", None: ""}[figures["stable"]]
    return (
        f"{at} {figures['policy']:13} mean {1e3 * figures['mean_token_latency_s']:8.1f} "
        f"P95 {1e3 * figures['p95_token_latency_s']:8.1f} "
        f"P99 {1e3 * figures['p99_token_latency_s']:8.1f} ms/token, "
        f"makespan {figures['makespan_s']:8.1f} s, wait {figures['wait_share']:4.0%}, "
        f"hits {figures['cache_hit_rate']:4.0%} {state}"
    ).strip()


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} must name at least one, got {text!r}")
    return names


def _whole(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{option} must be whole numbers split by commas, got {text!r}") from None


def _numbers(text: str, option: str, most: float = float("inf")) -> list[float]:
    numbers = []
    for part in _names(text, option):
        try:
            number = float(part)
        except ValueError:
            raise UsageError(f"{option} must be numbers split by commas, got {part!r}") from None
        if not 0 < number <= most or number == float("inf"):
            limit = f" and at most {most:g}" if most < float("inf") else ""
            raise UsageError(f"{option} must be above 0{limit}, got {part}")
        numbers.append(number)
    return sorted(numbers)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set must be NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
