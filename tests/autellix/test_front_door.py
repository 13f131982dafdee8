"""``import autellix``: what it offers, and that it stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import autellix

ROOT = Path(__file__).resolve().parents[2]
# What a light import may not load.
HEAVY = ("vllm", "torch", "transformers", "langchain_core", "langgraph", "networkx", "rich")


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_front_door_offers_these_names() -> None:
    assert sorted(autellix.__all__) == [
        "AutellixError",
        "ChatAutellix",
        "__version__",
        "connect",
        "program",
    ]
    assert set(autellix.__all__) <= set(dir(autellix))
    for name in autellix.__all__:
        assert getattr(autellix, name)


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'ChatAutelix'"):
        _ = autellix.ChatAutelix


def test_the_import_loads_nothing_heavy() -> None:
    loaded = python("import autellix, sys; print(*sys.modules)").split()
    assert not set(HEAVY) & set(loaded)


def test_a_chat_model_is_made_without_an_engine() -> None:
    code = "import autellix, sys; autellix.ChatAutellix(); print('vllm' in sys.modules)"
    assert python(code) == "False"


def test_the_rooms_are_found_from_any_folder(tmp_path: Path) -> None:
    code = "import autellix.scheduler.core, autellix.runtime.settings; print('found')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "found"
