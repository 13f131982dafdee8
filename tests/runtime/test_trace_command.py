"""``autellix trace``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from autellix.runtime.cli import app
from autellix.tracing.trace_file import read_trace
from tests.tracing.simulated import document_of, simulated_run

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "tracing" / "samples"
REACT = SAMPLES / "react_agent.v2.json.zst"
FCFS = SAMPLES / "react_agent_fcfs.v2.json.zst"
COMMANDS = ("show", "why", "diff", "whatif", "report", "export")


def trace(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def said(*arguments: object) -> str:
    result = trace(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_lists_the_programs_and_the_tree_of_one():
    text = said("show", REACT)
    for program in read_trace(REACT).programs:
        assert program.id in text
    assert "critical path:" in text
    assert "react_agent-2" in said("show", REACT, "--program", "react_agent-2").splitlines()[-8]


@pytest.mark.parametrize("command", [("report",), ("export", "--to", "csv")])
def test_a_trace_is_never_written_over(command: tuple[str, ...], tmp_path: Path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document_of(simulated_run(1, 4))))
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    for target in (path, tmp_path / "link"):
        result = trace(command[0], path, *command[1:], "-o", target)
        assert (result.exit_code, path.read_bytes()) == (2, before)
        assert "is the trace itself" in " ".join(result.output.split())


def test_show_cuts_a_long_tree_unless_all_of_it_is_wanted(tmp_path: Path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document_of(simulated_run(1, 100))))
    assert "more calls: --all shows them" in said("show", path)
    assert "more calls" not in said("show", path, "--all")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("show", REACT, "--json"), "programs"),
        (("why", REACT, "react_agent-3/3", "--json"), "story"),
        (("diff", FCFS, REACT, "--json"), "faster"),
        (("whatif", REACT, "--policy", "fcfs", "--replicas", "1,2", "--json"), "predictions"),
    ],
)
def test_json_is_json_and_nothing_else(arguments, key):
    assert key in json.loads(said(*arguments))


def test_why_finds_a_call_by_number_and_by_id():
    call = read_trace(REACT).call("react_agent-3/3")
    by_number = said("why", REACT, "react_agent-3/3")
    assert by_number == said("why", REACT, call.id) == said("why", REACT, call.id[-12:])
    assert "served instead:" in by_number


def test_diff_names_the_two_by_their_files():
    text = said("diff", FCFS, REACT)
    assert "fcfs" in text and "atlas" in text and "programs in both: 8" in text


def test_whatif_predicts_beside_the_recording():
    text = said("whatif", REACT, "--policy", "fcfs,atlas", "--replicas", "1,2")
    assert "atlas (recorded)" in text
    assert "The recorded policy is predicted" in text
    assert "h100" in said("whatif", REACT, "--engine", "sim:h100-llama3-8b")


@pytest.mark.parametrize("name", ["t.json", "t.json.zst", "t.json.part", "t.json.zst.part"])
def test_report_and_exports_go_beside_the_file_unless_told(tmp_path: Path, name):
    path = tmp_path / name
    path.write_text(json.dumps(document_of(simulated_run(2, 3))))
    assert said("report", path) == f"{tmp_path / 't.html'}\n"
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")
    for form, ending in (
        ("perfetto", "perfetto.json"),
        ("mermaid", "mmd"),
        ("graphml", "graphml"),
        ("csv", "csv"),
    ):
        assert said("export", path, "--to", form) == f"{tmp_path}/t.{ending}\n"
        text = (tmp_path / f"t.{ending}").read_text()
        assert said("export", path, "--to", form, "-o", "-") == text
        said("export", path, "--to", form, "-o", tmp_path / "x")
        assert (tmp_path / "x").read_text() == text


def test_a_graph_can_be_of_some_programs_only():
    text = said("export", REACT, "--to", "mermaid", "-o", "-", "--program", "react_agent-2")
    assert "react_agent-2" in text and "react_agent-3" not in text


def test_what_could_not_be_read_is_said_and_the_rest_is_shown(tmp_path: Path):
    text = json.dumps(document_of(simulated_run(1, 1)))
    head, rest = text.split('"programs": [', 1)
    path = tmp_path / "cut.json"
    path.write_text(f'{head}"programs":[\n{rest[:-2]},\n{rest[:40]}')
    result = trace("show", path)
    assert result.exit_code == 0
    told = " ".join(result.stderr.split())
    assert "the file is cut off: its first 1 program could be read" in told
    assert "agent-1" in result.stdout


BAD = [
    (("show", "absent.json"), "cannot be read: No such file"),
    (("show", __file__), "is no trace of Autellix"),
    (("show", REACT, "--program", "x"), "no program 'x'"),
    (("why", REACT, "x"), "no call 'x'"),
    (("why", "absent.json", "x"), "cannot be read"),
    (("diff", REACT, SAMPLES / "tree_search.v2.json.zst"), "no program in common"),
    (("diff", REACT, "absent.json"), "cannot be read"),
    (("whatif", REACT, "--policy", "x"), "no policy 'x' to replay"),
    (("whatif", REACT, "--replicas", "0"), "--replicas takes whole numbers from 1"),
    (("whatif", REACT, "--replicas", "two"), "--replicas takes whole numbers from 1"),
    (("whatif", REACT, "--engine", "x"), "no engine preset 'x'"),
    (("report", "absent.json"), "cannot be read"),
    (("report", REACT, "-o", "/nowhere/x.html"), "cannot be written"),
    (("export", REACT, "--to", "csv", "-o", "/nowhere/x"), "cannot be written"),
    (("export", REACT, "--to", "otlp"), "set OTEL_EXPORTER_OTLP_ENDPOINT"),
    (("export", REACT, "--to", "xml"), "Invalid value"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(map(str, b[0])) for b in BAD])
def test_what_cannot_be_done_is_one_paragraph_and_exit_code_2(arguments, message, monkeypatch):
    monkeypatch.chdir(ROOT / "tests")
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    result = trace(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document_of(simulated_run(20, 20))))
    command = f"{sys.executable} -m autellix trace show {path} --json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


def test_a_terminal_without_utf8_shows_what_it_can(tmp_path: Path):
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    document = document_of(simulated_run(1, 3))
    document["programs"][0]["id"] = "プログラム"
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-m", "autellix", "trace", "show", str(path)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii() and b"critical path" in done.stdout


def test_every_command_explains_itself():
    listed = said("--help")
    for command in COMMANDS:
        assert command in listed
        assert "Usage" in said(command, "--help")
