"""Any name is answered by the engine's model; an unmapped one is warned of once."""

from __future__ import annotations

import logging

import pytest

from autellix.errors import SettingsError
from autellix.runtime.model_map import ModelMap
from autellix.runtime.settings import Settings, parse_model_map


def test_every_name_is_the_engines_model(caplog: pytest.LogCaptureFixture) -> None:
    names = ModelMap("small", {"mine": "small"})
    with caplog.at_level(logging.WARNING, "autellix"):
        for name in ("gpt-4o", "gpt-4o", "mine", "small", None, "", "o3"):
            assert names.model_for(name) == "small"
    assert [record.args[0] for record in caplog.records if record.args] == ["gpt-4o", "o3"]


def test_a_target_that_is_not_there_is_refused_with_what_is() -> None:
    with pytest.raises(SettingsError, match=r"serves no model 'big'. There is: small. Write a=sm"):
        ModelMap("small", {"b": "small", "a": "big"})


@pytest.mark.parametrize("pair", ["gpt-4o", "=small", "gpt-4o=", ""])
def test_a_pair_needs_both_sides(pair: str) -> None:
    with pytest.raises(SettingsError, match="NAME=TARGET"):
        parse_model_map([pair])


def test_a_target_may_hold_an_equals_sign() -> None:
    assert parse_model_map(["a=b=c"]) == {"a": "b=c"}


def test_the_environment_gives_several() -> None:
    settings = Settings.from_environment({"AUTELLIX_MODEL_MAP": "a=small b=small"})
    assert settings.model_map == {"a": "small", "b": "small"}
