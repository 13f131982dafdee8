"""Random lives of programs on the real engine: every call says what it says on its own.

The variable LIVES says how many lives; 300 by default.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

ROOT = Path(__file__).resolve().parents[2]
LIVES = int(os.environ.get("LIVES", "300"))


def run(*arguments: object) -> None:
    script = Path(__file__).with_name("lives_on_engine.py")
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def differing(how: str, lives: int, folder: Path) -> tuple[int, dict[str, int]]:
    """How many calls said something else than on their own; and what happened in the lives."""
    played, said = folder / "played.json", folder / "said.json"
    run(how, lives, played)
    run("alone", played, said)
    found = json.loads(played.read_text())
    pairs = zip(found["calls"], json.loads(said.read_text()), strict=True)
    return sum(call["said"] != alone for call, alone in pairs), found["happened"]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_calls_say_what_they_say_on_their_own(tmp_path: Path) -> None:
    wrong, happened = differing("play", LIVES, tmp_path)
    assert not wrong
    assert all(count > LIVES / 20 for count in happened.values()), happened


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spoilt_rows_of_the_host_would_be_noticed(tmp_path: Path) -> None:
    wrong, _ = differing("spoil", 30, tmp_path)
    assert wrong
