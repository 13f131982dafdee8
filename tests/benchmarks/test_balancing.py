"""The benchmark of balancers says what was run."""

from __future__ import annotations

import json

import pytest

from autellix.scheduler.tickets import Ticket
from benchmarks.balancing import ProgramsApart, decisions, main
from benchmarks.balancing_table import latencies, rates
from benchmarks.metrics import UNLOADED


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("balancing") / "found.json"
    main(
        [
            *("--workload", "bfcl", "--replicas", "1,2", "--programs", "10", "--load", "0.5,1.0"),
            *("--balancers", "expected-cost,round-robin", "--json", str(path)),
        ]
    )
    return json.loads(path.read_text())


def test_one_replica_needs_no_balancer_and_others_are_run_with_each(document: dict) -> None:
    cells = [(c["replicas"], c["load"], c["balancer"]) for c in document["cells"]]
    loads, balancers = (UNLOADED, 0.5, 1.0), ("expected-cost", "round-robin")
    alone = [(1, load, balancers[0]) for load in loads]
    assert cells == alone + [(2, load, name) for load in loads for name in balancers]


def test_load_and_programs_are_as_many_times_those_of_one_replica(document: dict) -> None:
    rates = {(c["replicas"], c["load"]): c["rate"] for c in document["cells"]}
    assert rates[2, 1.0] == pytest.approx(2 * rates[1, 1.0])
    assert {(c["replicas"], c["programs"]) for c in document["cells"]} == {(1, 10), (2, 20)}


def test_rates_are_compared_at_the_same_latency(document: dict) -> None:
    against = [r for r in document["equal_latency"] if r["balancer"] == "expected-cost"]
    assert {r["baseline"] for r in against} == {"round-robin"}
    assert all(r["ratio"] >= 1 for r in against)
    assert {(r["replicas"], r["balancer"]) for r in document["scaling"]} == {
        (2, "expected-cost"),
        (2, "round-robin"),
    }


def test_tables_compare_each_result_with_its_own_single_replica(document: dict) -> None:
    cells = document["cells"]
    slower = {"mean_token_latency_s": 9.0, "seed": 2}
    others = [cell | slower for cell in cells if cell["replicas"] == 1]
    assert rates([cells, others]) == rates([cells])
    (row,) = (line for line in rates([cells]).splitlines() if "| 2.5x |" in line)
    found = [r for r in document["scaling"] if r["balancer"] == "expected-cost"]
    (scale,) = (r for r in found if r["latency_factor"] == 2.5)
    assert row.split("|")[-2].strip() == ("-" if scale["bound"] else f"{scale['scaling']:.2f}")


def test_tables_show_every_cell_of_several_replicas_but_the_unloaded(document: dict) -> None:
    rows = latencies(document["cells"]).splitlines()[2:]
    assert [row.split("|")[2:5] for row in rows] == [
        [" 2 ", " 0.5 ", " 20 "],
        [" 2 ", " 1 ", " 20 "],
    ]


def test_programs_apart_are_dealt_out_in_turns_and_stay() -> None:
    balancer = ProgramsApart()
    calls = [Ticket(program=name, call=str(i)) for i, name in enumerate("aabcbdaee")]
    assert [balancer.place(call, [9, 0, 0]) for call in calls] == [0, 0, 1, 2, 1, 0, 0, 1, 1]


def test_a_decision_takes_as_long_as_there_are_replicas_at_most() -> None:
    (few, many) = decisions(["expected-cost"], [1, 64])
    assert few["us"] > 0
    assert many["us"] < 64 * few["us"]
