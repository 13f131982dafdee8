"""The two benchmark commands on a simulated engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autellix.errors import AutellixError
from autellix.scheduler.simulator import ProgramRecord
from benchmarks import experiment, replay, sweep, workload_generators, workloads
from benchmarks.metrics import is_stable, percentile, throughput_at_equal_latency
from benchmarks.simulated_engine import SimulatedEngine, engine_model
from benchmarks.workloads import poisson, workload

ROOT = Path(__file__).resolve().parents[2]
TRACE = f"trace:{ROOT / 'benchmarks' / 'traces' / 'tau_bench_airline_gpt4o.jsonl.gz'}"
NUMBER = {"type": "number", "minimum": 0}
MAYBE = {"type": ["number", "null"], "minimum": 0}
WHOLE = {"type": "integer", "minimum": 0}
SHARE = {"type": "number", "minimum": 0, "maximum": 1}
CELL = {
    "workload": {"type": "string"},
    "policy": {"type": "string"},
    "engine": {"type": "string"},
    "load": MAYBE,
    "rate": MAYBE,
    "seed": {"type": "integer"},
    "programs": WHOLE,
    "calls": WHOLE,
    "stable": {"type": ["boolean", "null"]},
    "mean_token_latency_s": NUMBER,
    "p95_token_latency_s": NUMBER,
    "p99_token_latency_s": NUMBER,
    "mean_response_s": NUMBER,
    "p95_response_s": NUMBER,
    "p99_response_s": NUMBER,
    "makespan_s": NUMBER,
    "wait_share": SHARE,
    "preemptions": WHOLE,
    "recomputed_tokens": WHOLE,
    "cache_hit_rate": SHARE,
}
ROW = {
    "workload": {"type": "string"},
    "policy": {"type": "string"},
    "baseline": {"type": "string"},
    "latency_target_s": NUMBER,
    "policy_rate": NUMBER,
    "baseline_rate": NUMBER,
    "ratio": NUMBER,
    "stable": {"type": "boolean"},
}
SCHEMA = {
    "type": "object",
    "required": ["command", "commit", "cells", "throughput_at_equal_latency"],
    "properties": {
        "cells": {
            "type": "array",
            "items": {"type": "object", "required": [*CELL], "properties": CELL},
        },
        "throughput_at_equal_latency": {
            "type": "array",
            "items": {"type": "object", "required": [*ROW], "properties": ROW},
        },
    },
}


def run(main: Any, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    file = tmp_path / "out.json"
    main([*arguments, "--json", str(file)])
    document = json.loads(file.read_text())
    jsonschema.validate(document, SCHEMA)
    return document


def test_replay_writes_a_cell_for_every_policy_load_and_seed(tmp_path: Path) -> None:
    policies = "vllm,vllm-opt,mlfq,plas,atlas,program-fcfs,srpt,default"
    options = ("--workload", TRACE, "--policies", policies, "--load", "0.5,1.2", "--seed", "1,2")
    cells = run(replay.main, tmp_path, *options, "--programs", "20", "--seats", "8")["cells"]
    assert len(cells) == 8 * 2 * 2
    assert [cell["policy"] for cell in cells[:8]] == policies.split(",")
    assert {cell["programs"] for cell in cells} == {20}
    assert {cell["workload"] for cell in cells} == {"trace:tau_bench_airline_gpt4o.jsonl.gz"}
    assert all(cell["cache_hit_rate"] == 0 for cell in cells if cell["policy"] == "vllm")


def test_the_same_command_gives_the_same_cells(tmp_path: Path) -> None:
    options = ("--workload", "bfcl", "--rate", "2", "--programs", "20", "--policies", "plas,srpt")
    once, again = (run(replay.main, tmp_path, *options)["cells"] for _ in range(2))
    assert once == again


@pytest.mark.parametrize("when", [("--offline",), ("--closed-loop", "3")])
def test_without_a_rate_there_is_neither_load_nor_stability(
    tmp_path: Path, when: tuple[str, ...]
) -> None:
    cells = run(replay.main, tmp_path, "--workload", "bfcl", "--programs", "12", *when)["cells"]
    assert {(c["load"], c["rate"], c["stable"]) for c in cells} == {(None, None, None)}
    assert all(cell["programs"] == 12 for cell in cells)


def test_sweep_compares_rates_at_multiples_of_the_unloaded_latency(tmp_path: Path) -> None:
    document = run(
        sweep.main,
        tmp_path,
        *("--workload", "bfcl", "--programs", "25", "--seats", "6", "--load", "0.3,0.8,1.5"),
        *("--policies", "vllm,vllm-opt,plas"),
    )
    assert {cell["load"] for cell in document["cells"]} == {0.03, 0.3, 0.8, 1.5}
    rows = document["throughput_at_equal_latency"]
    assert {row["latency_factor"] for row in rows} == {2.5, 5.0, 10.0}
    caching = [r for r in rows if (r["policy"], r["baseline"]) == ("vllm-opt", "vllm")]
    assert all(row["ratio"] > 1 for row in caching)


def test_rates_are_interpolated_between_loads_and_bounded_by_the_last() -> None:
    def cell(policy: str, load: float, latency_s: float) -> dict[str, Any]:
        return {
            "workload": "w",
            "policy": policy,
            "load": load,
            "rate": 10 * load,
            "stable": True,
            "mean_token_latency_s": latency_s,
        }

    cells = [
        *(cell("vllm-opt", load, s) for load, s in ((0.03, 1.0), (1.0, 2.0), (2.0, 4.0))),
        *(cell("plas", load, s) for load, s in ((0.03, 1.0), (1.0, 1.5), (2.0, 2.0))),
    ]
    row = next(r for r in throughput_at_equal_latency(cells) if r["policy"] == "plas")
    assert row["latency_target_s"] == 2.5
    assert (row["policy_rate"], row["policy_bound"]) == (20.0, True)
    assert row["baseline_rate"] == pytest.approx(12.5)
    assert row["ratio"] == pytest.approx(1.6)


def test_a_percentile_is_a_value_that_was_there() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([7.0], 0.99) == 7.0


def test_a_policy_that_remembers_has_seen_other_programs_of_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    made = workload_generators.generated

    def generated(name: str, programs: int, seed: int) -> Any:
        seen.append((name, seed))
        return made(name, programs, seed)

    monkeypatch.setattr(workloads, "generated", generated)
    options = ("--workload", "bfcl", "--rate", "4", "--programs", "31", "--seats", "4")
    policies = ("--policies", "adaptive,gittins")
    adaptive, gittins = run(replay.main, tmp_path, *options, *policies)["cells"]
    assert seen == [("bfcl", 1), ("bfcl", 1 + experiment.EARLIER_SEED)]
    assert adaptive["mean_token_latency_s"] != gittins["mean_token_latency_s"]
    assert run(replay.main, tmp_path, *options, *policies)["cells"] == [adaptive, gittins]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_engine_that_keeps_up_is_stable_and_one_that_does_not_is_not(seed: int) -> None:
    engine = SimulatedEngine(model=engine_model("sim:a100-llama3-8b", seats=8))
    programs = workload("bfcl", 300, seed).programs
    rate = engine.capacity(programs, seed).programs_per_s
    for load, stable in ((0.5, True), (0.8, True), (1.35, False), (2.0, False)):
        result = engine.serve(poisson(programs, load * rate, seed), "vllm-opt")
        assert is_stable(result.programs) is stable, load


def test_one_burst_at_the_end_is_no_growing_queue() -> None:
    def program(at_s: float, lasts_s: float) -> ProgramRecord:
        zero = dict.fromkeys(("service_s", "wait_s", "critical_path_s", "response_s"), 0.0)
        counts = dict.fromkeys(("calls", "output_tokens", "preemptions"), 1)
        times = {"arrived_s": at_s, "first_call_s": at_s, "ended_s": at_s + lasts_s}
        return ProgramRecord(name="p", **times, **zero, **counts)

    steady = [program(at_s, 2.0) for at_s in range(100)]
    assert is_stable(steady)
    assert is_stable([*steady, *(program(98.0, 2.0) for _ in range(20))])
    # Every fifth program stays: the queue grows by a fifth of what comes.
    assert not is_stable([program(at_s, 2.0 if at_s % 5 else 500.0) for at_s in range(100)])
    assert is_stable([program(3.0, 1.0)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--programs", "0"), "--programs must be a whole number >= 1"),
        (("--engine", "sim:tpu"), "there is no engine preset 'tpu'"),
        (("--engine", "gpu"), "--engine must be sim:PRESET, sim:FILE.json or vllm"),
        (("--engine", "sim:none.json"), "there is no preset file none.json"),
        (("--jobs", "0"), "--jobs must be a whole number >= 1"),
        (("--closed-loop", "0"), "--closed-loop must be a whole number >= 1"),
        (("--json", "no/such/folder/out.json"), "there is no folder no/such/folder for --json"),
        (("--seats", "0"), "seats must be a whole number >= 1"),
        (("--kv-tokens", "0"), "kv_tokens must be a whole number >= 1"),
        (("--replicas", "0"), "replicas must be a whole number >= 1"),
        (("--load", "3.5"), "--load must be above 0 and at most 3, got 3.5"),
        (("--load", "0"), "--load must be above 0"),
        (("--load", "much"), "--load must be numbers"),
        (("--rate", "-1"), "--rate must be above 0"),
        (("--policies", "fifo"), "there is no policy 'fifo'"),
        (("--policies", ","), "--policies must name at least one"),
        (("--workload", "chat"), "there is no workload 'chat'"),
        (("--workload", "trace:"), "--workload trace: needs a file's name"),
        (("--workload", "trace:none.jsonl"), "there is no trace file none.jsonl"),
        (("--seats", "5000"), "give fewer seats"),
        (("--balancer", "random"), "balancer must be one of"),
        (("--set", "levels=0"), "levels must be a whole number >= 1"),
        (("--set", "depth=1"), "the scheduler has no setting 'depth'"),
    ],
)
def test_impossible_options_are_refused(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(AutellixError, match=message.replace("(", r"\(")):
        replay.main(["--programs", "2", *options])


def test_a_fault_is_one_paragraph_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "benchmarks.replay", "--load", "9"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "--load must be above 0 and at most 3, got 9\n"
