"""Real processes: what is on the terminal, how a run ends, and that nothing outlives it.

Every command starts a session of its own, by which what it leaves behind is found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import psutil
import pytest

from autellix.tracing.document import load_schema

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
STARTED_WITHIN_S, ENDED_WITHIN_S, GONE_WITHIN_S = 90.0, 30.0, 15.0
# Words of vLLM's, torch's and our own logs, of which none may come to the terminal.
ENGINE_WORDS = ("INFO", "WARNING", "EngineCore", "vllm", "Triton", "Loading", "Traceback")


class Runs:
    """Starts commands in a folder of their own and knows what they leave behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions: list[int] = []
        # Short, since sockets lie in it.
        self.temporary = TemporaryDirectory(prefix="runs-")
        self.trace = folder / "trace.json"
        self.part = folder / "trace.json.part"

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        arguments = "max_num_seqs=4 max_model_len=1024"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": self.temporary.name,
            "AUTELLIX_TRACE": str(self.trace),
            "AUTELLIX_ENGINE_ARG": arguments,
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.sessions.append(process.pid)
        return process

    def run(self, *command: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*command, **variables)
        out, err = process.communicate(timeout=STARTED_WITHIN_S)
        return process.returncode, out, err

    def living(self) -> list[psutil.Process]:
        """All processes of this test that live now: they share their sessions."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) in self.sessions:
                    found.append(process)
            except (psutil.Error, ProcessLookupError):
                continue
        return [p for p in found if p.status() != psutil.STATUS_ZOMBIE]

    def check_gone(self) -> None:
        """Within a moment no process and no temporary file of the engine is left."""
        until(lambda: not self.living(), GONE_WITHIN_S, lambda: f"left: {self.living()}")
        left = [path.name for path in Path(self.temporary.name).iterdir()]
        assert [name for name in left if not name.startswith("torchinductor_")] == []

    def document(self) -> dict[str, Any]:
        document = json.loads(self.trace.read_text())
        jsonschema.validate(document, load_schema())
        assert not self.part.exists()
        return document


def until(
    holds: Callable[[], bool],
    within_s: float,
    otherwise: Callable[[], str] = lambda: "it never came to that",
) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(tmp_path)
    yield runs
    for process in runs.living():
        process.kill()
    runs.temporary.cleanup()


ENDLESS = """
    from autellix import ChatAutellix

    MODEL = ChatAutellix(max_tokens=900, model_kwargs={"ignore_eos": True})

    async def main(number):
        while True:
            await MODEL.ainvoke(f"Story {number}")
"""


def during(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Wait until something holds while the process lives."""

    def lives_and_holds() -> bool:
        assert process.poll() is None, process.communicate()
        return holds()

    until(lives_and_holds, STARTED_WITHIN_S)


def call_is_under_way(runs: Runs) -> bool:
    return runs.part.exists() and "call_started" in runs.part.read_text()


def engine_is_starting(runs: Runs) -> bool:
    return any("--multiprocessing-fork" in words_of(process) for process in runs.living())


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def start_endless(runs: Runs, **variables: str) -> subprocess.Popen[str]:
    runs.write("endless.py", ENDLESS)
    runs.write("two.jsonl", "1\n2\n")
    command = ("-m", "autellix", "run", "endless.py", "--input", "two.jsonl")
    process = runs.start(*command, **variables)
    during(process, lambda: call_is_under_way(runs))
    return process


# ── a plain script ───────────────────────────────────────────────────────────────────────────


def test_a_plain_script_without_a_guard_runs_once_and_leaves_nothing(runs: Runs) -> None:
    runs.write(
        "agent.py",
        """
        import os
        from autellix import ChatAutellix
        from langgraph.graph import START, MessagesState, StateGraph

        print("top level of", __name__)
        model = ChatAutellix(temperature=0, max_tokens=8)

        def reply(state):
            return {"messages": [model.invoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node(reply).add_edge(START, "reply").compile()
        answer = graph.invoke({"messages": [("user", "What is the capital of France?")]})
        print(answer["messages"][-1].text)
        """,
    )
    code, out, err = runs.run("agent.py")
    runs.check_gone()
    assert code == 0, err
    first, answer = out.splitlines()
    assert first == "top level of __main__"
    assert "Paris" in answer
    assert not [word for word in ENGINE_WORDS if word in err], err
    (program,) = runs.document()["programs"]
    (call,) = program["calls"]
    assert (program["status"], call["node"], call["status"]) == ("done", "reply", "done")
    assert call["service_s"] > 0


@pytest.mark.slow
def test_an_exception_in_a_script_ends_with_code_1_and_leaves_nothing(runs: Runs) -> None:
    runs.write(
        "fails.py",
        """
        import autellix
        with autellix.program("fails"):
            autellix.ChatAutellix(max_tokens=2).invoke("hi")
            raise ValueError("after the first call")
        """,
    )
    code, _, err = runs.run("fails.py")
    runs.check_gone()
    assert code == 1
    assert "ValueError: after the first call" in err
    (program,) = runs.document()["programs"]
    assert program["status"] == "failed"


# ── signals ──────────────────────────────────────────────────────────────────────────────────


def test_ctrl_c_stops_the_run_writes_the_trace_and_leaves_nothing(runs: Runs) -> None:
    process = start_endless(runs)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    _, err = process.communicate(timeout=ENDED_WITHIN_S)
    runs.check_gone()
    assert process.returncode == 130
    programs = runs.document()["programs"]
    assert [program["status"] for program in programs] == ["cancelled", "cancelled"]
    assert {program["calls"][-1]["status"] for program in programs} == {"aborted"}
    assert "2 cancelled" in err
    assert not [word for word in ENGINE_WORDS if word in err], err


def test_nothing_outlives_a_run_that_is_killed(runs: Runs) -> None:
    process = start_endless(runs)
    assert len(runs.living()) > 1
    process.kill()
    process.communicate(timeout=ENDED_WITHIN_S)
    runs.check_gone()
    assert "call_started" in runs.part.read_text()


@pytest.mark.slow
def test_nothing_outlives_a_run_of_two_replicas_that_is_killed(runs: Runs) -> None:
    """Neither engine cores nor their workers, which are processes of their own here."""
    arguments = "max_num_seqs=4 max_model_len=1024 distributed_executor_backend=mp"
    process = start_endless(runs, AUTELLIX_REPLICAS="2", AUTELLIX_ENGINE_ARG=arguments)
    assert len(runs.living()) >= 5
    process.kill()
    process.communicate(timeout=ENDED_WITHIN_S)
    runs.check_gone()


@pytest.mark.slow
def test_nothing_outlives_a_run_that_is_killed_while_its_engine_starts(runs: Runs) -> None:
    runs.write("endless.py", ENDLESS)
    process = runs.start("-m", "autellix", "run", "endless.py", "--input", "1")
    during(process, lambda: engine_is_starting(runs))
    process.kill()
    process.communicate(timeout=ENDED_WITHIN_S)
    runs.check_gone()


@pytest.mark.slow
@pytest.mark.parametrize("engine_process", [False, True], ids=["importing", "engine started"])
def test_ctrl_c_while_the_engine_starts_ends_at_once(runs: Runs, engine_process: bool) -> None:
    runs.write("endless.py", ENDLESS)
    process = runs.start("-m", "autellix", "run", "endless.py", "--input", "1")
    assert process.stderr is not None
    assert "starting" in process.stderr.readline()
    if engine_process:
        during(process, lambda: engine_is_starting(runs))
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=ENDED_WITHIN_S)
    runs.check_gone()
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.slow
def test_sigterm_ends_a_run_whose_programs_block_their_threads(runs: Runs) -> None:
    runs.write(
        "blocks.py",
        """
        import time
        from autellix import ChatAutellix

        def main(number):
            ChatAutellix(max_tokens=2).invoke("hi")
            open(f"blocked-{number}", "w").close()
            time.sleep(1000)
        """,
    )
    process = runs.start("-m", "autellix", "run", "blocks.py", "--input", "1")
    during(process, (runs.folder / "blocked-1").exists)
    process.terminate()
    process.communicate(timeout=ENDED_WITHIN_S)
    runs.check_gone()
    assert process.returncode == 130
    (program,) = runs.document()["programs"]
    assert program["status"] == "cancelled"


# ── engines that end, or never begin ─────────────────────────────────────────────────────────


def test_an_unknown_model_is_one_paragraph(runs: Runs) -> None:
    runs.write("plain.py", "def main(input): return input")
    command = ("-m", "autellix", "run", "plain.py", "--input", "1", "--model", "nosuch/model")
    code, out, err = runs.run(*command, HF_HUB_OFFLINE="1")
    runs.check_gone()
    assert (code, out) == (1, "")
    told = " ".join(err.split())
    assert "error: There is no model 'nosuch/model'" in told
    assert "--model" in told
    assert "Traceback" not in err
    assert not [word for word in ENGINE_WORDS[:3] if word in err], err


@pytest.mark.slow
def test_stopping_and_draining_an_engine_keep_the_contract(runs: Runs) -> None:
    runs.write(
        "stops.py",
        """
        import asyncio
        import threading
        from autellix import ChatAutellix
        from autellix.errors import EngineStoppedError
        from autellix.runtime.session import current_session

        model = ChatAutellix(max_tokens=600, model_kwargs={"ignore_eos": True})
        ended = []

        def ask(words):
            try:
                ended.append(bool(model.invoke(words, max_tokens=40).text))
            except EngineStoppedError as error:
                ended.append(str(error))

        def ask_long():
            try:
                for chunk in model.stream("long"):
                    first.set()
                ended.append("not stopped")
            except EngineStoppedError as error:
                ended.append(str(error))

        ask("hello")
        host = current_session().host
        first = threading.Event()
        long = threading.Thread(target=ask_long)
        long.start()
        first.wait()
        draining = host.loop.submit(host.engine.drain())
        while host.engine._accepting:
            pass
        ask("refused")
        assert not draining.done()
        host.stop()
        host.stop()
        long.join()
        draining.result(5)
        ask("gone")
        print(*ended, sep="|")
        """,
    )
    code, out, err = runs.run("stops.py")
    runs.check_gone()
    assert code == 0, err
    assert err == ""
    answered, refused, stopped, gone = out.strip().split("|")
    assert answered == "True"
    assert "no new calls" in refused
    assert "stopped while the call ran" in stopped
    assert "has been stopped" in gone
