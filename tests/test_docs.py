"""What the documents show works: their code runs, from top to bottom, on the shared engine.

A document's blocks run in their order in one folder that holds the examples, shortened:

- ``console``: each line ``$ autellix run ...`` or ``$ autellix trace ...`` as typed; other commands
  need a reason not to run;
- ``python``: executed, with the test's engine as the process's;
- after ``$ autellix serve``, which serves from there on at a port of its own, commands (``curl``
  too) and ``python`` blocks run in processes of their own;
- after ``<!-- file: NAME -->`` a block is a file of that name;
- after ``<!-- not run: REASON -->`` it is left alone.

Blocks of other kinds are text.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autellix.runtime import run_command
from autellix.runtime.cli import app
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.serve_settings import ServeSettings
from autellix.runtime.serving import Server
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings
from tests.conftest import idle_stats

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.is_file()
]
INPUTS = 2  # lines of each example's input
DEFAULT_PORT = ServeSettings().port
_MARK = re.compile(r"<!-- (file|not run): (.+?) -->")
_FENCE = re.compile(r"^(`{3,})\s*(\w*)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block, its first line's number, and the mark above it."""

    kind: str
    text: str
    line: int
    mark: str = ""
    value: str = ""


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a document."""
    blocks: list[Block] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    mark, value = "", ""
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            found = _MARK.fullmatch(line.strip())
            if found:
                mark, value = found.groups()
            elif line.strip():
                mark = value = ""
            continue
        inside: list[str] = []
        for _, line in lines:
            if line.strip() == fence[1]:
                break
            inside.append(line)
        body = "\n".join(inside) + "\n"
        blocks.append(Block(kind=fence[2], text=body, line=number + 1, mark=mark, value=value))
        mark = value = ""
    return blocks


class Reader:
    """Does what a document says."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._serving = contextlib.ExitStack()
        self._port = 0

    def close(self) -> None:
        """Stop the server of the document, where it has one."""
        self._serving.close()

    def follow(self, block: Block) -> None:
        """Carry out one block."""
        if block.mark == "not run":
            return
        if block.mark == "file":
            Path(block.value).write_text(block.text)
        elif block.kind == "python" and self._port:
            self._spawn(sys.executable, "-c", block.text)
        elif block.kind == "python":
            self._execute(block)
        elif block.kind == "console":
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    self._type(line.removeprefix("$ "))

    def _execute(self, block: Block) -> None:
        session = Session(Settings(quiet=True), self._host)
        session.start()
        use_session(session)
        try:
            exec(compile(block.text, f"line {block.line}", "exec"), {"__name__": "__main__"})
        finally:
            session.finish()
            use_session(None)

    def _type(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        if words[:2] == ["autellix", "serve"]:
            server = Server(Settings(quiet=True), ServeSettings(port=0), self._host)
            self._serving.enter_context(server)
            self._port = int(server.url.rsplit(":", 1)[1])
            return
        if self._port:
            ours = (
                [sys.executable, "-m", "autellix"] if words[0] == "autellix" else [words[0], "-f"]
            )
            self._spawn(*ours, *words[1:])
            return
        is_ours = words[0] == "autellix" and words[1] in ("run", "trace")
        assert is_ours, f"say <!-- not run: why --> above: {command}"
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"
        for name in [n for n, m in sys.modules.items() if _is_here(getattr(m, "__file__", None))]:
            del sys.modules[name]

    def _spawn(self, *command: str) -> None:
        """Run a command as somebody else on this machine would, against the document's server."""
        asked = [word.replace(f":{DEFAULT_PORT}", f":{self._port}") for word in command]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        done = subprocess.run(
            asked, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{asked}\n{done.stdout}\n{done.stderr}"


def _is_here(file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(Path.cwd())


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_host: EngineHost
) -> Iterator[Reader]:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for inputs in (tmp_path / "examples").glob("*.jsonl"):
        inputs.write_text("\n".join(inputs.read_text().splitlines()[:INPUTS]) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    on_the_shared_engine = functools.partial(run_command.run_request, host=engine_host)
    monkeypatch.setattr(run_command, "run_request", on_the_shared_engine)
    reader = Reader(engine_host)
    yield reader
    reader.close()
    idle_stats(engine_host)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_shows_works(document: Path, reader: Reader) -> None:
    for block in blocks_of(document.read_text(encoding="utf-8")):
        try:
            reader.follow(block)
        except BaseException as fault:
            fault.add_note(f"in {document.relative_to(ROOT)}, the block at line {block.line}")
            raise


def test_blocks_and_marks_are_found() -> None:
    file = "<!-- file: x.py -->\n```python\nx = 1\n```\n"
    text = f"a\n{file}\n<!-- not run: why -->\n\n```console\n$ y\n```\n"
    python, console = blocks_of(text)
    assert (python.kind, python.text, python.line) == ("python", "x = 1\n", 4)
    assert (python.mark, python.value) == ("file", "x.py")
    assert (console.kind, console.mark, console.value) == ("console", "not run", "why")
