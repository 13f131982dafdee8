"""Keeps the cells of an experiment as they are finished, so that one that was stopped goes on.

Beside the result FILE stands ``FILE.part``, JSON Lines: the first says of which experiment, the
others are cells with their keys. A later run of the same experiment with the same code takes them;
what belongs to another one is thrown away. When the experiment is through the file is removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from benchmarks.metrics import Cell

_ROOT = Path(__file__).resolve().parent.parent


class CellStore:
    """The cells of one experiment.

    Args:
        result: the result's file; None keeps nothing.
        identity: what decides the cells' figures beside their keys.
        enabled: False keeps nothing.
    """

    def __init__(
        self, result: Path | None, identity: Mapping[str, Any], *, enabled: bool = True
    ) -> None:
        self._path: Path | None = None
        self._file: TextIO | None = None
        self._cells: dict[str, Cell] = {}
        if result is None or not enabled:
            return
        self._path = result.with_name(f"{result.name}.part")
        head = json.dumps({"code": code_fingerprint(), **identity}, sort_keys=True)
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        if lines and lines[0] == head:
            self._cells = dict(entry for line in lines[1:] if (entry := _entry(line)) is not None)
        self._file = self._path.open("w")
        self._file.write(f"{head}\n")
        for name, cell in self._cells.items():
            self._write(name, cell)

    def find(self, key: Any) -> Cell | None:
        """The cell, if it was there before."""
        return self._cells.get(_name(key))

    def keep(self, key: Any, cell: Cell) -> None:
        """A cell is finished."""
        if self._file is not None:
            self._write(_name(key), cell)

    def _write(self, name: str, cell: Cell) -> None:
        assert self._file is not None
        self._file.write(f"{json.dumps({'key': name, 'cell': cell})}\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        """The result has been written."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def code_fingerprint() -> str:
    """Changes with any file that the figures of a simulated engine come from."""
    found = hashlib.sha256()
    for folder in ("benchmarks", "scheduler"):
        for path in sorted((_ROOT / folder).glob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


def _entry(line: str) -> tuple[str, Cell] | None:
    """A cell and its key; None of a line that was being written when the run was stopped."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry["key"], entry["cell"]


def _name(key: Any) -> str:
    assert is_dataclass(key) and not isinstance(key, type)
    return json.dumps(asdict(key), sort_keys=True)
