"""The inputs that programs run on: JSON from the command line, standard input or a file.

What counts as how many programs:

- One JSON document is one program, a top-level array included.
- JSON Lines, one document a line, is one program a line; blank lines are skipped. Text is JSON
  Lines when the file's name ends in ``.jsonl`` or ``.ndjson``, or when it is no single document
  and its first line, or most of its lines, are.
- A line that cannot be read becomes an error of its own, and the others run.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autellix.errors import InputError

_LINES = (".jsonl", ".ndjson")
_UTF_16_OR_32 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLine:
    """The input of one program, or why it cannot be read.

    Attributes:
        number: line in its source, from 1.
        value: the JSON value; None if there is an error (or the value is null).
        error: one sentence with file, line, column and mend; None if the value could be read.
    """

    number: int
    value: Any = None
    error: str | None = None


def read_inputs(
    spec: str | None, *, read_stdin: Callable[[], bytes] | None = None
) -> list[InputLine]:
    """The inputs that ``--input`` names.

    Args:
        spec: JSON text, ``-`` for standard input, a path or ``@path``; None gives no inputs.
        read_stdin: gives standard input's bytes, for tests.

    Raises:
        InputError: the file cannot be read, holds nothing, or the only document is no JSON.
    """
    if spec is None:
        return []
    name, data = _source(spec, read_stdin or sys.stdin.buffer.read)
    if data.startswith(_UTF_16_OR_32):
        raise InputError(f"{name} is written in UTF-16 or UTF-32. Save it as UTF-8.")
    data = data.removeprefix(codecs.BOM_UTF8)
    rows = [(n, row) for n, row in enumerate(data.split(b"\n"), 1) if row.strip()]
    if not rows:
        raise InputError(
            f"{name} is empty. It must hold a JSON document, or one a line in JSON Lines."
        )
    whole = _parse(name, rows[0][0], data)
    if whole.error is None and not (name.lower().endswith(_LINES) and _each_is_json(name, rows)):
        return [whole]
    lines = [_parse(name, number, row, alone=True) for number, row in rows]
    if name.lower().endswith(_LINES) or _are_lines(lines):
        return lines
    raise InputError(whole.error)


def _source(spec: str, read_stdin: Callable[[], bytes]) -> tuple[str, bytes]:
    """A name for messages, and the bytes."""
    if spec == "-":
        return "standard input", read_stdin()
    if not spec.startswith("@"):
        if spec.lstrip()[:1] in ("{", "[", '"') or _is_json(spec):
            return "--input", spec.encode("utf-8", "surrogateescape")
        if not spec.strip():
            raise InputError("--input is empty. Give JSON text, - for standard input, or a path.")
    path = Path(spec.removeprefix("@"))
    try:
        return str(path), path.read_bytes()
    except FileNotFoundError:
        raise InputError(_not_found(path)) from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder. Name a JSON or JSON Lines file in it.") from None
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise InputError(f"The input file {path} cannot be read: {words}.") from error


def _not_found(path: Path) -> str:
    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, names, n=1)
    hint = f"Did you mean {path.parent / near[0]}? " if near else ""
    return (
        f"There is no input file {path}. {hint}--input takes JSON text (a plain string in quotes: "
        "'\"hello\"'), - for standard input, or a path."
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _each_is_json(name: str, rows: list[tuple[int, bytes]]) -> bool:
    return all(_parse(name, number, row).error is None for number, row in rows)


def _are_lines(lines: list[InputLine]) -> bool:
    good = [line.error is None for line in lines]
    return len(good) > 1 and (good[0] or sum(good) * 2 > len(good))


def _parse(name: str, number: int, data: bytes, *, alone: bool = False) -> InputLine:
    """Read a document that begins in line ``number``.

    Args:
        alone: it is a line of JSON Lines, so that is what the mend speaks of.
    """
    try:
        text = data.decode()
        return InputLine(number=number, value=json.loads(text))
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = number + before.count(b"\n") if alone else 1 + before.count(b"\n")
        column = len(before.rpartition(b"\n")[2].decode(errors="replace")) + 1
        what = f"the byte 0x{data[error.start]:02x} is not UTF-8. Save it as UTF-8."
    except json.JSONDecodeError as error:
        line = number if alone else error.lineno
        column = error.colno
        what = f"{error.msg[:1].lower()}{error.msg[1:]}."
        what += " A line must be one whole JSON document." if alone else " Correct it there."
    except RecursionError:
        line, column, what = number, 1, "it is nested too deeply. Make it flatter."
    return InputLine(
        number=number, error=f"{name}, line {line}, column {column}: no valid JSON: {what}"
    )
