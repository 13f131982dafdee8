"""Settings changed one at a time, and the default's parts, on a few small programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autellix.errors import UsageError
from autellix.scheduler.config import SchedulerConfig
from benchmarks import knobs, parts
from benchmarks.workload_generators import generated


def test_finer_levels_reach_as_far_as_the_default_ones() -> None:
    usual = SchedulerConfig()
    reach = usual.quantum_ratio ** (usual.levels - 2)
    for ratio in knobs.VALUES["quantum_ratio"]:
        settings = knobs.settings_of("quantum_ratio", ratio)
        assert ratio ** (settings["levels"] - 2) == pytest.approx(reach, rel=0.9 * ratio - 0.9)


def test_every_value_is_a_setting_and_not_the_default() -> None:
    for knob, values in knobs.VALUES.items():
        for value in values:
            changed = SchedulerConfig.from_dict(knobs.settings_of(knob, value))
            assert getattr(changed, knob) != getattr(SchedulerConfig(), knob)


def test_the_table_compares_with_the_defaults_in_the_same_cell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(knobs, "PROGRAMS", {"sharegpt": 12})
    monkeypatch.setattr(knobs, "VALUES", {"levels": (4,), "beta": (1.0,)})
    file = tmp_path / "knobs.json"
    knobs.main(["--workloads", "sharegpt", "--json", str(file)])
    document = json.loads(file.read_text())
    assert [row["knob"] for row in document["cells"]] == [None, "levels", "beta"]
    usual, changed, _ = (row["cell"]["mean_token_latency_s"] for row in document["cells"])
    assert document["table"][0]["mean"]["sharegpt"] == pytest.approx(changed / usual, abs=1e-3)


def test_kinds_tell_lengths_to_the_factor_asked_for_and_no_better() -> None:
    programs = parts.told_apart(generated("bfcl", 40, 1), 2.0)
    lengths: dict[str, list[int]] = {}
    for program in programs:
        lengths.setdefault(program.kind, []).append(program.output_tokens)
    assert all(max(known) <= 2 * min(known) for known in lengths.values())
    assert len(lengths) < len(programs) / 4


def test_each_row_is_a_cell_of_its_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parts, "PROGRAMS", {"bfcl": 12})
    file = tmp_path / "parts.json"
    parts.main(["--workloads", "bfcl", "--json", str(file)])
    rows = json.loads(file.read_text())["cells"]
    assert [row["row"] for row in rows] == [*parts.PARTS]
    assert all(row["cell"]["programs"] == 12 for row in rows)


def test_an_unknown_row_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no row 'lifo'"):
        parts.main(["--rows", "lifo"])


def test_rows_can_be_had_on_other_seats_and_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(parts, "PROGRAMS", {"supervisor": 12})
    file = tmp_path / "parts.json"
    rows = "default, calls as they came;default;default, chains known"
    given = ["--seats", "2,4", "--load", "0.3,1.2", "--rows", rows, "--json", str(file)]
    parts.main(["--workloads", "supervisor", *given])
    cells = json.loads(file.read_text())["cells"]
    assert [(row["seats"], row["cell"]["load"]) for row in cells[::3]] == [
        (2, 0.3),
        (2, 1.2),
        (4, 0.3),
        (4, 1.2),
    ]
    latencies = [row["cell"]["mean_token_latency_s"] for row in cells[:3]]
    assert len(set(latencies)) == 3, "the three orders differ"


def test_what_is_remembered_changes_the_order_and_so_does_learning_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(parts, "PROGRAMS", {"bfcl": 6})
    file = tmp_path / "parts.json"
    rows = ["default", "default, nothing learned", "gittins", "gittins, 5 remembered"]
    given = ["--programs", "60", "--load", "1.5", "--rows", ";".join(rows), "--json", str(file)]
    parts.main(["--workloads", "bfcl", *given])
    cells = [row["cell"] for row in json.loads(file.read_text())["cells"]]
    assert all(cell["programs"] == 60 for cell in cells)
    assert len({cell["mean_token_latency_s"] for cell in cells}) == len(rows)
