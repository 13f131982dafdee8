"""Watching a run from another process: its routes, how it is found, what ``autellix top`` shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autellix.errors import AutellixError, UsageError
from autellix.runtime.cli import app
from autellix.runtime.engine_loop import EngineLoop
from autellix.runtime.http_server import HttpServer
from autellix.runtime.top_client import RemoteRun
from autellix.runtime.top_route import WatchedApplication
from autellix.runtime.top_runs import announced, known_runs
from autellix.tracing.snapshot import ProgramGraph, RunSnapshot
from autellix.tracing.view import RunOver
from tests.tracing import runs
from tests.tracing.terminals import ROOT, Process

KEY = "autellix-key"


class Watch:
    """A run of 25 programs."""

    def __init__(self) -> None:
        self.snapshot = runs.snapshot(25)

    async def asnapshot(self) -> RunSnapshot:
        return self.snapshot

    def graph(self, program: str) -> ProgramGraph | None:
        if program not in {row.id for row in self.snapshot.programs}:
            return None
        return replace(runs.tree_search(), program=program)


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"tea"})


class Served:
    """A run's server, and who may ask it."""

    def __init__(self) -> None:
        self.watch = Watch()
        self._loop = EngineLoop()
        self._server = HttpServer()
        self._server.start(WatchedApplication(inner, self.watch, KEY), self._loop)  # type: ignore[arg-type]
        self.url = self._server.url

    def get(self, path: str, key: str = KEY, method: str = "GET") -> tuple[int, Any]:
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refused:
            body = refused.read()
            return refused.code, json.loads(body) if body.startswith(b"{") else body

    def stop(self) -> None:
        self._server.stop()
        self._loop.close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    served = Served()
    yield served
    served.stop()


# ── the routes ───────────────────────────────────────────────────────────────────────────────────


def test_programs_come_page_by_page_with_totals_and_queues(served: Served) -> None:
    seen: list[str] = []
    offset = 0
    while offset is not None:
        status, page = served.get(f"/v1/programs?limit=10&offset={offset}&order=name")
        assert status == 200
        assert page["run"]["calls_done"] == 412
        assert page["queues"][0]["seats"] == 8
        seen += [row["id"] for row in page["programs"]]
        offset = page["next_offset"]
    assert seen == [f"tree_search-{n}" for n in range(1, 26)]


def test_a_program_comes_with_its_dag(served: Served) -> None:
    status, body = served.get("/v1/programs/tree_search-3")
    assert (status, body["program"], len(body["dag"]["nodes"])) == (200, "tree_search-3", 20)
    assert served.get("/v1/programs/nobody")[0] == 404


def test_queues_alone_are_there_too(served: Served) -> None:
    status, body = served.get("/v1/queues")
    assert (status, set(body)) == (200, {"run", "queues"})


def test_everything_else_is_the_runs_own(served: Served) -> None:
    assert served.get("/v1/models") == (418, b"tea")
    assert served.get("/v1/programsX")[0] == 418


@pytest.mark.parametrize("key", ["", "autellix-ke", "autellix-kez", "no ascii: \xe9"])
def test_nobody_watches_without_the_key(served: Served, key: str) -> None:
    for path in ("/v1/programs", "/v1/programs/tree_search-3", "/v1/queues"):
        assert served.get(path, key)[0] == 401


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "from 1 to 1000"),
        ("limit=1001", "from 1 to 1000"),
        ("offset=-1", "whole number"),
        ("limit=ten", "whole number"),
        ("order=luck", "choose one of: interest"),
        ("page=2", "no parameter 'page'"),
    ],
)
def test_impossible_questions_are_answered_with_what_is_possible(
    served: Served, query: str, said: str
) -> None:
    status, body = served.get(f"/v1/programs?{query}")
    assert status == 400
    assert said in body["error"]["message"]
    assert served.get("/v1/programs", method="DELETE")[0] == 405


# ── the client ───────────────────────────────────────────────────────────────────────────────────


def test_what_arrives_is_what_was_sent(served: Served) -> None:
    remote = RemoteRun(served.url, KEY)
    there = served.watch.snapshot
    here = remote.snapshot()
    assert replace(here, programs=()) == replace(there, programs=())
    assert sorted(row.id for row in here.programs) == sorted(row.id for row in there.programs)
    assert set(here.programs) == set(there.programs)
    assert remote.graph("tree_search-2") == served.watch.graph("tree_search-2")
    assert remote.graph("a/b?c") is None
    remote.close()


def test_no_more_programs_are_fetched_than_can_be_of_use(served: Served) -> None:
    assert len(RemoteRun(served.url, KEY, most=7).snapshot().programs) == 7


def test_a_run_that_ends_is_over_and_one_that_never_answered_is_an_error(served: Served) -> None:
    remote = RemoteRun(served.url, KEY)
    remote.snapshot()
    served.stop()
    with pytest.raises(RunOver):
        remote.snapshot()
    with pytest.raises(AutellixError, match="Nothing answers"):
        RemoteRun(served.url, KEY).snapshot()


def test_a_wrong_key_and_a_wrong_server_are_told_apart(served: Served) -> None:
    with pytest.raises(UsageError, match="another key"):
        RemoteRun(served.url, "wrong").snapshot()
    served.watch.snapshot = replace(served.watch.snapshot, programs=({"id": 1},))  # type: ignore[arg-type]
    with pytest.raises(AutellixError):
        RemoteRun(served.url, KEY).snapshot()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x:0"])
def test_what_is_no_url_is_said_to_be_none(url: str) -> None:
    with pytest.raises(UsageError, match="no URL of a run"):
        RemoteRun(url)


# ── how runs are found ───────────────────────────────────────────────────────────────────────────


def test_a_run_can_be_found_while_it_lasts(served: Served, tmp_path: Path) -> None:
    assert known_runs() == []
    with announced("http://127.0.0.1:1", KEY, "first.py"):
        (run,) = known_runs()
        assert (run.pid, run.title, run.key) == (os.getpid(), "first.py", KEY)
        (file,) = (tmp_path / "autellix" / "runs").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        with announced("http://127.0.0.1:2", KEY, "second.py"):
            assert [run.title for run in known_runs()] == ["second.py", "first.py"]
    assert known_runs() == []


def test_what_dead_processes_have_left_is_removed(served: Served, tmp_path: Path) -> None:
    with announced("http://127.0.0.1:1", KEY, "alive.py"):
        (file,) = (tmp_path / "autellix" / "runs").iterdir()
        told = json.loads(file.read_text())
        ended = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"],
            capture_output=True,
            text=True,
            check=True,
        )
        left = {
            "dead": {**told, "pid": int(ended.stdout)},
            "another process of the same id": {**told, "born": told["born"] - 1},
            "rubbish": "[]",
        }
        for name, value in left.items():
            path = file.with_name(f"{name}.json")
            path.write_text(json.dumps(value))
            path.chmod(0o600)
        assert [run.title for run in known_runs()] == ["alive.py"]
        assert list(file.parent.iterdir()) == [file]


def test_a_file_that_others_could_have_written_is_not_believed(
    served: Served, tmp_path: Path
) -> None:
    with announced("http://127.0.0.1:1", KEY, "mine.py"):
        (file,) = (tmp_path / "autellix" / "runs").iterdir()
        file.chmod(0o644)
        assert known_runs() == []


# ── the command ──────────────────────────────────────────────────────────────────────────────────


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["top", *arguments], env={"COLUMNS": "120", "LINES": "40"})


def test_without_a_url_the_newest_run_is_shown(served: Served) -> None:
    with announced(served.url, KEY, "tree_search.py"):
        result = call("--once")
    assert result.exit_code == 0, result.output
    assert "─ queues" in result.output
    assert "tree_search-1" in result.output
    assert max(map(len, result.output.splitlines())) <= 120


def test_a_run_is_named_by_url_or_process_id(served: Served) -> None:
    assert call(served.url, "--key", KEY, "--once").exit_code == 0
    with announced(served.url, KEY, "tree_search.py"):
        assert call(served.url, "--once").exit_code == 0
        assert call(str(os.getpid()), "--once").exit_code == 0
        other = call("999999999", "--once")
    assert (other.exit_code, "tree_search.py" in other.output) == (2, True)


def test_json_is_one_snapshot_for_programs(served: Served) -> None:
    result = call(served.url, "--key", KEY, "--json")
    told = json.loads(result.stdout)
    assert set(told) == {"run", "queues", "programs", "dag"}
    assert len(told["programs"]) == 25
    assert told["dag"]["nodes"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 1, "No run of yours"),
        (("http://127.0.0.1:9", "--once"), 1, "Nothing answers"),
        (("ftp://x",), 2, "no URL"),
        (("--refresh", "0"), 2, "at least 0.1"),
        (("--refresh", "nan"), 2, "at least 0.1"),
    ],
)
def test_what_cannot_be_watched_is_said(
    served: Served, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = call(*arguments)
    assert (result.exit_code, said in " ".join(result.output.split())) == (code, True)
    assert "Traceback" not in result.output


def test_on_a_terminal_top_has_the_whole_screen_and_ends_with_the_run(served: Served) -> None:
    code = f"from autellix.runtime.cli import app; app(['top', {served.url!r}, '--refresh', '0.1'])"
    process = Process(code, AUTELLIX_KEY=KEY)
    process.until("─ queues")
    process.until("q quit")
    assert len([line for line in process.lines if line]) == 24
    process.child.send("s")
    process.until("by wait")
    served.stop()
    assert process.to_the_end() == 0
    assert "the run has ended" in process.text


@pytest.mark.parametrize("how", ["q", "Ctrl-C", "SIGTERM"])
def test_top_leaves_when_it_is_told_to(served: Served, how: str) -> None:
    code = f"from autellix.runtime.cli import app; app(['top', {served.url!r}])"
    process = Process(code, AUTELLIX_KEY=KEY)
    process.until("q quit")
    if how == "q":
        process.child.send("q")
    elif how == "Ctrl-C":
        process.child.sendintr()
    else:
        process.child.kill(15)
    assert process.to_the_end() == 0
    assert "it runs on" in process.text


def test_in_a_pipe_top_says_a_line_now_and_then_until_the_run_ends(served: Served) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "autellix", "top", served.url],
        cwd=ROOT,
        env={**os.environ, "AUTELLIX_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert "programs: " in watching.stdout.readline()
    watching.terminate()
    assert watching.wait(30) == 0
    assert "\x1b" not in watching.communicate()[0]
