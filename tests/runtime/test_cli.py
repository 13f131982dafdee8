"""The command line: options before or after the target, variables, messages, exit codes."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autellix.errors import EngineStartError, TargetError
from autellix.runtime import doctor, run_command
from autellix.runtime.cli import app
from autellix.runtime.run_command import RunRequest
from autellix.runtime.settings import Settings

Asked = list[tuple[RunRequest, Settings]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the run command would have been asked for."""
    asked: Asked = []
    monkeypatch.setattr(run_command, "run_request", lambda *given: asked.append(given) or 0)
    return asked


def call(*arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **(env or {})})


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--policy", "plas", "--concurrency", "3", "agent.py", "--input", "in.jsonl"),
        ("run", "agent.py", "--policy", "plas", "--input", "in.jsonl", "--concurrency", "3"),
    ],
)
def test_options_may_stand_before_or_after_the_target(
    asked: Asked, arguments: tuple[str, ...]
) -> None:
    assert call(*arguments).exit_code == 0
    ((request, settings),) = asked
    assert request == RunRequest(target="agent.py", input="in.jsonl", concurrency=3)
    assert settings.policy == "plas"


def test_every_option_of_every_command_has_a_variable() -> None:
    def options(command: Any, context: typer.Context) -> Iterator[tuple[str, str]]:
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.is_eager:
                name = f"{context.command_path} {parameter.opts[0]}"
                yield name, parameter.envvar or "none"
        for each in getattr(command, "commands", {}).values():
            yield from options(each, typer.Context(each, parent=context, info_name=each.name))

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="autellix", **app.info.context_settings or {})
    variables = dict(options(command, context))
    assert len(variables) > 60
    assert not {name for name, each in variables.items() if not each.startswith("AUTELLIX_")}
    assert variables["autellix trace show --json"] == "AUTELLIX_JSON"


def test_what_the_doctor_finds_as_json_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.Finding(area="python", status="ok", what="3.11")
    monkeypatch.setattr(doctor, "run_doctor", lambda: [found])
    for arguments, env in ((("doctor", "--json"), {}), (("doctor",), {"AUTELLIX_JSON": "1"})):
        result = call(*arguments, env=env)
        assert json.loads(result.stdout)["ok"] is True


def test_a_variable_that_is_no_options_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_doctor", list)
    result = call("doctor", "--json", env={"AUTELLIX_VERSION": "0.3.1", "AUTELLIX_HELP": "1"})
    assert json.loads(result.stdout) == {"ok": True, "findings": []}


def test_a_name_from_the_environment_is_checked_as_one_from_the_command_line() -> None:
    result = call("calibrate", env={"AUTELLIX_CALIBRATE_NAME": " "})
    assert result.exit_code == 2
    assert "--name is empty; leave it out" in result.stderr


def test_what_follows_two_dashes_is_the_scripts(asked: Asked) -> None:
    call("run", "agent.py", "--quiet", "--", "--question", "why?", "--quiet")
    ((request, settings),) = asked
    assert request.script_args == ("--question", "why?", "--quiet")
    assert settings.quiet


def test_a_configuration_file_names_the_graph(asked: Asked) -> None:
    assert call("run", "-c", "app/langgraph.json", "chat", "--input", "in.jsonl").exit_code == 0
    assert call("run", "--input", "x", env={"AUTELLIX_CONFIG": "langgraph.json"}).exit_code == 0
    (named, _), (unnamed, _) = asked
    assert (named.config, named.target) == (Path("app/langgraph.json"), "chat")
    assert (unnamed.config, unnamed.target) == (Path("langgraph.json"), "")


def test_with_nothing_to_run_the_ways_to_say_it_are_named(asked: Asked) -> None:
    result = call("run")
    assert result.exit_code == 2
    assert "Nothing to run" in result.output
    assert not asked


def test_model_names_add_up_and_must_be_pairs(asked: Asked) -> None:
    call("run", "agent.py", "--model-map", "gpt-4o=small", "--model-map", "o3=small")
    assert asked[0][1].model_map == {"gpt-4o": "small", "o3": "small"}
    result = call("run", "agent.py", env={"AUTELLIX_MODEL_MAP": "gpt-4o="})
    assert result.exit_code == 2
    assert "--model-map takes NAME=TARGET" in result.output


def test_engine_arguments_add_up(asked: Asked) -> None:
    call("run", "agent.py", "--engine-arg", "max_num_seqs=4", "--engine-arg", "dtype=half")
    assert asked[0][1].engine_args == {"max_num_seqs": 4, "dtype": "half"}


def test_every_option_can_be_a_variable_and_the_command_line_wins(asked: Asked) -> None:
    env = {
        "AUTELLIX_POLICY": "fcfs",
        "AUTELLIX_INPUT": "in.jsonl",
        "AUTELLIX_CONCURRENCY": "2",
        "AUTELLIX_TRACE": "t.json",
        "AUTELLIX_ENGINE_ARG": "max_num_seqs=4 dtype=half",
        "AUTELLIX_JSON": "1",
    }
    call("run", "agent.py", "--policy", "mlfq", env=env)
    ((request, settings),) = asked
    assert (request.input, request.concurrency, request.as_json) == ("in.jsonl", 2, True)
    assert (settings.policy, settings.trace) == ("mlfq", Path("t.json"))
    assert settings.engine_args == {"max_num_seqs": 4, "dtype": "half"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--policy", "lifo"), 2, "no policy 'lifo'"),
        (("--engine-arg", "oops"), 2, "KEY=VALUE"),
        (("--concurrency", "0"), 2, "concurrency"),
        (("--polcy", "plas"), 2, "polcy"),
    ],
)
def test_impossible_options_are_refused(
    asked: Asked, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = call("run", "agent.py", *arguments)
    assert (result.exit_code, said in result.output) == (code, True)
    assert not asked
    assert "Traceback" not in result.output


def raising(error: BaseException) -> Callable[..., int]:
    def run_request(*given: Any) -> int:
        raise error

    return run_request


@pytest.mark.parametrize(
    ("error", "code"),
    [(TargetError("no [graph] here"), 2), (EngineStartError("too [small]"), 1)],
)
def test_our_errors_are_one_paragraph_and_a_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    monkeypatch.setattr(run_command, "run_request", raising(error))
    result = call("run", "agent.py")
    assert result.exit_code == code
    assert result.output == f"error: {error}\n"


def test_debug_lets_the_error_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "run_request", raising(EngineStartError("small")))
    assert isinstance(call("run", "agent.py", "--debug").exception, EngineStartError)


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_the_runs_code_is_the_commands(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(run_command, "run_request", lambda *given: code)
    monkeypatch.setattr(os, "_exit", sys.exit)  # where threads are left, as they may be here
    assert call("run", "agent.py").exit_code == code


def test_an_interrupted_run_does_not_wait_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(run_command, "run_request", lambda *given: 130)
    monkeypatch.setattr(os, "_exit", ended.append)
    release = threading.Event()
    left = threading.Thread(target=release.wait)
    left.start()
    call("run", "agent.py")
    release.set()
    left.join()
    assert ended == [130]


def test_what_nobody_expected_is_one_paragraph_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "run_request", raising(RuntimeError("odd [thing]")))
    result = call("run", "agent.py")
    assert result.exit_code == 1
    assert result.output.startswith("error: RuntimeError: odd [thing]")
    assert "--debug" in result.output
    assert isinstance(call("run", "agent.py", "--debug").exception, RuntimeError)


def test_an_interruption_before_the_run_has_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "run_request", raising(KeyboardInterrupt()))
    assert call("run", "agent.py").exit_code == 130


def test_help_shows_what_there_is_with_examples() -> None:
    text = call("run", "--help").output
    for word in ("--input", "--policy", "--engine-arg", "--trace", "--live", "Examples"):
        assert word in text
    assert "doctor" in call("--help").output
    assert call("--version").output.startswith("autellix")


@pytest.mark.parametrize(
    "arguments",
    [("run", "a.py", "--concurrency", "0"), ("run", "--refresh"), ("nonsense",), ("trace", "x")],
)
def test_what_cannot_be_parsed_is_one_paragraph_as_all_errors_are(
    arguments: tuple[str, ...],
) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
    assert "─" not in result.stderr


def test_a_trace_that_cannot_be_written_is_a_wrong_option(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("")
    result = call("run", str(script), "--trace", str(tmp_path / "no" / "run.json"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
