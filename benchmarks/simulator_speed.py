"""How long the simulator takes for a million calls, on one core.

    python -m benchmarks.simulator_speed --json benchmarks/results/simulator_speed.json

Chats of the workload ``sharegpt`` come at a rate that one replica can just serve. Their generation
is counted too: it goes on while they come.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from autellix.scheduler.engine_model import preset_named
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimProgram
from autellix.scheduler.simulator import Simulation
from benchmarks.options import fewer_collections
from benchmarks.result_file import result_document, write_result
from benchmarks.workload_generators import sharegpt


def arrivals(calls: int, rate: float, seed: int) -> Iterator[tuple[float, SimProgram]]:
    """Programs until they have so many calls."""
    rng = Random(seed)
    at_s, made, number = 0.0, 0, 0
    while made < calls:
        at_s += rng.expovariate(rate)
        program = SimProgram(f"sharegpt-{number}", sharegpt(rng))
        made += len(program)
        number += 1
        yield at_s, program


def measure(policy: str, calls: int, rate: float) -> dict[str, Any]:
    """One run."""
    simulation = Simulation(preset_named("a100-llama3-8b"), sim_policy(policy))
    began_s = time.process_time()
    result = simulation.run(arrivals(calls, rate, seed=1))
    cpu_s = time.process_time() - began_s
    return {
        "policy": policy,
        "calls": result.calls,
        "programs": len(result.programs),
        "steps": result.steps,
        "stretches": result.stretches,
        "cpu_s": round(cpu_s, 1),
        "us_per_call": round(1e6 * cpu_s / result.calls, 1),
        "virtual_s": round(result.ended_s, 1),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policies", default="vllm-opt,atlas")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=0.4, help="programs a second")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    fewer_collections()
    runs = []
    for policy in args.policies.split(","):
        runs.append(measure(policy, args.calls, args.rate))
        print(runs[-1], flush=True)
    write_result(args.json, result_document(rate=args.rate, runs=runs))


if __name__ == "__main__":
    main()
