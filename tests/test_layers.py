"""The rooms depend on each other only as the design says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What every room may use by its full name.
SHARED = ("autellix.errors", "autellix.private_names", "autellix.wal")
ROOMS = ("autellix", "runtime", "integrations", "scheduler", "kernels", "tracing")
# room -> what it may import of ours, as "room" or "room.module"
ALLOWED = {
    "autellix": {*ROOMS},
    "runtime": {*ROOMS},
    "integrations": {"runtime.protocols", "scheduler.tickets", "tracing.dag"},
    "scheduler": set(),
    "kernels": set(),
    "tracing": {"scheduler.tickets"},
}
FRAMEWORKS = ("langgraph", "langchain_core", "langchain")


def imports_of(path: Path) -> list[tuple[str, int, str]]:
    """Every import of a file as (dotted name, line, "absolute" or "relative")."""
    found = []
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, "absolute") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.module or "", node.lineno, "absolute"))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            module = ".".join([*base, *((node.module or "").split(".") if node.module else [])])
            names = (
                [module] if node.module else [f"{module}.{a.name}".strip(".") for a in node.names]
            )
            found += [(name, node.lineno, "relative") for name in names]
    return found


FILES = [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_layers(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    for name, line, how in imports_of(path):
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        top, _, rest = name.partition(".")
        if how == "absolute":
            assert top not in ROOMS[1:], f"{where}: a bare room import loads a second copy"
            assert top != "autellix" or room == "autellix" or name in SHARED, (
                f"{where}: rooms import each other relatively"
            )
            if top in FRAMEWORKS:
                assert room == "integrations", f"{where}: only integrations may"
            continue
        if top == room or top == "":
            continue
        allowed = ALLOWED[room]
        module = ".".join([top, *rest.split(".")[:1]]) if rest else top
        assert top in allowed or module in allowed, f"{where}: against the layers"


def test_a_violation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "scheduler"
    room.mkdir()
    bad = room / "bad.py"
    bad.write_text("from ..tracing.dag import ProgramDag\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    with pytest.raises(AssertionError, match="against the layers"):
        test_imports_follow_the_layers(bad)
