"""The benchmark runs to its end without a GPU, and then names no figure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from autellix.kernels import bench
from autellix.kernels.bench import TRIAL, Report, main, run, verdicts
from autellix.kernels.bench_beds import CpuBed
from autellix.kernels.bench_ways import Bed


def test_a_trial_does_everything_and_names_no_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.json"
    assert main(["--trial", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert not found["measured"] and not found["goals"] and not found["not_run"]
    assert {name for cell in found["cells"] for name in cell["GB/s"]} == {
        "loop", "vllm batch", "vllm mapped", "gather+memcpy", "staged", "batch", "dispatcher",
        "ceiling",
    }  # fmt: skip
    assert len(found["cells"]) == 2 * (len(TRIAL.pages) + 1) * len(TRIAL.counts)
    assert all(speed is None for cell in found["cells"] for speed in cell["GB/s"].values())
    assert not any(found["decode_ms"].values()) and not any(found["both_ways"].values())
    assert not re.search(r"\d GB/s|pass|FAIL", capsys.readouterr().out)


def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    if bench.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main([]) == 1
    assert "There is no GPU here" in capsys.readouterr().out


def test_a_way_that_spoils_data_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(CpuBed):
        def mapped(self, copies: object, ctas: int) -> None:
            pass

    careless: Bed = Careless()
    with pytest.raises(SystemExit, match="vllm mapped spoils data"):
        run(careless, TRIAL)


def test_what_the_time_does_not_suffice_for_is_named() -> None:
    report = run(CpuBed(), TRIAL, limit_s=0.0)
    assert not report.cells
    assert f"{TRIAL.counts[0]} blocks of {TRIAL.pages[0] * TRIAL.regions} bytes, packed: False" in (
        report.not_run
    )


def test_goals_are_judged_on_large_moves_alone() -> None:
    def cell(move_bytes: int, staged: float) -> dict[str, object]:
        return {
            "direction": "load", "page_bytes": 8192, "packed": False, "blocks": 256,
            "move_bytes": move_bytes,
            "GB/s": {"staged": staged, "batch": 10.0, "dispatcher": 49.0, "ceiling": 50.0},
        }  # fmt: skip

    report = Report(machine={}, measured=True, cells=[cell(2**26, 48.0), cell(2**10, 1.0)])
    assert [line[:4] for line in verdicts(report)] == ["pass", "pass"]
    report.cells = [cell(2**26, 40.0)]
    assert [line[:4] for line in verdicts(report)] == ["FAIL", "pass"]
