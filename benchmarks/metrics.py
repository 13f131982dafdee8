"""What a run says: one cell of a benchmark, and rates at which policies reach the same latency.

``mean_token_latency_s`` is the mean over programs of response time / tokens generated, the paper's
metric. ``wait_share`` is the calls' time in queues / their time in queues and in steps.
``recomputed_tokens`` are prompt tokens whose KV had been computed before, by the call itself or by
an earlier call of its program.

``stable`` says whether the engine kept up: of the programs that come between the second and the
fourth quarter of the arrivals' time, at most a tenth, and two, are added to those under way (means
over each quarter, which a single burst hardly moves). At a load of 1.2 a sixth would be. It is
null where programs do not come at a rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from autellix.scheduler.simulator import ProgramRecord, SimResult

TARGETS = (2.5, 5.0, 10.0)
UNLOADED = 0.03
UNFINISHED = 0.1
_FEW = 2  # programs more or fewer say nothing

Cell = dict[str, Any]


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def cell(
    result: SimResult,
    *,
    workload: str,
    policy: str,
    engine: str,
    load: float | None,
    rate: float | None,
    seed: int,
) -> Cell:
    """The figures of one run."""
    programs = result.programs
    latencies = [program.token_latency_s for program in programs]
    responses = [program.response_s for program in programs]
    wait_s = sum(program.wait_s for program in programs)
    service_s = sum(program.service_s for program in programs)
    return {
        "workload": workload,
        "policy": policy,
        "engine": engine,
        "load": load,
        "rate": rate,
        "seed": seed,
        "programs": len(programs),
        "calls": result.calls,
        "stable": None if rate is None else is_stable(programs),
        "mean_token_latency_s": fmean(latencies),
        "p95_token_latency_s": percentile(latencies, 0.95),
        "p99_token_latency_s": percentile(latencies, 0.99),
        "mean_response_s": fmean(responses),
        "p95_response_s": percentile(responses, 0.95),
        "p99_response_s": percentile(responses, 0.99),
        "makespan_s": result.ended_s,
        "wait_share": wait_s / (wait_s + service_s),
        "preemptions": result.preemptions,
        "recomputed_tokens": result.recomputed_tokens,
        "cache_hit_rate": result.cached_tokens / result.prompt_tokens,
    }


def is_stable(programs: Sequence[ProgramRecord]) -> bool:
    """Whether programs are finished about as fast as they come: see the top of the file."""
    arrivals = sorted(program.arrived_s for program in programs)
    first_s, last_s = arrivals[0], arrivals[-1]
    quarter_s = (last_s - first_s) / 4
    if quarter_s <= 0:
        return True
    before = _mean_under_way(programs, first_s + quarter_s, first_s + 2 * quarter_s)
    after = _mean_under_way(programs, last_s - quarter_s, last_s)
    return after - before <= UNFINISHED * len(programs) / 2 + _FEW


def _mean_under_way(programs: Sequence[ProgramRecord], from_s: float, to_s: float) -> float:
    """Programs under way in that interval, mean over time."""
    spent_s = sum(
        max(0.0, min(program.ended_s, to_s) - max(program.arrived_s, from_s))
        for program in programs
    )
    return spent_s / (to_s - from_s)


def throughput_at_equal_latency(
    cells: Sequence[Cell],
    baselines: Sequence[str] = ("vllm", "vllm-opt", "mlfq"),
    targets: Sequence[float] = TARGETS,
) -> list[dict[str, Any]]:
    """Rates at which policies and baselines reach the same mean program token latency.

    The targets are ``targets`` times the latency at a load of 0.03 under ``vllm-opt`` (where it
    did not run, under the policy with the least). Rates are interpolated linearly between loads;
    where a policy stays below the target at every load, its rate is the highest that was run, and
    ``policy_bound`` or ``baseline_bound`` is true: the real one is higher. ``stable`` says whether
    the policy's queue kept its length up to there.
    """
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(cell["workload"] for cell in cells):
        curves = _curves([c for c in cells if c["workload"] == name and c["rate"] is not None])
        unloaded = {
            policy: curve[0][1] for policy, curve in curves.items() if curve[0][3] == UNLOADED
        }
        if not unloaded:
            continue
        reference_s = unloaded.get("vllm-opt", min(unloaded.values()))
        for policy, baseline in ((p, b) for p in curves for b in baselines):
            if policy == baseline or baseline not in curves:
                continue
            for factor in targets:
                target_s = factor * reference_s
                rate, stable, bound = _rate_at(curves[policy], target_s)
                other, _, other_bound = _rate_at(curves[baseline], target_s)
                rows.append(
                    {
                        "workload": name,
                        "policy": policy,
                        "baseline": baseline,
                        "latency_factor": factor,
                        "latency_target_s": target_s,
                        "policy_rate": rate,
                        "baseline_rate": other,
                        "ratio": rate / other if other else None,
                        "stable": stable,
                        "policy_bound": bound,
                        "baseline_bound": other_bound,
                    }
                )
    return rows


# Rate, latency, whether stable, load; each the mean over the seeds.
_Point = tuple[float, float, bool, float | None]


def _curves(cells: Sequence[Cell]) -> dict[str, list[_Point]]:
    grouped: dict[tuple[str, float], list[Cell]] = {}
    for one in cells:
        key = one["load"] if one["load"] is not None else one["rate"]
        grouped.setdefault((one["policy"], key), []).append(one)
    curves: dict[str, list[_Point]] = {}
    for (policy, _), group in sorted(grouped.items(), key=lambda entry: entry[0][1]):
        curves.setdefault(policy, []).append(
            (
                fmean(c["rate"] for c in group),
                fmean(c["mean_token_latency_s"] for c in group),
                all(c["stable"] for c in group),
                group[0]["load"],
            )
        )
    return curves


def _rate_at(curve: Sequence[_Point], target_s: float) -> tuple[float, bool, bool]:
    """Rate at which the curve first crosses the target; stable up to there; a lower bound only."""
    before: _Point | None = None
    for point in curve:
        rate, latency_s, stable, _ = point
        if latency_s > target_s:
            if before is None:
                return rate * target_s / latency_s, stable, False
            share = (target_s - before[1]) / (latency_s - before[1])
            return before[0] + share * (rate - before[0]), before[2], False
        before = point
    assert before is not None
    return before[0], before[2], True
