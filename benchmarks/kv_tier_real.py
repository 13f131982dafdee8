"""The host tier on the real engine, without it and with it: an engine for each."""

from __future__ import annotations

import argparse
from dataclasses import replace

from autellix.scheduler.sim_orders import sim_policy
from benchmarks.kv_tier import moved
from benchmarks.metrics import Cell, cell
from benchmarks.options import REAL
from benchmarks.real_engine import RealEngine
from benchmarks.scaling import scaled_programs
from benchmarks.workloads import poisson, workload


def real_cells(options: argparse.Namespace) -> list[Cell]:
    """One cell for each workload, seed, policy and tier of the options; loads are not used."""
    cells: list[Cell] = []
    for tier in ("none", "programs"):
        host_gib = options.host_gib if tier == "programs" else 0.0
        engine = RealEngine.start(kv_tokens=options.kv_tokens, host_gib=host_gib)
        try:
            for name in options.workload:
                for seed in options.seed:
                    served = workload(name, options.programs, seed)
                    programs = scaled_programs(served.programs, options.factor)
                    for policy in options.policies:
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
                        cells.append(
                            {
                                **figures,
                                "tier": tier,
                                "host_gib": host_gib,
                                "kv_tokens": options.kv_tokens,
                                "factor": options.factor,
                                **moved(result, engine.model.step.b),
                            }
                        )
        finally:
            engine.stop()
    return cells
