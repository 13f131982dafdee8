"""``autellix calibrate``: the command around the sweep and the fit."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from autellix.errors import InputError
from autellix.runtime.calibrate import Calibration, report, write_preset
from autellix.runtime.calibrate_fit import Point, fit_steps
from autellix.runtime.cli import app
from autellix.scheduler.engine_model import PRESETS, preset_named


def calibration() -> Calibration:
    points = [
        Point(
            region=region,
            step_s=0.02 + 4e-4 * prefill + 1e-3 * calls,
            prefill_tokens=prefill,
            sequences=calls,
            kv_tokens=100 * calls,
            prefill_reach=0,
        )
        for region, prefill, calls in (
            *(("prefill", 64 * 2**i, 1) for i in range(4)),
            *(("decode", 0, 2**i) for i in range(4)),
        )
    ]
    preset = PRESETS["cpu-smollm2"]
    document = {"preset": preset.to_dict(), "between_s": 0.001, "model": "tiny", "points": []}
    return Calibration(preset=preset, fit=fit_steps(points), document=document)


def test_what_is_written_is_a_preset_for_simulated_engines(tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    write_preset(calibration(), file)
    assert preset_named(str(file)) == PRESETS["cpu-smollm2"]
    assert json.loads(file.read_text())["model"] == "tiny"
    with pytest.raises(InputError, match="cannot be written"):
        write_preset(calibration(), tmp_path)


def test_the_report_gives_coefficients_and_residuals_by_region() -> None:
    console = Console(width=100, record=True, file=StringIO())
    report(calibration(), console)
    text = console.export_text()
    assert "A step of tiny takes" in text
    for region in ("all", "prefill", "decode"):
        assert f" {region} " in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--output", "preset.yaml"), "must end in .json"),
        (("--output", "no/such/folder/p.json"), "There is no folder no/such/folder"),
        (("--engine-arg", "seats"), "--engine-arg takes KEY=VALUE"),
    ],
)
def test_a_mistake_shows_before_an_engine_starts(options: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["calibrate", *options])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_the_help_shows_examples() -> None:
    result = CliRunner().invoke(app, ["calibrate", "--help"])
    assert result.exit_code == 0
    assert "autellix calibrate --output here.json" in " ".join(result.output.split())
