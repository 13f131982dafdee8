"""Every example over its own inputs on the real engine: all done, with the DAG it is made for."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.run_command import RunRequest, run_request
from autellix.runtime.settings import Settings
from autellix.tracing.document import load_schema
from tests.conftest import idle_stats

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.timeout(240)

Program = dict[str, Any]
Play = Callable[[str], list[tuple[Any, Any, Program]]]


@pytest.fixture
def play(
    engine_host: EngineHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Play:
    """Runs an example; each input with its output and its program in the trace."""
    monkeypatch.chdir(tmp_path)

    def play(name: str) -> list[tuple[Any, Any, Program]]:
        for file in EXAMPLES.glob(f"{name}.*"):
            shutil.copy(file, tmp_path)
        request = RunRequest(target=f"{name}.py", input=f"{name}.jsonl", as_json=True)
        trace = tmp_path / "trace.json"
        assert run_request(request, Settings(quiet=True, trace=trace), engine_host) == 0
        idle_stats(engine_host)
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        document = json.loads(trace.read_text())
        jsonschema.validate(document, load_schema())
        programs = {program["id"]: program for program in document["programs"]}
        inputs = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert {row["status"] for row in rows} == {"done"}
        assert len(rows) == len(inputs) == len(programs)
        for program in programs.values():
            assert program["status"] == "done"
            assert {call["status"] for call in program["calls"]} == {"done"}
        return [
            (json.loads(inputs[row["line"] - 1]), row["output"], programs[row["program"]])
            for row in rows
        ]

    return play


def shape(program: Program) -> list[tuple[str, set[int]]]:
    """Per call its node and the positions of its parents."""
    at = {call["id"]: n for n, call in enumerate(program["calls"])}
    return [
        (call["node"], {at[parent["id"]] for parent in call["parents"]})
        for call in program["calls"]
    ]


def test_react_agent_is_a_chain_of_calls_and_tools(play: Play) -> None:
    for _, output, program in play("react_agent"):
        calls = program["calls"]
        kinds = [call["kind"] for call in calls]
        assert output["messages"][-1]["content"].strip()
        assert kinds == ["llm", "tool"] * (len(calls) // 2) + ["llm"]
        assert [parents for _, parents in shape(program)] == [
            {n - 1} if n else set() for n in range(len(calls))
        ]
        assert (calls[0]["node"], calls[-1]["node"]) == ("act", "answer")
        assert len(program["critical_path"]) >= kinds.count("llm")
        assert program["critical_path_s"] == pytest.approx(program["service_s"], abs=1e-6)


def test_map_reduce_is_a_fan_and_a_join(play: Play) -> None:
    for task, output, program in play("map_reduce"):
        workers = len(task["sections"])
        assert output["summary"].strip()
        assert len(output["points"]) == workers
        assert shape(program) == [
            *[("condense", set())] * workers,
            ("join", set(range(workers))),
        ]
        assert {parent["kind"] for parent in program["calls"][-1]["parents"]} == {"trigger"}
        assert program["critical_path_s"] < program["service_s"]


def test_tree_search_is_a_sequence_of_fans(play: Play) -> None:
    for _, output, program in play("tree_search"):
        assert output["answer"].strip()
        nodes = [call["node"] for call in program["calls"]]
        assert Counter(nodes) == {"expand": 6, "evaluate": 6, "reflect": 2}
        assert nodes == [*["expand"] * 3, *["evaluate"] * 3, "reflect"] * 2
        expected = [set(), {0, 1, 2}, {3, 4, 5}, {6}, {7, 8, 9}, {10, 11, 12}]
        parents = [parents for _, parents in shape(program)]
        assert [parents[n] for n in (0, 3, 6, 7, 10, 13)] == expected
        assert program["critical_path_s"] < program["service_s"]


def test_chatbot_turns_follow_each_other_in_one_program(play: Play) -> None:
    for conversation, output, program in play("chatbot"):
        turns = len(conversation["turns"])
        assert len(output["said"]) == turns
        assert all(said.strip() for said in output["said"])
        assert shape(program) == [("reply", {n - 1} if n else set()) for n in range(turns)]


def test_plain_python_is_two_calls_at_once_and_one_that_needs_both(play: Play) -> None:
    for _, output, program in play("plain_python"):
        assert output["letter"].strip()
        assert output["title"].strip()
        assert shape(program) == [(None, set()), (None, set()), (None, {0, 1})]
