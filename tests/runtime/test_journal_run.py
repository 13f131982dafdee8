"""``autellix run`` with a checkpointer: threads are asked, answered, suspended and resumed."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autellix.errors import JournalError, SettingsError, UsageError
from autellix.runtime import run_command
from autellix.runtime.engine_loop import EngineLoop
from autellix.runtime.journal import Journal
from autellix.runtime.journal_account import Account
from autellix.runtime.protocols import EngineStats
from autellix.runtime.run_command import RunRequest, run_request
from autellix.runtime.settings import Settings

AGENT = """
    import os, signal
    from langgraph.graph import START
    from langgraph.types import interrupt
    from autellix.runtime.session import current_session
    from tests.integrations.checkpointing import CostingModel, State
    from langgraph.graph import StateGraph

    class Run:
        tickets = []
        session = property(lambda self: current_session())

    MODEL = CostingModel(run=Run())

    def first(state):
        return {"xs": [MODEL.invoke("1.0").content]}

    def stopped(state):
        MODEL.invoke("2.0")
        try:
            os.close(os.open("stopped", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:  # a person presses Ctrl-C now, once for all programs
            os.kill(os.getpid(), signal.SIGINT)
        return {"xs": ["2.0"]}

    def ask(state):
        return {"xs": [interrupt("Which way?"), MODEL.invoke("4.0").content]}

    def chain(*nodes):
        graph = StateGraph(State).add_sequence(nodes)
        return graph.add_edge(START, nodes[0].__name__)

    asking = chain(first, ask).compile()
    stopping = chain(first, stopped, ask)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a target on an engine that nobody calls; code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(textwrap.dedent(AGENT))
    monkeypatch.setattr(run_command, "OpenAIRoute", NoRoute)
    loop = EngineLoop()
    host: Any = SimpleNamespace(
        loop=loop,
        engine=SimpleNamespace(
            kind="none",
            model="none",
            replicas=1,
            stats_of_replicas=no_stats,
            forget=lambda program: None,
        ),
        chat=SimpleNamespace(
            send_receipts_to=lambda sink: None,
            send_prompts_to=lambda sink: None,
            send_contents_to=lambda sink: None,
            settled=nothing,
        ),
        send_states_to=lambda sink: None,
        stop=lambda: None,
    )

    def run(target: str, **more: Any) -> tuple[int, str, str]:
        names = ("input", "thread_ids", "resume", "as_json", "script_args")
        request = RunRequest(target=target, **{n: more.pop(n) for n in names if n in more})
        settings = {"checkpointer": "sqlite:threads.db", "journal": tmp_path / "j.sqlite"}
        code = run_request(request, Settings(**{**settings, **more}), host)
        out, err = capsys.readouterr()
        return code, out, " ".join(err.split())

    yield run
    loop.close()


async def nothing() -> None:
    pass


async def no_stats() -> list[EngineStats]:
    return [EngineStats()]


class NoRoute:
    url, key, base_url = "http://nowhere", "none", "http://nowhere/v1"

    def __init__(self, *given: Any) -> None:
        pass

    def __enter__(self) -> NoRoute:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass


def account(folder: Path, thread: str) -> Account:
    journal = Journal(folder / "j.sqlite")
    (ref,) = [ref for ref in journal.threads() if ref.thread == thread]
    history = journal.history(ref)
    journal.close()
    assert history is not None
    return history.account


Run = Callable[..., tuple[int, str, str]]


def test_a_person_is_asked_and_answers_in_a_second_command(run: Run, tmp_path: Path) -> None:
    code, out, err = run("agent.py:asking", input='{"xs": []}', thread_ids=("T",))
    assert (code, out) == (0, "")
    assert "T asks: Which way?" in err
    command = "autellix run agent.py:asking --checkpointer sqlite:threads.db --thread-id T"
    assert f"{command} --resume ANSWER" in err
    assert "(1 interrupted)" in err
    code, out, err = run("agent.py:asking", thread_ids=("T",), resume="left")
    assert code == 0
    assert out == 'T: {"xs": ["1.0", "left", "4.0"]}\n'
    found = account(tmp_path, "T")
    assert (found.calls, found.service_s, found.interrupts, found.turns) == (2, 5.0, 1, 2)


def test_an_answer_is_json_where_it_can_be(run: Run) -> None:
    run("agent.py:asking", input='{"xs": []}', thread_ids=("T",))
    _, out, _ = run("agent.py:asking", thread_ids=("T",), resume='{"left": 2}')
    assert json.loads(out.removeprefix("T: "))["xs"][1] == {"left": 2}


def test_ctrl_c_suspends_at_the_next_superstep_and_the_thread_goes_on(
    run: Run, tmp_path: Path
) -> None:
    code, out, err = run("agent.py:stopping", input='{"xs": []}', thread_ids=("T",))
    assert (code, out) == (130, "")
    assert "suspending" in err
    assert "suspended: T; go on with: autellix run agent.py:stopping" in err
    assert account(tmp_path, "T").service_s == 3.0
    code, out, err = run("agent.py:stopping", thread_ids=("T",))
    assert code == 0
    assert "T asks: Which way?" in err  # and the node that was stopped has not run again
    assert account(tmp_path, "T").service_s == 3.0


def test_ctrl_c_cancels_the_lines_that_have_not_begun(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"xs": []}\n' * 12)
    code, out, err = run("agent.py:stopping", input="tasks.jsonl", thread_ids=("T",), as_json=True)
    rows = {row["line"]: row for row in map(json.loads, out.splitlines())}
    assert code == 130
    assert len(rows) == 12
    statuses = [rows[line]["status"] for line in sorted(rows)]
    assert set(statuses) <= {"suspended", "cancelled", "interrupted"}
    assert statuses[-1] == "cancelled"
    assert f"{statuses.count('cancelled')} of 12 inputs did not come to their end" in err
    suspended = [row["thread"] for row in rows.values() if row["status"] == "suspended"]
    assert suspended
    code, out, _ = run("agent.py:stopping", thread_ids=tuple(suspended), as_json=True)
    assert [json.loads(row)["status"] for row in out.splitlines()] == (
        ["interrupted"] * len(suspended)
    )


def test_a_script_is_suspended_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        textwrap.dedent(AGENT)
        + "\ngraph = stopping.compile()"
        + "\ngraph.invoke({'xs': []}, {'configurable': {'thread_id': 'S'}})\nprint('not reached')\n"
    )
    code, out, err = run("script.py")
    assert (code, out) == (130, "")
    assert "its threads can go on" in err
    assert account(tmp_path, "S").service_s == 3.0


def test_without_an_id_every_program_has_a_thread_of_its_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"xs": []}\n' * 3)
    code, out, _ = run("agent.py:asking", input="tasks.jsonl", as_json=True)
    rows = [json.loads(row) for row in out.splitlines()]
    assert code == 0
    assert len({row["thread"] for row in rows}) == 3
    assert all(row["program"] == row["thread"] for row in rows)


def test_a_further_input_is_a_further_turn(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        run("agent.py:asking", input='{"xs": []}', thread_ids=("T",))
    assert account(tmp_path, "T").turns == 2


def test_threads_in_memory_need_no_file(run: Run, tmp_path: Path) -> None:
    code, _, err = run("agent.py:asking", input='{"xs": []}', checkpointer="memory")
    assert code == 0
    assert "asks: Which way?" in err
    assert not (tmp_path / "j.sqlite").exists()


def test_what_cannot_be_is_told_before_the_engine_starts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("def main(input): return input\n")
    with pytest.raises(UsageError, match="has no checkpointer"):
        run("agent.py:asking", thread_ids=("T",), checkpointer=None)
    with pytest.raises(UsageError, match="is a function"):
        run("plain.py", input="1", thread_ids=("T",))
    with pytest.raises(UsageError, match="give --thread-id"):
        run("agent.py:asking", input="{}", resume="x")
    with pytest.raises(UsageError, match="2 thread ids for 1 inputs"):
        run("agent.py:asking", input="{}", thread_ids=("T", "U"))
    with pytest.raises(SettingsError, match="no checkpointer 'redis'"):
        run("agent.py:asking", input="{}", checkpointer="redis")
    (tmp_path / "folder").mkdir()
    with pytest.raises(JournalError, match="cannot be opened"):
        run("agent.py:asking", input="{}", journal=tmp_path / "folder")


def test_a_thread_that_there_is_not_cannot_go_on(run: Run) -> None:
    code, _, err = run("agent.py:asking", thread_ids=("nobody",))
    assert code == 1
    assert "There is no thread nobody" in err
