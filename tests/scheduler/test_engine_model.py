"""Models of engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autellix.errors import InputError, SettingsError
from autellix.scheduler.engine_model import PRESETS, EngineModel, StepTime, preset_named


def test_a_step_is_the_sum_of_its_parts() -> None:
    step = StepTime(a=1.0, b=0.5, c=0.25, d=0.125)
    assert step.of(prefill_tokens=10, sequences=4, kv_tokens=8) == 1 + 5 + 1 + 1


def test_the_attention_of_prompts_is_a_term_of_its_own() -> None:
    step = StepTime(a=1.0, b=0.5, e=0.01)
    assert step.of(10, 0, 0, prefill_reach=50) == 1 + 5 + 0.5
    assert step.of(10, 0, 0) == 1 + 5


def test_presets_have_the_names_that_are_documented() -> None:
    assert list(PRESETS) == [
        "cpu-smollm2",
        "a100-llama3-8b",
        "h100-llama3-8b",
        "h200-llama3-8b",
        "a100x4-llama3-70b",
    ]


def test_the_a100_preset_has_the_figures_of_the_roofline_by_hand() -> None:
    model = preset_named("a100-llama3-8b")
    assert model.step.a == pytest.approx(10.27e-3, rel=0.01)
    assert model.step.of(2048, 0, 0) == pytest.approx(0.1757 + 0.001, rel=0.01)
    assert model.step.d == pytest.approx(131_072 / (0.85 * 2.039e12))
    assert model.kv_tokens == pytest.approx(429_000, rel=0.01)


def test_newer_devices_are_faster_and_hold_no_less() -> None:
    a100, h100, h200 = (preset_named(f"{name}-llama3-8b") for name in ("a100", "h100", "h200"))
    for older, newer in ((a100, h100), (h100, h200)):
        assert newer.step.of(0, 1, 10_000) < older.step.of(0, 1, 10_000)
        assert newer.kv_tokens >= older.kv_tokens


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match="choose one of: cpu-smollm2, a100-llama3-8b"):
        preset_named("b200")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kv_tokens": 0}, "kv_tokens must be a whole number >= 1, got 0"),
        ({"kv_tokens": 15}, "must hold a block of 16"),
        ({"seats": 2048}, "raise it or give fewer seats"),
        ({"link_bytes_per_s": 0.0}, "link_bytes_per_s must be > 0"),
    ],
)
def test_an_impossible_engine_is_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EngineModel(**{"name": "x", "step": StepTime(a=1), "kv_tokens": 160, **values})


@pytest.mark.parametrize("values", [{"a": 0.0}, {"a": 1.0, "d": -1.0}, {"a": float("nan")}])
def test_an_impossible_step_time_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match="coefficient"):
        StepTime(**values)


def test_a_model_survives_a_file_by_itself_or_in_a_document(tmp_path: Path) -> None:
    model = PRESETS["cpu-smollm2"]
    for name, document in (("a", model.to_dict()), ("b", {"preset": model.to_dict(), "fit": 1})):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(document))
        assert preset_named(str(file)) == model


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "holds no object"),
        ("{}", "lacks a value"),
        ('{"preset": 3}', "holds no preset"),
        ('{"name": "x", "step": {"a": 1}, "kv_tokens": 160, "depth": 1}', "has no value 'depth'"),
        ('{"name": "x", "step": {"a": -1}, "kv_tokens": 160}', "coefficient a"),
        ('{"name": "x", "step": {"a": "1"}, "kv_tokens": 160}', "coefficient a"),
        ('{"name": "x", "step": {"a": 1}, "kv_tokens": true}', "kv_tokens must be"),
    ],
)
def test_a_file_without_a_preset_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "p.json"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        preset_named(str(file))


def test_a_preset_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no preset file"):
        preset_named(str(tmp_path / "p.json"))
