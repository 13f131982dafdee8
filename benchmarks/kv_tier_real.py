"""The host tiers on the real engine: an engine for each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from autellix.scheduler.sim_orders import sim_policy
from benchmarks.kv_tier import moved
from benchmarks.metrics import Cell, cell
from benchmarks.options import REAL
from benchmarks.real_engine import RealEngine
from benchmarks.scaling import scaled_programs
from benchmarks.workloads import poisson, workload


def real_cells(options: argparse.Namespace) -> Iterator[Cell]:
    """One cell for each tier, workload, seed and policy of the options; loads are not used."""
    for tier in options.tiers:
        host_gib = 0.0 if tier == "none" else options.host_gib
        engine = RealEngine.start(
            kv_tokens=options.kv_tokens, host_gib=host_gib, vllm_books=tier == "vllm"
        )
        try:
            for name in options.workload:
                for seed in options.seed:
                    for policy in options.policies:
                        figures = _cell(engine, options, name, seed, policy)
                        if tier == "vllm":
                            # Receipts tell of loads only where the books are ours.
                            figures |= {"loads": None, "loaded_tokens": None}
                        yield {**figures, "tier": tier, "host_gib": host_gib}
        finally:
            engine.stop()


def _cell(
    engine: RealEngine, options: argparse.Namespace, name: str, seed: int, policy: str
) -> Cell:
    served = workload(name, options.programs, seed)
    programs = scaled_programs(served.programs, options.factor)
    arrivals = poisson(programs, options.rate, seed)
    result = engine.serve(arrivals, sim_policy(policy)).result
    size = engine.model.block_tokens
    known = sum(sum(p.tree(size).shared_blocks) * size for p in programs)
    result = replace(result, known_tokens=known)
    figures = cell(
        result,
        workload=name,
        policy=policy,
        engine=REAL,
        load=None,
        rate=options.rate,
        seed=seed,
    )
    return {
        **figures,
        "kv_tokens": options.kv_tokens,
        "factor": options.factor,
        **moved(result, engine.model.step.b),
    }
