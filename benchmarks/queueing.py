"""Policies against each other on the real engine, with more programs than it can serve at once.

    python -m benchmarks.queueing --json benchmarks/results/queueing_cpu.json

The capacity is measured first: the rate at which ``fcfs`` (with prefix caching and chunked prefill)
finishes the first three quarters of the programs when all are there at the start; the last ones
say how long the longest chain is, not how much the engine can do. The programs then arrive at
``--load`` times that rate. The policies take turns on one engine, ``--repeats`` times with other
seeds; every policy sees the same programs and arrivals. A program's token latency is its response
time / the tokens it generated, in seconds.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.session import Session
from autellix.runtime.settings import Settings
from benchmarks.real_programs import ProgramSpec, long_tailed_programs, run_programs
from benchmarks.result_file import result_document, write_result

CONTEXT = 4096


def run_once(host: EngineHost, policy: str, specs: list[ProgramSpec]) -> dict[str, Any]:
    """One policy on one workload: what its programs and the engine say afterwards."""
    session = Session(Settings(policy=policy, quiet=True), host)
    host.loop.run(host.engine.configure(session.settings.scheduler_config()))
    session.start()
    try:
        host.loop.run(run_programs(session, specs, longest_prompt=CONTEXT - 400))
        document = session.record.document()
    finally:
        session.close()
    tokens = {spec.name: spec.output_tokens for spec in specs}
    latencies = sorted(p["response_s"] / tokens[p["id"]] for p in document["programs"])
    responses = sorted(p["response_s"] for p in document["programs"])
    calls = [call for p in document["programs"] for call in p["calls"]]
    return {
        "policy": policy,
        "programs": len(specs),
        "calls": len(calls),
        "mean_token_latency_s": statistics.fmean(latencies),
        "p95_token_latency_s": _at(latencies, 0.95),
        "mean_response_s": statistics.fmean(responses),
        "p95_response_s": _at(responses, 0.95),
        "makespan_s": max(p["end_s"] for p in document["programs"]),
        "three_quarters_s": _at(sorted(p["end_s"] for p in document["programs"]), 0.75),
        "wait_share": sum(p["wait_s"] for p in document["programs"])
        / sum(p["wait_s"] + p["service_s"] for p in document["programs"]),
        "preemptions": sum(call["preemptions"] for call in calls),
        "cached_share": sum(c["cached_tokens"] for c in calls)
        / sum(c["prompt_tokens"] for c in calls),
    }


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default="fcfs,mlfq,plas,atlas")
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seats", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    engine_args = {"max_num_seqs": args.seats, "max_model_len": CONTEXT}
    host = EngineHost.start(Settings(engine_args=engine_args))
    try:
        run_once(host, "fcfs", long_tailed_programs(6, float("inf"), seed=999))  # warm up
        offline = run_once(
            host, "fcfs", long_tailed_programs(args.programs, float("inf"), seed=args.seed)
        )
        capacity = 0.75 * args.programs / offline["three_quarters_s"]
        cells = []
        for repeat in range(args.repeats):
            specs = long_tailed_programs(args.programs, args.load * capacity, args.seed + repeat)
            for policy in args.policies.split(","):
                cell = {"repeat": repeat, **run_once(host, policy, specs)}
                cells.append(cell)
                print(
                    f"{repeat} {policy:6} mean {cell['mean_token_latency_s']:.3f} "
                    f"P95 {cell['p95_token_latency_s']:.3f} s/token, "
                    f"makespan {cell['makespan_s']:.1f} s, {cell['preemptions']} preemptions",
                    flush=True,
                )
            # After every repeat: what an interrupted run has measured is not lost.
            write_result(args.json, result_of(args, offline, capacity, cells))
    finally:
        host.stop()


def result_of(
    args: argparse.Namespace, offline: dict[str, Any], capacity: float, cells: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything measured so far, with the medians per policy."""
    medians = {
        policy: {
            key: statistics.median(c[key] for c in cells if c["policy"] == policy)
            for key in ("mean_token_latency_s", "p95_token_latency_s", "makespan_s")
        }
        for policy in args.policies.split(",")
    }
    return result_document(
        load=args.load,
        seats=args.seats,
        capacity_programs_per_s=capacity,
        offline=offline,
        medians=medians,
        cells=cells,
    )


if __name__ == "__main__":
    main()
