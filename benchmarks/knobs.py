"""What the scheduler's settings do: one is changed at a time, all others keep their defaults.

    python -m benchmarks.knobs --json benchmarks/results/knobs.json

Each row is a setting with a value, and of every workload the mean and the 99th percentile of the
program token latency, over those with the defaults in the same cell (same programs, same arrivals);
below 1 is better. The number of levels and their ratio change together where the ratio is the row:
the highest bound stays what it is by default, so that only the steps in between are finer.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autellix.scheduler.config import SchedulerConfig
from benchmarks.metrics import Cell, cell
from benchmarks.options import names_in, run_command, whole_numbers_in
from benchmarks.result_file import result_document, write_result
from benchmarks.simulated_engine import SimulatedEngine, engine_model
from benchmarks.workloads import Workload, poisson, workload

ENGINE = "sim:a100-llama3-8b"
# Programs a cell, so that each takes about as long to simulate.
PROGRAMS = {"sharegpt": 400, "bfcl": 400, "swe-agent": 400, "lats": 80, "coding": 120, "tot": 80}
VALUES: dict[str, tuple[float, ...]] = {
    "levels": (4, 8, 12, 28),
    "quantum_ratio": (1.41, 3.0, 8.0),
    "quantum_steps": (8, 128),
    "beta": (1.0, 2.0, math.inf),
    "policy_interval": (1, 32, 128),
    "preempt_gap": (1, 8),
    "patience_steps": (0, 32),
    "admission_gap": (4,),
    "admission_idle_s": (10.0, 90.0),
}


def settings_of(knob: str, value: float) -> dict[str, Any]:
    """The settings with one of them changed; levels follow the ratio as said above."""
    given: dict[str, Any] = {knob: int(value) if knob in _WHOLE else value}
    if knob == "quantum_ratio":
        usual = SchedulerConfig()
        reach = (usual.levels - 2) * math.log(usual.quantum_ratio)
        given["levels"] = 2 + round(reach / math.log(value))
    return given


_WHOLE = {name for name in VALUES if isinstance(getattr(SchedulerConfig(), name), int)}


class Cells:
    """The cells of one workload and seed, at one load.

    Args:
        name: of the workload.
        policy: whose settings are changed.
        load: rate / capacity.
    """

    def __init__(self, name: str, seed: int, policy: str, load: float) -> None:
        self._model = engine_model(ENGINE)
        self._served: Workload = workload(name, PROGRAMS[name], seed, model=self._model)
        self._seed = seed
        self._policy = policy
        self._load = load
        engine = SimulatedEngine(model=self._model)
        self._rate = load * engine.capacity(self._served.programs, seed).programs_per_s

    def run(self, settings: dict[str, Any]) -> Cell:
        """The cell under these settings."""
        engine = SimulatedEngine(model=self._model, settings=settings)
        arrivals = poisson(self._served.programs, self._rate, self._seed)
        return cell(
            engine.simulation(self._policy).run(arrivals),
            workload=self._served.name,
            policy=self._policy,
            engine=ENGINE,
            load=self._load,
            rate=self._rate,
            seed=self._seed,
        )


def measured(
    names: Sequence[str], seeds: Sequence[int], policy: str, load: float
) -> Iterator[dict[str, Any]]:
    """Every cell, with what was changed in it."""
    for name in names:
        for seed in seeds:
            cells = Cells(name, seed, policy, load)
            yield {"knob": None, "value": None, "cell": cells.run({})}
            for knob, values in VALUES.items():
                for value in values:
                    found = cells.run(settings_of(knob, value))
                    yield {"knob": knob, "value": str(value), "cell": found}


def table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each setting's mean and P99 over the default's, by workload; means over the seeds."""
    usual = {_group(row): row["cell"] for row in rows if row["knob"] is None}
    found: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row["knob"] is None:
            continue
        own, other = row["cell"], usual[_group(row)]
        mean, p99 = (own[key] / other[key] for key in ("mean_token_latency_s", _P99))
        by_workload = found.setdefault((row["knob"], row["value"]), {})
        by_workload.setdefault(own["workload"], []).append((mean, p99))
    return [
        {
            "knob": knob,
            "value": value,
            "mean": {name: _middle([m for m, _ in pairs]) for name, pairs in by.items()},
            "p99": {name: _middle([p for _, p in pairs]) for name, pairs in by.items()},
        }
        for (knob, value), by in found.items()
    ]


_P99 = "p99_token_latency_s"


def _group(row: dict[str, Any]) -> tuple[str, int]:
    return row["cell"]["workload"], row["cell"]["seed"]


def _middle(ratios: Sequence[float]) -> float:
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3)


def main(arguments: Sequence[str]) -> None:
    """Run the cells, print the table and write both."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knobs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workloads", default=",".join(PROGRAMS), help="split by commas")
    parser.add_argument("--policy", default="default", help="whose settings are changed")
    parser.add_argument("--load", type=float, default=1.2, help="rate / capacity")
    parser.add_argument("--seed", default="1", help="seeds, split by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write cells and table there")
    options = parser.parse_args(arguments)
    names = names_in(options.workloads, "--workloads")
    seeds = whole_numbers_in(options.seed, "--seed")
    rows = []
    for row in measured(names, seeds, options.policy, options.load):
        rows.append(row)
        latency_ms = 1e3 * row["cell"]["mean_token_latency_s"]
        what = f"{row['knob']}={row['value']}" if row["knob"] else "defaults"
        print(f"{row['cell']['workload']:10} {what:22} {latency_ms:8.1f} ms/token", flush=True)
    found = table(rows)
    for line in found:
        ratios = "  ".join(f"{name} {ratio:.2f}" for name, ratio in line["mean"].items())
        print(f"{line['knob']:18} {line['value']:>6}: {ratios}")
    if options.json:
        write_result(options.json, result_document(table=found, cells=rows))


if __name__ == "__main__":
    run_command(main)
