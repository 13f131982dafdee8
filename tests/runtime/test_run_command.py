"""``autellix run`` in this process, on the shared engine: outcomes, messages, traces."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autellix.errors import (
    EngineStartError,
    InputError,
    SettingsError,
    TargetError,
    UsageError,
)
from autellix.runtime import engine_start
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.run_command import RunRequest, run_request
from autellix.runtime.settings import Settings
from autellix.tracing.document import load_schema
from tests.conftest import idle_stats

Write = Callable[[str, str], Path]

AGENT = """
    from autellix import ChatAutellix
    from langgraph.graph import START, MessagesState, StateGraph

    MODEL = ChatAutellix(temperature=0, max_tokens=12)

    async def first(state):
        if state["messages"][-1].text == "fail":
            raise ValueError("no such luck")
        return {"messages": [await MODEL.ainvoke(state["messages"])]}

    async def second(state):
        return {"messages": [await MODEL.ainvoke(state["messages"] + [("user", "Go on.")])]}

    def builder():
        made = StateGraph(MessagesState).add_node("first", first).add_node("second", second)
        return made.add_edge(START, "first").add_edge("first", "second")
"""
ONE_GRAPH = AGENT + "\n    graph = builder().compile()\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def run(engine_host: EngineHost) -> Iterator[Callable[..., int]]:
    """Runs a target on the shared engine; nothing of it is left there afterwards."""

    def run(
        target: str, *, input: str | None = None, args: tuple[str, ...] = (), **more: Any
    ) -> int:
        request = RunRequest(target=target, input=input, script_args=args)
        for name in ("concurrency", "as_json"):
            if name in more:
                request = replace(request, **{name: more.pop(name)})
        return run_request(request, Settings(**{"quiet": False, **more}), engine_host)

    yield run
    idle_stats(engine_host)


@pytest.fixture
def refuse() -> Callable[..., str]:
    """Runs a target that cannot be; the message. An engine that started would be an error."""

    def refuse(target: str, input: str | None = None, **more: Any) -> str:
        request = RunRequest(target=target, input=input, **more)
        with pytest.raises(UsageError) as raised:
            run_request(request, Settings(quiet=True), NoEngine())
        assert "\n" not in str(raised.value)
        return f"{type(raised.value).__name__}: {raised.value}"

    return refuse


class NoEngine(EngineHost):
    engine: Any = object()

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the engine was asked for {name} although the request was wrong")


def say(text: str) -> str:
    return json.dumps({"messages": [["user", text]]})


def lines(*values: str) -> str:
    return "".join(value + "\n" for value in values)


# ── one program per input ────────────────────────────────────────────────────────────────────


def test_every_line_is_a_program_and_all_are_done(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("agent.py", ONE_GRAPH)
    write("tasks.jsonl", lines(say("Say one."), say("Say two."), say("Say three.")))
    assert run("agent.py", input="tasks.jsonl") == 0
    out, err = capsys.readouterr()
    answered = {line.split(":")[0] for line in out.splitlines()}
    assert len(answered) == 3
    assert all(name.startswith("agent-") for name in answered)
    assert "3 programs (3 done)" in err


def test_a_single_document_and_a_function_will_do(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("plain.py", "def main(input): return {'twice': input['n'] * 2}")
    assert run("plain.py", input='{"n": 21}') == 0
    assert '{"twice": 42}' in capsys.readouterr().out


def test_results_as_json_lines(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("agent.py", ONE_GRAPH)
    write("tasks.jsonl", lines(say("Say one."), "nonsense", say("fail")))
    assert run("agent.py", input="tasks.jsonl", as_json=True) == 1
    rows = sorted(map(json.loads, capsys.readouterr().out.splitlines()), key=lambda r: r["line"])
    assert [(row["line"], row["status"]) for row in rows] == [
        (1, "done"),
        (2, "failed"),
        (3, "failed"),
    ]
    assert rows[0]["output"]["messages"][-1]["content"]
    assert "line 2" in rows[1]["error"]
    assert "no such luck" in rows[2]["error"]


def test_a_line_that_cannot_be_read_is_named_and_the_others_run(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("plain.py", "def main(input): return input")
    write("tasks.jsonl", lines("1", "{oops", "3"))
    assert run("plain.py", input="tasks.jsonl") == 1
    out, err = capsys.readouterr()
    assert {line.split(": ")[1] for line in out.splitlines()} == {"1", "3"}
    assert "tasks.jsonl, line 2, column 2" in " ".join(err.split())


def test_a_program_that_raises_is_told_with_its_line_and_the_others_finish(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("agent.py", ONE_GRAPH)
    write("tasks.jsonl", lines(say("fail"), say("Say two.")))
    assert run("agent.py", input="tasks.jsonl") == 1
    out, err = capsys.readouterr()
    told = " ".join(err.split())
    assert len(out.splitlines()) == 1
    assert "ValueError: no such luck" in told
    assert "agent.py line 9" in told
    assert "Traceback" not in err
    assert "failed" in told


def test_debug_shows_the_traceback(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("plain.py", "def main(input): return 1 / 0")
    assert run("plain.py", input="1", debug=True) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_prompt_longer_than_the_context_fails_its_program_only(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("agent.py", ONE_GRAPH)
    write("tasks.jsonl", lines(say("long " * 3000), say("Say two.")))
    assert run("agent.py", input="tasks.jsonl") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "ContextLengthError" in err
    assert "Shorten" in " ".join(err.split())
    assert "Traceback" not in err


def test_a_module_is_run_by_its_name(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("module_for_run.py", "def start(input): return input + 1")
    assert run("module_for_run:start", input="1") == 0
    assert "start-" in capsys.readouterr().out


def test_quiet_shows_answers_only(
    write: Write, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("plain.py", "def main(input): return input")
    assert run("plain.py", input="1", quiet=True) == 0
    assert capsys.readouterr().err == ""


# ── the trace ────────────────────────────────────────────────────────────────────────────────


def traced(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text())
    jsonschema.validate(document, load_schema())
    assert not path.with_name(path.name + ".part").exists()
    return document


def check_attained(program: dict[str, Any]) -> None:
    """Attained service and critical path follow from the calls' service and parents."""
    attained: dict[str, float] = {}
    through: dict[str, float] = {}
    for call in program["calls"]:
        above = [through[parent["id"]] for parent in call["parents"]]
        attained[call["id"]] = max(above, default=0.0)
        own = call["service_s"] if call["kind"] == "llm" else 0.0
        through[call["id"]] = attained[call["id"]] + own
        assert call["attained_s"] == pytest.approx(attained[call["id"]], abs=1e-6)
    longest = max(through.values())
    assert program["critical_path_s"] == pytest.approx(longest, abs=1e-6)
    assert through[program["critical_path"][-1]] == pytest.approx(longest, abs=1e-6)
    total = sum(call["service_s"] for call in program["calls"])
    assert program["service_s"] == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("policy", ["fcfs", "mlfq", "plas", "atlas"])
def test_the_trace_follows_the_schema_and_its_sums_agree(
    write: Write, run: Callable[..., int], tmp_path: Path, policy: str
) -> None:
    write("agent.py", ONE_GRAPH)
    write("tasks.jsonl", lines(say("Say one."), say("Say two.")))
    trace = tmp_path / "trace.json"
    assert run("agent.py", input="tasks.jsonl", trace=trace, policy=policy, quiet=True) == 0
    document = traced(trace)
    assert document["policy"] == policy
    assert len(document["programs"]) == 2
    for program in document["programs"]:
        first, second = program["calls"]
        assert [call["node"] for call in (first, second)] == ["first", "second"]
        assert [p["id"] for p in second["parents"]] == [first["id"]]
        assert program["critical_path"] == [first["id"], second["id"]]
        assert first["service_s"] > 0
        check_attained(program)


def test_programs_run_at_once_and_keep_their_calls_apart(
    write: Write, run: Callable[..., int], tmp_path: Path
) -> None:
    write("agent.py", ONE_GRAPH)
    write("tasks.jsonl", lines(*(say(f"Say {n}.") for n in range(4))))
    trace = tmp_path / "trace.json"
    assert run("agent.py", input="tasks.jsonl", trace=trace, concurrency=4, quiet=True) == 0
    programs = traced(trace)["programs"]
    assert max(p["start_s"] for p in programs) < min(p["end_s"] for p in programs)
    for program in programs:
        own = {call["id"] for call in program["calls"]}
        parents = {parent["id"] for call in program["calls"] for parent in call["parents"]}
        assert parents < own


def test_one_at_a_time_is_kept_to(write: Write, run: Callable[..., int], tmp_path: Path) -> None:
    write("agent.py", ONE_GRAPH)
    write("tasks.jsonl", lines(*(say(f"Say {n}.") for n in range(3))))
    trace = tmp_path / "trace.json"
    assert run("agent.py", input="tasks.jsonl", trace=trace, concurrency=1, quiet=True) == 0
    programs = sorted(traced(trace)["programs"], key=lambda p: p["start_s"])
    assert all(a["end_s"] <= b["start_s"] for a, b in pairwise(programs))


def test_failed_programs_are_in_the_trace(
    write: Write, run: Callable[..., int], tmp_path: Path
) -> None:
    write("agent.py", ONE_GRAPH)
    trace = tmp_path / "trace.json"
    assert run("agent.py", input=say("fail"), trace=trace, quiet=True) == 1
    (program,) = traced(trace)["programs"]
    assert (program["status"], program["calls"]) == ("failed", [])
    assert "no such luck" in program["error"]


# ── scripts ──────────────────────────────────────────────────────────────────────────────────


def test_a_script_runs_as_main_with_its_own_arguments(
    write: Write, run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        "script.py",
        """
        import sys
        import autellix
        from autellix import ChatAutellix

        MODEL = ChatAutellix(temperature=0, max_tokens=4)

        @autellix.program("asked")
        def ask(text):
            return MODEL.invoke(text).text

        if __name__ == "__main__":
            print(sys.argv[1:], bool(ask("Say one.")), bool(ask("Say two.")))
            MODEL.invoke("Say three.")
        """,
    )
    trace = tmp_path / "trace.json"
    assert run("script.py", args=("--deep", "3"), trace=trace) == 0
    assert capsys.readouterr().out == "['--deep', '3'] True True\n"
    programs = {p["name"]: p for p in traced(trace)["programs"]}
    assert {name: p["status"] for name, p in programs.items()} == {"asked": "done", "main": "done"}
    assert len(programs["main"]["calls"]) == 1


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('gone')", 1, "gone"),
        ("raise KeyError('k')", 1, "KeyError: 'k'"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_a_script_ends_with_its_own_code(
    write: Write,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    ending: str,
    code: int,
    said: str,
) -> None:
    write("script.py", f"import sys\n{ending}\n")
    assert run("script.py") == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


# ── what cannot be: told before an engine starts ─────────────────────────────────────────────


def test_a_target_that_cannot_be_run_is_told_why(write: Write, refuse: Callable[..., str]) -> None:
    write("agent.py", ONE_GRAPH)
    write("nothing.py", "x = 1")
    write("several.py", AGENT + "\n    a = builder().compile()\n    b = builder().compile()\n")
    assert "Did you mean agent.py?" in refuse("agnt.py", input=say("x"))
    assert "Did you mean agent.py?" in refuse("agnt.py")
    write("tasks.jsonl", "1")
    assert "Give it as --input" in refuse("tasks.jsonl")
    assert "There is no program in nothing.py" in refuse("nothing.py", input="1")
    assert "several graphs: a, b" in refuse("several.py", input=say("x"))


def test_inputs_that_cannot_be_read_are_told_why(write: Write, refuse: Callable[..., str]) -> None:
    write("agent.py", ONE_GRAPH)
    write("empty.jsonl", "")
    assert "no valid JSON" in refuse("agent.py", input="{oops")
    assert "is empty" in refuse("agent.py", input="empty.jsonl")
    assert "There is no input file" in refuse("agent.py", input="nothing.jsonl")
    write("nonsense.jsonl", lines("{oops", "no"))
    message = refuse("agent.py", input="nonsense.jsonl")
    assert "None of 2 lines can be read. The first: nonsense.jsonl, line 1, column 2" in message


def test_a_graph_without_inputs_and_a_script_with_both_are_told_what_to_do(
    write: Write, refuse: Callable[..., str]
) -> None:
    write("agent.py", ONE_GRAPH)
    assert "give --input" in refuse("agent.py:graph")
    assert "give --input" in refuse("some.module:graph")
    assert "are for scripts" in refuse("agent.py", input=say("x"), script_args=("--deep",))


def test_the_kinds_of_refusal_can_be_told_apart(write: Write) -> None:
    write("agent.py", ONE_GRAPH)
    for target, input, kind in [("agnt.py", "1", TargetError), ("agent.py", "{oops", InputError)]:
        with pytest.raises(kind):
            run_request(RunRequest(target=target, input=input), Settings(quiet=True), NoEngine())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"replicas": 99}, "99 replicas need about"),
        ({"kv_host_gib": 9999.0}, "asks for 9999 GiB of host memory"),
    ],
)
def test_what_the_machine_has_no_room_for_is_refused_before_anything_starts(
    write: Write,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setattr(engine_start, "is_cpu_build", lambda: True)
    target = write("agent.py", ONE_GRAPH)
    request = RunRequest(target=f"{target}:graph", input='{"messages": []}')
    with pytest.raises((EngineStartError, SettingsError), match=said):
        run_request(request, Settings(**asked))
    assert "starting" not in capsys.readouterr().err


def test_settings_that_cannot_be_are_refused_where_they_are_made() -> None:
    with pytest.raises(SettingsError, match=r"choose one of: .*atlas"):
        Settings(policy="fastest")
    with pytest.raises(SettingsError, match="choose one of: vllm"):
        Settings(engine="llama")
