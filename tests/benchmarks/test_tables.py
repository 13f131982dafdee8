"""Results as Markdown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autellix.errors import InputError
from benchmarks import sweep, tables

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_cell_of_a_sweep_is_in_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.json"
    policies = ("vllm", "vllm-opt", "plas")
    options = ["--workload", "bfcl", "--workload", "swe-agent", "--programs", "8", "--seats", "4"]
    options += ["--load", "0.5,1.5", "--seed", "1,2", "--policies", ",".join(policies)]
    sweep.main([*options, "--json", str(file)])
    capsys.readouterr()
    tables.main([str(file)])
    shown = capsys.readouterr().out
    cells = json.loads(file.read_text())["cells"]
    for name in ("bfcl", "swe-agent"):
        _, _, table = shown.partition(f"### {name}\n\n")
        rows = [line.split(" | ") for line in table.partition("\n\n")[0].splitlines()[2:]]
        assert [(row[0].strip("| "), row[1]) for row in rows] == [
            (load, policy) for load in ("0.03", "0.5", "1.5") for policy in policies
        ]
        for row in rows:
            mine = [
                1e3 * cell["mean_token_latency_s"]
                for cell in cells
                if cell["workload"] == name
                and f"{cell['load']:g}" == row[0].strip("| ")
                and cell["policy"] == row[1]
            ]
            assert len(mine) == 2
            mean = float(row[2].replace(",", ""))
            assert mean == pytest.approx(sum(mine) / 2, rel=0.01)
    assert "### Rates at equal latency" in shown


def test_a_reader_that_stops_early_sees_no_traceback(tmp_path: Path) -> None:
    results = [str(path) for path in sorted((ROOT / "benchmarks/results").glob("policies_*.json"))]
    command = [sys.executable, "-m", "benchmarks.tables", *results]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_caching_and_scheduling_are_shown_apart() -> None:
    cells = [cell("vllm", 0.6), cell("vllm-opt", 0.2), cell("atlas", 0.05)]
    text = tables.rendered([{"cells": cells, "throughput_at_equal_latency": []}])
    (row,) = [line for line in text.splitlines() if "| atlas |" in line]
    assert row.startswith("| 1.2 | atlas | 50.0 | 1,000 | 1,000 | 12.00x | 4.00x |")


def test_rates_are_compared_with_baselines_of_other_results() -> None:
    policies = [cell("vllm-opt", 0.01, 0.03), cell("vllm-opt", 0.03), cell("plas", 0.02)]
    baseline = [cell("vllm", 0.1, 0.5)]
    rows = [{"not": "read"}]
    text = tables.rendered(
        [
            {"cells": policies, "throughput_at_equal_latency": rows},
            {"cells": baseline, "throughput_at_equal_latency": []},
        ]
    )
    found = [line for line in text.splitlines() if "| 5x unloaded | plas |" in line]
    # At 5 times 0.01 s: vllm serves half of 1.25 programs a second, plas 3 or more.
    assert ["| >= 3 | vllm | 0.625 | 4.80 |" in line for line in found] == [True, False]


def cell(policy: str, latency_s: float, load: float = 1.2) -> dict[str, object]:
    figures = dict.fromkeys(
        ("p95_token_latency_s", "p99_token_latency_s", "mean_response_s", "makespan_s"), 1.0
    )
    shares = dict.fromkeys(("wait_share", "cache_hit_rate", "preemptions"), 0)
    return {
        **figures,
        **shares,
        "workload": "w",
        "seed": 1,
        "policy": policy,
        "load": load,
        "rate": 2.5 * load,
        "stable": False,
        "mean_token_latency_s": latency_s,
    }


def test_agreement_has_a_row_for_every_load_and_policy() -> None:
    def side(response_s: float) -> dict[str, float]:
        return {
            "mean_response_s": response_s,
            "p95_response_s": 2 * response_s,
            "wait_share": 0.25,
            "preemptions": 3,
        }

    def piece(load: float) -> dict[str, object]:
        row = {"policy": "plas", "real": side(2.0), "simulated": side(1.8)}
        errors = {"error": -0.1, "steps_error": 0.012, "error_at_own_speed": -0.004}
        return {"load": load, "rows": [{**row, **errors}]}

    text = tables.rendered([{"pieces": {"w/1.2": piece(1.2), "w/0.5": piece(0.5)}}])
    loads = [line.split(" | ")[0] for line in text.splitlines()[2:]]
    assert loads == ["| 0.5", "| 1.2"]
    assert (
        "| plas | 2.00 | 1.80 | -10.0% | 4.00 | 3.60 | 25% | 25% | 3 | 3 | +1.2% | -0.4% |" in text
    )


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"cells": [{}]}', '{"pieces": []}', '{"cells": 1}', '{"cells": []}', "\x00"],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(content)
    with pytest.raises(InputError, match="is no result of"):
        tables.main([str(file)])
    with pytest.raises(InputError, match="cannot be read"):
        tables.main([str(tmp_path / "none.json")])
