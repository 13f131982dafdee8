"""The simulator against the real engine: the same programs, arrivals and policies on both.

    python -m benchmarks.agreement --load 0.8 --json benchmarks/results/agreement_cpu.json

The engine with the embedded model is calibrated first, in the same run: a machine's speed drifts.
Programs are scaled as in ``--engine vllm`` of :mod:`benchmarks.replay`. A file that is there is
added to, so that loads can be measured one at a time; a load that it has is replaced.

``error`` is simulated / real - 1 of the mean response time. ``steps_error`` is the same of the sum
of the step times alone, the model's for the very steps that the engine made: it tells what the
model of a step gets wrong from what the simulator does around it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autellix.errors import UsageError
from autellix.runtime.calibrate_fit import Point, fit_steps
from autellix.scheduler.engine_model import EngineModel
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.step_log import Step
from benchmarks.metrics import Cell, cell
from benchmarks.options import MOST_LOAD, names_in, numbers_in, run_command
from benchmarks.real_engine import RealEngine, require_real
from benchmarks.result_file import result_document, write_result
from benchmarks.scaling import scaled_programs
from benchmarks.simulated_engine import SimulatedEngine
from benchmarks.workloads import Workload, poisson, workload

GOAL = 0.15
# Between steps of a busy engine pass a few milliseconds; more means that it had nothing to do.
_BUSY_GAP_S = 0.02
_SHOWN = ("mean_response_s", "p95_response_s", "mean_token_latency_s", "makespan_s")


def main(arguments: Sequence[str]) -> None:
    """Measure, print and write."""
    options = _parser().parse_args(arguments)
    policies = names_in(options.policies, "--policies")
    for name in policies:
        require_real(sim_policy(name))
    loads = numbers_in(options.load, "--load", MOST_LOAD)
    if not 0 < options.factor <= 1:
        raise UsageError(f"--factor must be above 0 and at most 1, got {options.factor:g}")
    served = workload(options.workload, options.programs, options.seed)
    pieces = _pieces(options.json)
    engine = RealEngine.start(seats=options.seats, kv_tokens=options.kv_tokens)
    try:
        points = _calibrated(engine)
        for load in loads:
            piece = _piece(engine, served, policies, load, options)
            pieces[f"{served.name}/{load:g}"] = {**piece, "points": [asdict(p) for p in points]}
            if options.json:
                write_result(options.json, result_document(goal=GOAL, pieces=pieces))
    finally:
        engine.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agreement", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--workload", default="mixed", metavar="NAME")
    add("--policies", default="vllm-opt,mlfq,plas,atlas", help="names, split by commas")
    add("--load", default="0.5,0.8,1.2", help="loads, split by commas")
    add("--programs", type=int, default=60)
    add("--factor", type=float, default=0.1, help="token counts and tool times are multiplied by")
    add("--seed", type=int, default=1)
    add("--seats", type=int, default=16, help="most calls in a step")
    add("--kv-tokens", type=int, metavar="N", help="KV capacity, instead of the engine's own")
    add("--json", type=Path, metavar="FILE", help="add the result to that file")
    add("--steps", type=Path, metavar="FILE", help="write every step that was measured there")
    return parser


def _pieces(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    return json.loads(path.read_text())["pieces"]


def _calibrated(engine: RealEngine) -> list[Point]:
    """Give the engine's model the step times that it has now; what was measured."""
    points, between_s = engine.sweep(lambda number, of, name: print(f"calibrate: {name}"))
    fit = fit_steps(points)
    step = replace(fit.step, a=fit.step.a + between_s)
    engine.model = replace(engine.model, step=step)
    errors = ", ".join(f"{region} {found.median:.1%}" for region, found in fit.residuals.items())
    print(f"{step}, between steps {between_s:.4f} s; median errors: {errors}", flush=True)
    return points


def _piece(
    engine: RealEngine,
    served: Workload,
    policies: Sequence[str],
    load: float,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One load: all policies on both engines."""
    programs = scaled_programs(served.programs, options.factor)
    simulated = SimulatedEngine(model=engine.model)
    rate = load * simulated.capacity(programs, options.seed).programs_per_s
    rows = []
    for policy in policies:
        arrivals = [*poisson(programs, rate, options.seed)]
        done = engine.serve(arrivals, sim_policy(policy))
        figure = _figures(served.name, policy, load, rate, options.seed)
        real = figure(done.result, "vllm")
        other = figure(simulated.serve(arrivals, policy), f"sim:{engine.model.name}")
        rows.append(_row(real, other, done.steps, engine.model))
        print(_line(rows[-1]), flush=True)
        if options.steps:
            _write_steps(options.steps, load, policy, done.steps)
    return {
        "workload": served.name,
        "load": load,
        "rate": rate,
        "programs": len(programs),
        "calls": sum(map(len, programs)),
        "factor": options.factor,
        "seed": options.seed,
        "preset": engine.model.to_dict(),
        "rows": rows,
    }


def _figures(
    name: str, policy: str, load: float, rate: float, seed: int
) -> Callable[[Any, str], Cell]:
    def figures(result: Any, engine: str) -> Cell:
        return cell(
            result,
            workload=name,
            policy=policy,
            engine=engine,
            load=load,
            rate=rate,
            seed=seed,
        )

    return figures


def _row(real: Cell, simulated: Cell, steps: Sequence[Step], model: EngineModel) -> dict[str, Any]:
    measured_s = sum(step.step_s for step in steps)
    between_s = sum(step.gap_s for step in steps if step.gap_s < _BUSY_GAP_S)
    modelled_s = sum(model.step.of(s.prefill_tokens, s.sequences, s.kv_tokens) for s in steps)
    return {
        "policy": real["policy"],
        "real": real,
        "simulated": simulated,
        "error": simulated["mean_response_s"] / real["mean_response_s"] - 1,
        "errors": {name: simulated[name] / real[name] - 1 for name in _SHOWN},
        "steps": len(steps),
        "steps_error": modelled_s / (measured_s + between_s) - 1,
    }


def _line(row: dict[str, Any]) -> str:
    real, simulated = row["real"], row["simulated"]
    return (
        f"load {real['load']:g} {row['policy']:9} mean response {real['mean_response_s']:6.2f} s, "
        f"simulated {simulated['mean_response_s']:6.2f} s ({row['error']:+.1%}); wait "
        f"{real['wait_share']:.0%} and {simulated['wait_share']:.0%}, hits "
        f"{real['cache_hit_rate']:.0%} and {simulated['cache_hit_rate']:.0%}, preemptions "
        f"{real['preemptions']} and {simulated['preemptions']}, makespan {real['makespan_s']:.1f} "
        f"and {simulated['makespan_s']:.1f} s; step times {row['steps_error']:+.1%}"
    )


def _write_steps(path: Path, load: float, policy: str, steps: Sequence[Step]) -> None:
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"load": load, "policy": policy, **step._asdict()}) + "\n")


if __name__ == "__main__":
    run_command(main)
