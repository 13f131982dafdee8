"""What host memory for KV buys: the same programs without it, with vLLM's own, and with ours.

    python -m benchmarks.kv_tier --workload mixed --load 0.03,0.8,1.2 --json kv_tier.json

Every cell is one workload at one load under one policy with one tier, on a simulated engine. Beside
the figures of ``benchmarks.sweep`` a cell has

- ``tier``: ``none`` computes again, ``vllm`` is vLLM's own offloading, ``programs`` is ours;
- ``known_tokens``: of calls' contexts, those whose KV had been made before, by the call itself or
  by an earlier one of its program. ``lost_tokens`` of them the device had no more when they were
  wanted, and ``recomputed_tokens`` were computed again. ``kept_share`` is what was not, of those
  known;
- ``loads``, ``loaded_tokens``: what came back from the host;
- ``lost_s``: the engine's time for what was computed again, and the calls' for loads, seconds.

A load of 1 is the best rate of ``vllm-opt`` without a tier. Rates at equal latency are compared
with those of the same policy without a tier, and with vLLM's.

With ``--engine vllm`` the same runs on the real engine with the embedded model, an engine for each
tier; programs come at ``--rate`` and are scaled by ``--factor``. vLLM's own worker needs a GPU, so
there ``vllm`` is vLLM's manager, which says what is stored, loaded and evicted, with our copies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autellix.errors import UsageError
from autellix.scheduler.sim_host import HostMemory, TierName
from autellix.scheduler.simulator import SimResult
from benchmarks.capacity import Capacity
from benchmarks.cell_store import CellStore
from benchmarks.metrics import Cell, cell, throughput_at_equal_latency
from benchmarks.options import REAL, names_in, numbers_in, run_command, whole_numbers_in
from benchmarks.result_file import result_document, write_result
from benchmarks.simulated_engine import SimulatedEngine, engine_model
from benchmarks.workloads import NAMES, Workload, poisson, workload

TIERS = ("none", "calls", "vllm", "programs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Which cell."""

    workload: str
    seed: int
    load: float
    policy: str
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityKey:
    """Which capacity."""

    workload: str
    seed: int
    what: str = "capacity"


def main(arguments: Sequence[str]) -> None:
    """Run the cells, print and write them."""
    options = _options(arguments)
    ignored = ("json", "load", "policies", "tiers", "workload", "seed")
    if options.engine == REAL:
        from benchmarks.kv_tier_real import real_cells

        if "calls" in options.tiers:
            raise UsageError("--tiers calls runs on simulated engines only; leave it out")
        cells = []
        for found in real_cells(options):
            cells.append(found)
            print(_line(found), flush=True)
        write_result(options.json, result_document(cells=cells))
        return
    identity = {name: str(v) for name, v in vars(options).items() if name not in ignored}
    with CellStore(options.json, identity) as store:
        cells = [found for name in options.workload for found in _of_workload(options, name, store)]
    rows = equal_latency(cells)
    for row in rows:
        bound = ">= " if row["policy_bound"] else ""
        at = f"{row['workload']}: at {row['latency_factor']:g}x the unloaded latency"
        print(f"{at} {row['policy']} serves {bound}{row['ratio']:.2f} times {row['baseline']}")
    write_result(options.json, result_document(cells=cells, throughput_at_equal_latency=rows))
    store.remove()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kv_tier", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--workload", action="append", choices=NAMES, help="repeatable [mixed]")
    add("--engine", default="sim:a100-llama3-8b", help="sim:PRESET, sim:FILE.json or vllm")
    add("--host-gib", type=float, default=256.0, metavar="N", help="host memory for KV [256]")
    add("--tiers", default="none,vllm,programs", help=f"of {', '.join(TIERS)}, split by commas")
    add("--policies", default="default", help="names, split by commas [default]")
    add("--load", default="1.2", help="rate / capacity, split by commas [1.2]")
    add("--programs", type=int, default=300, help="programs a cell [300]")
    add("--seed", default="1", help="seeds, split by commas [1]")
    add("--kv-tokens", type=int, default=4096, metavar="N", help="vllm: KV capacity [4096]")
    add("--rate", type=float, default=1.0, help="vllm: programs a second [1]")
    add("--factor", type=float, default=0.12, help="vllm: lengths and tool times, scaled [0.12]")
    add("--json", type=Path, metavar="FILE", help="write the cells there; goes on where it stopped")
    options = parser.parse_args(arguments)
    options.workload = options.workload or ["mixed"]
    options.load = numbers_in(options.load, "--load")
    options.seed = whole_numbers_in(options.seed, "--seed")
    options.policies = names_in(options.policies, "--policies")
    options.tiers = names_in(options.tiers, "--tiers")
    for tier in options.tiers:
        if tier not in TIERS:
            raise UsageError(f"--tiers has {tier!r}; choose of: {', '.join(TIERS)}")
    return options


def _of_workload(options: argparse.Namespace, name: str, store: CellStore) -> list[Cell]:
    model = engine_model(options.engine)
    cells: list[Cell] = []
    for seed in options.seed:
        served = workload(name, options.programs, seed, model=model)
        capacity = _capacity(SimulatedEngine(model=model), served, seed, store)
        for load in options.load:
            for policy in options.policies:
                for tier in options.tiers:
                    key = Key(workload=name, seed=seed, load=load, policy=policy, tier=tier)
                    found = store.find(key) or _cell(options, served, key, capacity)
                    store.keep(key, found)
                    cells.append(found)
                    print(_line(found), flush=True)
    return cells


def _capacity(engine: SimulatedEngine, served: Workload, seed: int, store: CellStore) -> float:
    key = CapacityKey(workload=served.name, seed=seed)
    known = store.find(key)
    found = Capacity(**known) if known is not None else engine.capacity(served.programs, seed)
    store.keep(key, asdict(found))
    return found.programs_per_s


def _cell(options: argparse.Namespace, served: Workload, key: Key, capacity: float) -> Cell:
    memory = None
    if key.tier != "none":
        tier: TierName = key.tier  # type: ignore[assignment]
        memory = HostMemory(gib=options.host_gib, tier=tier)
    model = engine_model(options.engine)
    simulation = SimulatedEngine(model=model, memory=memory).simulation(key.policy)
    rate = key.load * capacity
    result = simulation.run(poisson(served.programs, rate, key.seed))
    figures = cell(
        result,
        workload=served.name,
        policy=key.policy,
        engine=options.engine,
        load=key.load,
        rate=rate,
        seed=key.seed,
    )
    return {
        **figures,
        "tier": key.tier,
        "host_gib": options.host_gib if memory else 0.0,
        **moved(result, model.step.b),
        "kv_homes": dict(simulation.replicas[0].kv.homes),
    }


def moved(result: SimResult, prefill_s: float) -> dict[str, Any]:
    """What of a run became of KV that had been made before."""
    known, again = result.known_tokens, result.recomputed_tokens
    return {
        "known_tokens": known,
        "lost_tokens": result.lost_tokens,
        "kept_share": 1.0 - again / known if known else 1.0,
        "loads": result.loads,
        "loaded_tokens": result.loaded_tokens,
        "lost_s": again * prefill_s + result.load_wait_s,
    }


def equal_latency(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Rates at equal latency of every policy and tier against the same policy's other tiers."""
    named = [{**one, "policy": f"{one['policy']}, {one['tier']}"} for one in cells]
    baselines = list(dict.fromkeys(one["policy"] for one in named))
    rows = throughput_at_equal_latency(named, baselines)
    return [
        row
        for row in rows
        if row["policy"].partition(",")[0] == row["baseline"].partition(",")[0]
        and row["policy"].endswith("programs")
    ]


def _line(one: Cell) -> str:
    loads = "?" if one["loads"] is None else one["loads"]
    return (
        f"{one['workload']} seed {one['seed']} load {one['load'] or 0:<4g} {one['policy']:9} "
        f"{one['tier']:8} mean {1e3 * one['mean_token_latency_s']:7.1f} "
        f"P95 {1e3 * one['p95_token_latency_s']:7.1f} ms/token, "
        f"makespan {one['makespan_s']:7.0f} s, kept {one['kept_share']:6.1%}, "
        f"computed again {one['recomputed_tokens'] / 1e6:7.2f}M, {loads} loads, "
        f"lost {one['lost_s']:.0f} s, {one['preemptions']} preemptions"
    )


if __name__ == "__main__":
    run_command(main)
