"""What each part of the default policy gives, and what it would be worth to know the future.

    python -m benchmarks.parts --json benchmarks/results/parts.json

The rows of :data:`PARTS`, from ``vllm-opt`` to ``srpt``. Between the default and ``srpt``, which
knows every length, stand two rows in which programs of a workload are told apart by how many tokens
they will generate, to a factor of 2 and of 1.41, and nothing else is known: what separates them
from the default is knowledge that nobody has, not a better rule. "Chains known" knows the future as
well: among the calls of one program, the one with the longest chain to come goes first, where the
default goes by what such chains took in programs that have ended.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from autellix.errors import UsageError
from autellix.scheduler.service_history import ServiceHistory
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimProgram
from autellix.scheduler.simulator import Simulation
from benchmarks.experiment import EARLIER_SEED
from benchmarks.metrics import Cell, cell
from benchmarks.options import names_in, numbers_in, run_command, whole_numbers_in
from benchmarks.result_file import result_document, write_result
from benchmarks.simulated_engine import SimulatedEngine, engine_model
from benchmarks.workloads import poisson, workload

ENGINE = "sim:a100-llama3-8b"
PROGRAMS = {
    "sharegpt": 600,
    "bfcl": 600,
    "swe-agent": 600,
    "lats": 120,
    "mixed": 240,
    "tot": 100,
    "coding": 150,
    "supervisor": 300,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A row.

    Attributes:
        policy: by name.
        settings: that are not the policy's own.
        known_to: the factor to which lengths are known; None for not at all.
        chains_known: whether the order of a program's calls is that of the chains they will begin.
        remembers: for how many programs those of the earlier run count; None for as many as it had.
        learns: whether anything is learned; else programs go by the work that they have done.
    """

    policy: str
    settings: dict[str, Any] = field(default_factory=dict)
    known_to: float | None = None
    chains_known: bool = False
    remembers: float | None = None
    learns: bool = True


class NothingLearned(ServiceHistory):
    """Expects of every program what is expected of one of which nothing is known."""

    def worked(self, name: str, before: float, after: float) -> None:
        """Is not listened to."""

    def ended(self, name: str, work: float) -> None:
        """Is not listened to."""


_TIES, _GATE = {"program_ties": True}, {"admission": True}
PARTS: dict[str, Part] = {
    "vllm-opt": Part(policy="vllm-opt"),
    "mlfq": Part(policy="mlfq"),
    "plas": Part(policy="plas"),
    "plas, ties": Part(policy="plas", settings=_TIES),
    "plas, gate": Part(policy="plas", settings=_GATE),
    "plas, ties, gate": Part(policy="plas", settings=_TIES | _GATE),
    "program-fcfs, gate": Part(policy="program-fcfs", settings=_GATE),
    "default, no gate": Part(policy="default", settings={"admission": False}),
    "default, no ties": Part(policy="default", settings={"program_ties": False}),
    "default": Part(policy="default"),
    "default, calls as they came": Part(policy="default", settings={"critical_calls_first": False}),
    "default, chains known": Part(policy="default", chains_known=True),
    "default, nothing learned": Part(policy="default", learns=False),
    "gittins": Part(policy="gittins"),
    "gittins, 5 remembered": Part(policy="gittins", remembers=5.0),
    "gittins, 30 remembered": Part(policy="gittins", remembers=30.0),
    "lengths to 2x": Part(policy="gittins", known_to=2.0),
    "lengths to 1.41x": Part(policy="gittins", known_to=2.0**0.5),
    "srpt": Part(policy="srpt"),
}


def told_apart(programs: Sequence[SimProgram], factor: float | None) -> Sequence[SimProgram]:
    """The programs, with kinds that say how many tokens they generate, to that factor."""
    if factor is not None:
        for program in programs:
            step = int(math.log(program.output_tokens) / math.log(factor))
            program.kind = f"{program.kind.partition('/')[0]}/{step}"
    return programs


def history_of(
    part: Part, engine: SimulatedEngine, earlier: Callable[[], Sequence[SimProgram]]
) -> ServiceHistory | None:
    """What a row begins with, where it begins with anything.

    Args:
        earlier: makes the programs of an earlier run.
    """
    if not part.learns:
        return NothingLearned()
    if part.policy != "gittins":
        return None
    history = ServiceHistory.from_wire(engine.learned(earlier()))
    if part.remembers is not None:
        history.fade(part.remembers)
    return history


def measured(
    name: str,
    seed: int,
    load: float,
    rows: Sequence[str],
    *,
    seats: int | None = None,
    count: int | None = None,
) -> Iterator[tuple[str, Cell]]:
    """The rows of one workload and seed.

    Args:
        count: of programs; None for that of :data:`PROGRAMS`.
    """
    model = engine_model(ENGINE, seats=seats)
    count = PROGRAMS[name] if count is None else count

    def programs(of_seed: int, known_to: float | None) -> Sequence[SimProgram]:
        return told_apart(workload(name, count, of_seed, model=model).programs, known_to)

    served = workload(name, count, seed, model=model)
    rate = load * SimulatedEngine(model=model).capacity(served.programs, seed).programs_per_s
    for row in rows:
        part = PARTS[row]
        engine = SimulatedEngine(model=model, settings=part.settings)
        earlier = functools.partial(programs, seed + EARLIER_SEED, part.known_to)
        history = history_of(part, engine, earlier)
        simulation = engine.simulation(part.policy, None, history)
        if part.chains_known:
            policy = replace(sim_policy(part.policy), order="siblings")
            simulation = Simulation(model, policy, history=history)
        result = simulation.run(poisson(programs(seed, part.known_to), rate, seed))
        yield (
            row,
            cell(
                result,
                workload=name,
                policy=part.policy,
                engine=ENGINE,
                load=load,
                rate=rate,
                seed=seed,
            ),
        )


def main(arguments: Sequence[str]) -> None:
    """Run the rows, print and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parts", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workloads", default=",".join(PROGRAMS), help="split by commas")
    parser.add_argument("--rows", help="names of rows, split by semicolons [all]")
    parser.add_argument("--load", default="1.2", help="rates / capacity, split by commas")
    parser.add_argument("--seats", help="instead of the engine's own, split by commas")
    parser.add_argument("--programs", type=int, help="how many, instead of a workload's own number")
    parser.add_argument("--seed", default="1", help="seeds, split by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the cells there")
    options = parser.parse_args(arguments)
    rows = [row.strip() for row in options.rows.split(";")] if options.rows else [*PARTS]
    if unknown := [row for row in rows if row not in PARTS]:
        raise UsageError(f"there is no row {unknown[0]!r}; choose some of: {'; '.join(PARTS)}")
    cells = product(
        names_in(options.workloads, "--workloads"),
        whole_numbers_in(options.seats, "--seats") if options.seats else [None],
        numbers_in(options.load, "--load"),
        whole_numbers_in(options.seed, "--seed"),
    )
    found = []
    for name, seats, load, seed in cells:
        for row, figures in measured(name, seed, load, rows, seats=seats, count=options.programs):
            settings = PARTS[row].settings
            found.append({"row": row, "settings": settings, "seats": seats, "cell": figures})
            mean, p95, p99 = (
                1e3 * figures[f"{which}_token_latency_s"] for which in ("mean", "p95", "p99")
            )
            print(
                f"{name:10} {seats or '':4} load {load:4} seed {seed} {row:29} "
                f"mean {mean:8.1f} P95 {p95:8.1f} P99 {p99:8.1f} ms/token",
                flush=True,
            )
    if options.json:
        write_result(options.json, result_document(cells=found))


if __name__ == "__main__":
    run_command(main)
