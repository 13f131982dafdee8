"""Figures are drawn from runs and from results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autellix.errors import UsageError
from benchmarks import policy_plots, replay, sweep

SMALL = ["--workload", "bfcl", "--programs", "8", "--seats", "4", "--seed", "1"]


def test_a_sweep_draws_latencies_and_what_its_highest_load_looks_like(tmp_path: Path) -> None:
    options = ["--load", "0.5,1.5", "--policies", "vllm-opt,plas", "--plots", str(tmp_path)]
    sweep.main([*SMALL, *options])
    drawn = {path.name for path in tmp_path.iterdir()}
    latencies = {"latency.png", "latency_p95.png", "latency_p99.png"}
    assert drawn == latencies | {"shares.png", "wait_by_length.png", "calls_under_way.png"}


def test_programs_that_all_come_at_the_start_have_their_makespans_drawn(tmp_path: Path) -> None:
    replay.main([*SMALL, "--offline", "--policies", "vllm-opt,plas", "--plots", str(tmp_path)])
    assert (tmp_path / "makespan.png").stat().st_size > 0


def test_one_image_has_a_panel_for_every_workload_of_several_results(tmp_path: Path) -> None:
    files = []
    for name in ("bfcl", "swe-agent"):
        files.append(str(tmp_path / f"{name}.json"))
        options = ["--workload", name, "--programs", "8", "--seats", "4", "--load", "0.5,1.5"]
        sweep.main([*options, "--policies", "vllm-opt,plas", "--json", files[-1]])
    image = tmp_path / "policies.svg"
    policy_plots.main([*files, "--image", str(image)])
    text = image.read_text()
    for shown in ("bfcl", "swe-agent", "vllm-opt", "plas", "ms a token"):
        assert shown in text
    before = image.read_bytes()
    policy_plots.main([*files, "--image", str(image)])
    assert image.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--image", "none/x.svg"], "takes the name of"),
        (["--image", "x.txt"], "takes the name of"),
        (["--image", "x.svg", "--policies", "nosuch"], "none of these results"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep.main([*SMALL, "--load", "1.5", "--policies", "plas", "--json", "a.json"])
    with pytest.raises(UsageError, match=said):
        policy_plots.main(["a.json", *options])


def test_cells_of_another_tier_or_size_are_other_cells() -> None:
    cell = {"workload": "w", "seed": 1, "policy": "p", "load": 1.2, "rate": 2.0}
    others = [cell, {**cell, "rate": 1.0}, {**cell, "tier": "host"}, {**cell, "programs": 7}]
    assert policy_plots.put_together([{"cells": [other]} for other in others]) == others


def test_the_last_result_has_the_say_on_a_cell(tmp_path: Path) -> None:
    options = ["--load", "1.5", "--policies", "plas", "--json", str(tmp_path / "a.json")]
    sweep.main([*SMALL, *options])
    document = json.loads((tmp_path / "a.json").read_text())
    later = json.loads(json.dumps(document))
    for cell in later["cells"]:
        cell["mean_token_latency_s"] = 7.0
    found = policy_plots.put_together([document, later])
    assert [cell["mean_token_latency_s"] for cell in found] == [7.0] * len(document["cells"])
