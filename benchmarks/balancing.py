"""Balancers over replicas: latency at equal load, rates at equal latency, and how they scale.

    python -m benchmarks.balancing --workload mixed --replicas 1,2,4,8 --json balancing.json

A load of 1 is as many times the capacity of one replica (:mod:`benchmarks.capacity`) as there are
replicas, and programs come for each replica in the same number: so cells of different numbers of
replicas can be compared. Of several loads, 0.03 is always one, as in ``benchmarks.sweep``.

What it says beside the cells:

- ``equal_latency``: for every number of replicas, rates at which balancers reach the same mean
  program token latency, 1.5, 2.5, 5 and 10 times the unloaded one;
- ``scaling``: the rate a replica at the same latency, against that of one replica. That one serves
  fewer programs, and other ones: the balancer ``apart`` gives each program to one replica, in
  turns, and so is as many single replicas with the same programs;
- ``decisions``: processor time of one placement, microseconds, by balancer and replicas.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from autellix.scheduler.balancers import BALANCER_NAMES, Balancer, LeastUsed, balancer_named
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.simulator import Simulation
from autellix.scheduler.tickets import Receipt, Ticket
from benchmarks.cell_store import CellStore
from benchmarks.metrics import UNLOADED, Cell, cell, throughput_at_equal_latency
from benchmarks.options import (
    MOST_LOAD,
    names_in,
    numbers_in,
    run_command,
    whole_numbers_in,
)
from benchmarks.result_file import result_document, write_result
from benchmarks.simulated_engine import SimulatedEngine, engine_model
from benchmarks.workloads import NAMES, Workload, poisson, workload

APART = "apart"
TARGETS = (1.5, 2.5, 5.0, 10.0)  # times the unloaded latency
_CAPACITY_PROGRAMS = 300
_DECISIONS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancingKey:
    """Which cell."""

    workload: str
    seed: int
    replicas: int
    load: float
    balancer: str
    policy: str
    programs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RateKey:
    """Which capacity of one replica."""

    workload: str
    seed: int
    what: str = "capacity"


class ProgramsApart(LeastUsed):
    """Programs in turns, every call of one where its first was: so many single replicas."""

    def __init__(self) -> None:
        self._home: dict[str, int] = {}

    def place(self, ticket: Ticket, loads: Sequence[float]) -> int:
        """The program's replica."""
        return self._home.setdefault(ticket.program, len(self._home) % len(loads))


def main(arguments: Sequence[str]) -> None:
    """Run the cells, print and write them."""
    options = _options(arguments)
    replicas = whole_numbers_in(options.replicas, "--replicas")
    loads = numbers_in(options.load, "--load", MOST_LOAD)
    if len(loads) > 1:
        loads = sorted({UNLOADED, *loads})
    seeds = whole_numbers_in(options.seed, "--seed")
    balancers = names_in(options.balancers, "--balancers")
    keys = [
        BalancingKey(
            workload=name,
            seed=seed,
            replicas=count,
            load=load,
            balancer=balancer,
            policy=options.policy,
            programs=options.programs,
        )
        for name in options.workload or ["mixed"]
        for count in replicas
        for seed in seeds
        for load in loads
        for balancer in (balancers if count > 1 else balancers[:1])
    ]
    identity = {"engine": options.engine, "policy": options.policy, "programs": options.programs}
    cells: list[Cell] = []
    with CellStore(options.json, identity) as store:
        for number, key in enumerate(keys, 1):
            found = store.find(key)
            if found is None:
                found = _run(key, options.engine, store)
                store.keep(key, found)
            cells.append(found)
            print(f"[{number}/{len(keys)}] {_line(found)}", flush=True)
    rows, scales = equal_latency(cells), scaling(cells)
    for line in (*_equal_lines(rows), *_scaling_lines(scales)):
        print(line)
    if options.json:
        write_result(
            options.json,
            result_document(
                cells=cells,
                equal_latency=rows,
                scaling=scales,
                decisions=decisions(balancers, replicas),
            ),
        )
        store.remove()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.balancing",
        description=(__doc__ or "").partition("\n")[0],
        epilog="example: python -m benchmarks.balancing --workload bfcl --replicas 1,4",
    )
    add = parser.add_argument
    add("--workload", action="append", choices=NAMES, help="repeatable [mixed]")
    add("--engine", default="sim:a100-llama3-8b", help="sim:PRESET or sim:FILE.json")
    add("--policy", default="default")
    add("--replicas", default="1,2,4,8", help="numbers, split by commas")
    names = f"names, split by commas; also {APART}, each program on one replica"
    add("--balancers", default=",".join(BALANCER_NAMES), help=names)
    add("--load", default="0.5,0.8,1.0,1.2,1.5", help="rate / capacity of all, split by commas")
    add("--programs", type=int, default=60, help="programs for each replica")
    add("--seed", default="1", help="seeds, split by commas")
    add("--json", type=Path, metavar="FILE", help="write all there; goes on where it stopped")
    return parser.parse_args(arguments)


@lru_cache(maxsize=4)
def _served(name: str, programs: int, seed: int, engine: str) -> Workload:
    return workload(name, programs, seed, model=engine_model(engine))


def _capacity(name: str, seed: int, engine: str, store: CellStore) -> float:
    key = RateKey(workload=name, seed=seed)
    if (found := store.find(key)) is None:
        programs = _served(name, _CAPACITY_PROGRAMS, seed, engine).programs
        capacity = SimulatedEngine(model=engine_model(engine)).capacity(programs, seed)
        store.keep(key, found := {"programs_per_s": capacity.programs_per_s})
    return found["programs_per_s"]


def _balancer(name: str) -> Balancer:
    return ProgramsApart() if name == APART else balancer_named(name)


def _run(key: BalancingKey, engine: str, store: CellStore) -> Cell:
    served = _served(key.workload, key.programs * key.replicas, key.seed, engine)
    rate = key.load * key.replicas * _capacity(key.workload, key.seed, engine, store)
    simulation = Simulation(
        engine_model(engine),
        sim_policy(key.policy),
        replicas=key.replicas,
        balancer=_balancer(key.balancer),
    )
    result = simulation.run(poisson(served.programs, rate, key.seed))
    figures = cell(
        result,
        workload=key.workload,
        policy=key.policy,
        engine=engine,
        load=key.load,
        rate=rate,
        seed=key.seed,
    )
    busiest, mean = max(result.busy_s), sum(result.busy_s) / key.replicas
    return {
        **figures,
        "replicas": key.replicas,
        "balancer": key.balancer,
        "prefilled_tokens": result.prefilled_tokens,
        "busiest_to_mean": busiest / mean,
    }


def equal_latency(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Rates of every balancer at equal latency, for every number of replicas above 1."""
    rows: list[dict[str, Any]] = []
    for count in sorted({one["replicas"] for one in cells if one["replicas"] > 1}):
        of_count = [one | {"policy": one["balancer"]} for one in cells if one["replicas"] == count]
        found = throughput_at_equal_latency(of_count, (*BALANCER_NAMES, APART), TARGETS)
        for row in found:
            row["balancer"] = row.pop("policy")
            rows.append({"replicas": count, **row})
    return rows


def scaling(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The rate for each replica at equal latency, against one replica's, by balancer."""
    rows: list[dict[str, Any]] = []
    alone = [one for one in cells if one["replicas"] == 1]
    for balancer in dict.fromkeys(one["balancer"] for one in cells if one["replicas"] > 1):
        mine = [one for one in cells if one["replicas"] > 1 and one["balancer"] == balancer]
        each = [
            one | {"policy": str(one["replicas"]), "rate": one["rate"] / one["replicas"]}
            for one in (*alone, *mine)
        ]
        for row in throughput_at_equal_latency(each, ["1"], TARGETS):
            rows.append(
                {
                    "workload": row["workload"],
                    "balancer": balancer,
                    "replicas": int(row["policy"]),
                    "latency_factor": row["latency_factor"],
                    "rate_a_replica": row["policy_rate"],
                    "rate_alone": row["baseline_rate"],
                    "scaling": row["ratio"],
                    "bound": row["policy_bound"] or row["baseline_bound"],
                }
            )
    return rows


def decisions(balancers: Sequence[str], replicas: Sequence[int]) -> list[dict[str, Any]]:
    """Processor time of a placement and of a call's end together, by balancer and replicas."""
    return [
        {"balancer": name, "replicas": count, "us": _decision_us(name, count)}
        for name in balancers
        for count in replicas
    ]


def _decision_us(name: str, replicas: int) -> float:
    """Some calls of 64 programs a replica are under way; one ends, one comes."""
    rng, balancer = Random(1), _balancer(name)
    for index in range(replicas):
        balancer.replica_serves(index, seats=256, kv_tokens=400_000)
    loads: list[float] = [0] * replicas
    under_way: list[tuple[Ticket, int]] = []
    best_us = math.inf
    for _ in range(3):
        began_s = process_time()
        for number in range(_DECISIONS):
            program = f"p{rng.randrange(64 * replicas)}"
            ticket = Ticket(
                program=program, call=str(number), prompt_tokens=rng.randrange(100, 9000)
            )
            where = balancer.place(ticket, loads)
            loads[where] += 1
            under_way.append((ticket, where))
            if len(under_way) > 16 * replicas:
                ended, replica = under_way.pop(rng.randrange(len(under_way)))
                loads[replica] -= 1
                balancer.call_ended(ended.call, _receipt(ended, replica))
        best_us = min(best_us, (process_time() - began_s) / _DECISIONS * 1e6)
    return round(best_us, 1)


def _receipt(ticket: Ticket, replica: int) -> Receipt:
    return Receipt(
        program=ticket.program,
        call=ticket.call,
        service_s=2.0,
        wait_s=0.5,
        levels=(1,),
        preemptions=0,
        prompt_tokens=ticket.prompt_tokens,
        cached_tokens=ticket.prompt_tokens // 2,
        output_tokens=100,
        replica=replica,
    )


def _line(figures: Cell) -> str:
    stable = "stable" if figures["stable"] else "queue grows"
    return (
        f"{figures['workload']} x{figures['replicas']} load {figures['load']:<5g}"
        f"{figures['balancer']:13} mean {1e3 * figures['mean_token_latency_s']:8.1f} "
        f"P95 {1e3 * figures['p95_token_latency_s']:8.1f} "
        f"P99 {1e3 * figures['p99_token_latency_s']:8.1f} ms/token, "
        f"hits {figures['cache_hit_rate']:4.0%}, busiest {figures['busiest_to_mean']:.2f}, {stable}"
    )


def _equal_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{row['workload']} x{row['replicas']}: at {row['latency_factor']:g}x the unloaded latency "
        f"{row['balancer']} serves {_bound(row, 'policy')}{row['policy_rate']:.4g} programs/s, "
        f"{row['ratio']:.2f} times {row['baseline']}"
        for row in rows
        if row["balancer"] == BALANCER_NAMES[0]
    ]


def _scaling_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{row['workload']} x{row['replicas']}: at {row['latency_factor']:g}x the unloaded latency "
        f"{row['balancer']} gives {row['scaling']:.2f} of {row['replicas']} single replicas"
        for row in rows
        if row["balancer"] == BALANCER_NAMES[0]
    ]


def _bound(row: dict[str, Any], whose: str) -> str:
    return ">= " if row[f"{whose}_bound"] else ""


if __name__ == "__main__":
    run_command(main)
