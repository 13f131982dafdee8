"""Settings: from variables and arguments, and what is wrong with them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from autellix.errors import SettingsError
from autellix.runtime.settings import Settings, parse_engine_args, variable_of


def test_without_variables_the_defaults_hold() -> None:
    assert Settings.from_environment({}) == Settings()
    assert (Settings().policy, Settings().engine, Settings().model) == ("default", "vllm", None)


def test_every_setting_has_a_variable() -> None:
    environ = {
        "AUTELLIX_MODEL": "some/model",
        "AUTELLIX_ENGINE": "vllm",
        "AUTELLIX_ENGINE_ARG": "max_num_seqs=4 dtype=half",
        "AUTELLIX_POLICY": "plas",
        "AUTELLIX_TRACE": "run.json",
        "AUTELLIX_LIVE": "yes",
        "AUTELLIX_QUIET": "0",
        "AUTELLIX_DEBUG": "On",
    }
    assert environ.keys() <= {variable_of(f.name) for f in fields(Settings)}
    assert Settings.from_environment(environ) == Settings(
        model="some/model",
        engine_args={"max_num_seqs": 4, "dtype": "half"},
        policy="plas",
        trace=Path("run.json"),
        live=True,
        quiet=False,
        debug=True,
    )


def test_what_is_given_wins_and_what_is_not_stays() -> None:
    base = Settings(policy="plas", quiet=True)
    assert base.merged(policy="fcfs", model=None) == Settings(policy="fcfs", quiet=True)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"AUTELLIX_QUIET": "perhaps"}, "AUTELLIX_QUIET is on or off, got 'perhaps'"),
        ({"AUTELLIX_POLICY": "lifo"}, "no policy 'lifo'; choose one of: default, fcfs"),
        ({"AUTELLIX_ENGINE": "tgi"}, "no engine 'tgi'; choose one of: vllm"),
        ({"AUTELLIX_ENGINE_ARG": "max_num_seqs"}, "takes KEY=VALUE, got 'max_num_seqs'"),
        ({"AUTELLIX_RAY_ADDRESS": "head:6379"}, "--ray-address is for .* add --engine ray"),
        ({"AUTELLIX_RAY_WAIT": "5", "AUTELLIX_ENGINE": "vllm"}, "AUTELLIX_RAY_WAIT too"),
    ],
)
def test_an_impossible_value_is_told_with_what_is_possible(
    environ: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings.from_environment(environ)


def test_engine_arguments_are_json_or_text() -> None:
    pairs = ["max-num-seqs=4", "enforce_eager=True", "dtype=half", 'x={"a": [1]}', "y=", "z=a=b"]
    assert parse_engine_args(pairs) == {
        "max_num_seqs": 4,
        "enforce_eager": True,
        "dtype": "half",
        "x": {"a": [1]},
        "y": "",
        "z": "a=b",
    }


def test_json_with_blanks_is_whole_in_a_variable_too() -> None:
    content = 'a={"b": [1, 2], "c": "d = e"} max_num_seqs=4 f="g h" dtype=half'
    found = {"a": {"b": [1, 2], "c": "d = e"}, "max_num_seqs": 4, "f": "g h", "dtype": "half"}
    assert parse_engine_args(content.split()) == found
    assert Settings.from_environment({"AUTELLIX_ENGINE_ARG": content}).engine_args == found


def test_text_that_only_looks_like_json_swallows_nothing() -> None:
    assert parse_engine_args(["x={oops", "max_num_seqs=4"]) == {"x": "{oops", "max_num_seqs": 4}


@pytest.mark.parametrize("pair", ["max_num_seqs", "=4", ""])
def test_an_engine_argument_needs_a_key_and_a_value(pair: str) -> None:
    with pytest.raises(SettingsError, match="KEY=VALUE"):
        parse_engine_args([pair])
