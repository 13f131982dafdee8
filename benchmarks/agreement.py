"""The simulator against the real engine: the same programs, arrivals and policies on both.

    python -m benchmarks.agreement --load 0.8 --json benchmarks/results/agreement_cpu.json

The engine with the embedded model is calibrated first, in the same run, up to twice the longest
context there is: a machine's speed drifts.
Programs are scaled as in ``--engine vllm`` of :mod:`benchmarks.replay`. A file that is there is
added to, so that loads can be measured one at a time; a load that it has is replaced.

``error`` is simulated / real - 1 of the mean response time. ``steps_error`` is the same of the sum
of the step times alone, the model's for the very steps that the engine made: it tells what the
model of a step gets wrong from what the simulator does around it. It is also where a machine shows
whose speed changes from run to run; ``error_at_own_speed`` is that of the simulator with step times
scaled to the sum of those of the very run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autellix.errors import UsageError
from autellix.runtime.calibrate_fit import Point, fit_steps
from autellix.runtime.calibrate_sweep import Sweep
from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimProgram
from autellix.scheduler.simulator import SimResult
from autellix.scheduler.step_log import Step
from benchmarks.metrics import Cell, cell
from benchmarks.options import MOST_LOAD, names_in, numbers_in, run_command
from benchmarks.real_engine import RealEngine, require_real
from benchmarks.result_file import result_document, write_result
from benchmarks.scaling import scaled_programs
from benchmarks.simulated_engine import SimulatedEngine
from benchmarks.workloads import poisson, workload

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
    pieces = _pieces(options.json, needed=options.again)
    if options.again:
        pieces = {name: _simulated_again(piece) for name, piece in pieces.items()}
        write_result(options.json, result_document(goal=GOAL, pieces=pieces))
        return
    served = workload(options.workload, options.programs, options.seed)
    programs = scaled_programs(served.programs, options.factor)
    engine = RealEngine.start(seats=options.seats, kv_tokens=options.kv_tokens)
    try:
        swept = engine.sweep(
            lambda number, of, name: print(f"calibrate: {name}", flush=True),
            context_tokens=2 * max(program.longest_context for program in programs),
        )
        engine.model = replace(engine.model, turnaround_s=swept.turnaround_s)
        engine.model = _fitted(engine.model, swept.points, swept.between_s)
        for load in loads:
            piece = _piece(engine, served.name, programs, load, swept, options)
            pieces[f"{served.name}/{load:g}"] = piece
            for policy in policies:
                _run_policy(piece, engine, programs, policy, options)
                if options.json:  # after every policy: what an interrupted run has is not lost
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
    again = "simulate all of that file again, with models fitted anew to what was measured"
    add("--again", action="store_true", help=again)
    add("--steps", type=Path, metavar="FILE", help="write every step that was measured there")
    return parser


def _pieces(path: Path | None, *, needed: bool) -> dict[str, Any]:
    if path is None or not path.exists():
        if needed:
            raise UsageError("--again needs --json with a file that is there")
        return {}
    try:
        return json.loads(path.read_text())["pieces"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is no result of benchmarks.agreement; name another") from None


def _fitted(model: EngineModel, points: Sequence[Point], between_s: float) -> EngineModel:
    """The engine's model with the step times that it has now."""
    fit = fit_steps(points)
    step = replace(fit.step, a=fit.step.a + between_s)
    errors = ", ".join(f"{region} {found.median:.1%}" for region, found in fit.residuals.items())
    print(
        f"{step}, {between_s:.4f} s of it between steps; turnaround {model.turnaround_s:.4f} s; "
        f"median errors: {errors}",
        flush=True,
    )
    return replace(model, step=step)


def _piece(
    engine: RealEngine,
    name: str,
    programs: Sequence[SimProgram],
    load: float,
    swept: Sweep,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """What is the same for all policies at one load."""
    capacity = SimulatedEngine(model=engine.model).capacity(programs, options.seed)
    return {
        "workload": name,
        "given": options.workload,
        "load": load,
        "rate": load * capacity.programs_per_s,
        "programs": len(programs),
        "calls": sum(map(len, programs)),
        "factor": options.factor,
        "seed": options.seed,
        "preset": engine.model.to_dict(),
        "between_s": swept.between_s,
        "points": [asdict(point) for point in swept.points],
        "rows": [],
    }


def _run_policy(
    piece: dict[str, Any],
    engine: RealEngine,
    programs: Sequence[SimProgram],
    policy: str,
    options: argparse.Namespace,
) -> None:
    """One policy on both engines."""
    arrivals = [*poisson(programs, piece["rate"], options.seed)]
    done = engine.serve(arrivals, sim_policy(policy))
    real = _figures(piece, policy, done.result, "vllm")
    piece["rows"].append(_row(piece, real, _sums(done.steps), arrivals))
    if options.steps:
        _write_steps(options.steps, piece["load"], policy, done.steps)


def _simulated_again(piece: dict[str, Any]) -> dict[str, Any]:
    """A piece whose simulated side is made anew from what was measured."""
    points = [Point(**point) for point in piece["points"]]
    model = _fitted(EngineModel.from_dict(piece["preset"]), points, piece["between_s"])
    served = workload(piece["given"], piece["programs"], piece["seed"])
    programs = scaled_programs(served.programs, piece["factor"])
    arrivals = [*poisson(programs, piece["rate"], piece["seed"])]
    piece = {**piece, "preset": model.to_dict()}
    rows = [_row(piece, row["real"], row["steps"], arrivals) for row in piece["rows"]]
    return {**piece, "rows": rows}


def _figures(piece: dict[str, Any], policy: str, result: SimResult, engine: str) -> Cell:
    return cell(
        result,
        workload=piece["workload"],
        policy=policy,
        engine=engine,
        load=piece["load"],
        rate=piece["rate"],
        seed=piece["seed"],
    )


def _sums(steps: Sequence[Step]) -> dict[str, float]:
    """Of the engine's steps; the model of a step is linear, so these are all it needs."""
    names = ("prefill_tokens", "sequences", "kv_tokens", "prefill_reach")
    sums = {name: sum(getattr(step, name) for step in steps) for name in names}
    between_s = sum(step.gap_s for step in steps if step.gap_s < _BUSY_GAP_S)
    return {**sums, "count": len(steps), "seconds": sum(s.step_s for s in steps) + between_s}


def _row(
    piece: dict[str, Any],
    real: Cell,
    sums: dict[str, float],
    arrivals: Sequence[tuple[float, SimProgram]],
) -> dict[str, Any]:
    model = EngineModel.from_dict(piece["preset"])
    result = SimulatedEngine(model=model).serve(arrivals, real["policy"])
    simulated = _figures(piece, real["policy"], result, f"sim:{model.name}")
    step = model.step
    modelled_s = (
        step.a * sums["count"]
        + step.b * sums["prefill_tokens"]
        + step.c * sums["sequences"]
        + step.d * sums["kv_tokens"]
        + step.e * sums["prefill_reach"]
    )
    scale = sums["seconds"] / modelled_s
    scaled = StepTime(**{name: scale * value for name, value in asdict(step).items()})
    own = SimulatedEngine(model=replace(model, step=scaled)).serve(arrivals, real["policy"])
    at_own_speed_s = _figures(piece, real["policy"], own, "")["mean_response_s"]
    row = {
        "policy": real["policy"],
        "real": real,
        "simulated": simulated,
        "error": simulated["mean_response_s"] / real["mean_response_s"] - 1,
        "errors": {name: simulated[name] / real[name] - 1 for name in _SHOWN},
        "error_at_own_speed": at_own_speed_s / real["mean_response_s"] - 1,
        "steps": sums,
        "steps_error": modelled_s / sums["seconds"] - 1,
    }
    print(_line(row), flush=True)
    return row


def _line(row: dict[str, Any]) -> str:
    real, simulated = row["real"], row["simulated"]
    return (
        f"load {real['load']:g} {row['policy']:9} mean response {real['mean_response_s']:6.2f} s, "
        f"simulated {simulated['mean_response_s']:6.2f} s ({row['error']:+.1%}); wait "
        f"{real['wait_share']:.0%} and {simulated['wait_share']:.0%}, hits "
        f"{real['cache_hit_rate']:.0%} and {simulated['cache_hit_rate']:.0%}, preemptions "
        f"{real['preemptions']} and {simulated['preemptions']}, makespan {real['makespan_s']:.1f} "
        f"and {simulated['makespan_s']:.1f} s; step times {row['steps_error']:+.1%}, at the run's "
        f"own speed {row['error_at_own_speed']:+.1%}"
    )


def _write_steps(path: Path, load: float, policy: str, steps: Sequence[Step]) -> None:
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"load": load, "policy": policy, **step._asdict()}) + "\n")


if __name__ == "__main__":
    run_command(main)
