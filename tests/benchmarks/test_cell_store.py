"""Experiments that were stopped go on, and several processes give the same cells as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import experiment, replay
from benchmarks.cell_store import CellStore
from benchmarks.experiment import CellKey

OPTIONS = ("--workload", "bfcl", "--workload", "tot", "--programs", "10", "--seed", "1,2")
POLICIES = ("--policies", "vllm-opt,plas", "--rate", "2")


def cells_of(file: Path, *more: str) -> list[dict[str, Any]]:
    replay.main([*OPTIONS, *POLICIES, "--json", str(file), *more])
    return json.loads(file.read_text())["cells"]


def test_several_processes_give_the_same_cells_in_the_same_order(tmp_path: Path) -> None:
    assert cells_of(tmp_path / "a.json") == cells_of(tmp_path / "b.json", "--jobs", "2")


def test_an_experiment_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = cells_of(tmp_path / "whole.json")
    run_cell, served = experiment._run_cell, 0

    def stopped_after_three(*task: Any) -> Any:
        nonlocal served
        served += 1
        if served > 3:
            raise KeyboardInterrupt
        return run_cell(*task)

    monkeypatch.setattr(experiment, "_run_cell", stopped_after_three)
    file = tmp_path / "out.json"
    with pytest.raises(KeyboardInterrupt):
        cells_of(file)
    part = tmp_path / "out.json.part"
    assert len(part.read_text().splitlines()) == 1 + 3
    with part.open("a") as torn:
        torn.write('{"key": "half a li')
    monkeypatch.setattr(experiment, "_run_cell", run_cell)
    capsys.readouterr()
    assert cells_of(file) == whole
    assert "3 of 8 cells were there before" in capsys.readouterr().out
    assert not part.exists()


def test_cells_of_another_experiment_are_not_taken(tmp_path: Path) -> None:
    key = CellKey(workload="w", seed=1, load=None, rate=2.0, policy="plas")
    file = tmp_path / "out.json"
    with CellStore(file, {"programs": "10"}) as store:
        store.keep(key, {"mean": 1.0})
    with CellStore(file, {"programs": "10"}) as store:
        assert store.find(key) == {"mean": 1.0}
        assert store.find(CellKey(workload="w", seed=2, load=None, rate=2.0, policy="plas")) is None
    with CellStore(file, {"programs": "11"}) as store:
        assert store.find(key) is None


def test_a_capacity_that_was_found_is_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--workload", "bfcl", "--programs", "6", "--seats", "4", "--load", "0.5,1.5")
    file = tmp_path / "out.json"
    replay.main([*options, "--policies", "plas", "--json", str(file)])
    whole = json.loads(file.read_text())

    def stop(*task: Any) -> Any:
        raise KeyboardInterrupt

    file.unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(experiment, "_run_cell", stop)
        replay.main([*options, "--policies", "plas", "--json", str(file)])
    monkeypatch.setattr(experiment, "_capacity", stop)
    replay.main([*options, "--policies", "plas", "--json", str(file)])
    again = json.loads(file.read_text())
    assert again["cells"] == whole["cells"] and again["capacity"] == whole["capacity"]


def test_without_a_result_file_nothing_is_written(tmp_path: Path) -> None:
    with CellStore(None, {}) as store:
        store.keep(CellKey(workload="w", seed=1, load=None, rate=None, policy="plas"), {})
    assert not [*tmp_path.iterdir()]
