"""Reads trace files in every form: the document, ``FILE.part``, compressed, cut off, older.

1. The form is told by the content, not by the name; compression by the first bytes.
2. Of a file that is cut off, what can be read is read, and the rest is named in
   :attr:`Trace.losses <autellix.tracing.trace.Trace>`.
3. Documents of older versions are lifted to the present one; of newer ones nothing is guessed.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from autellix.errors import TraceError

from .compression import DAMAGED, open_for_reading
from .events import SCHEMA_VERSION, Event, event_from_wire
from .record import RunRecord
from .trace import Trace
from .trace_fields import trace_from_document
from .writer import part_of

OLDEST_VERSION = 1
_Document = dict[str, Any]
# From version to version. Version 2 only added fields that may be missing.
_UPGRADES: Mapping[int, Callable[[_Document], _Document]] = {1: lambda document: document}
_NOT_EVENTS = (ValueError, KeyError, TypeError, AttributeError)


def read_trace(path: str | Path) -> Trace:
    """Read a trace, in whatever form it is.

    Where FILE is missing but ``FILE.part`` is there, that is read.

    Raises:
        TraceError: the file cannot be read, is no trace, or is of a newer version.
    """
    with _uncollected():
        return _read(Path(path))


def _read(path: Path) -> Trace:
    losses: list[str] = []
    if not path.exists() and part_of(path).exists():
        losses.append(f"{path} is not written yet; read {part_of(path)} instead")
        path = part_of(path)
    try:
        with open_for_reading(path) as text:
            document = _document(path, text, losses)
    except OSError as error:
        raise _unreadable(path, error) from error
    trace = trace_from_document(_present(path, document), str(path))
    return replace(trace, schema=document["schema"], losses=tuple(losses))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for cycles: a trace has none, and looking for them doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def rebuild(part: str | Path) -> dict[str, Any]:
    """The trace document from the events of ``FILE.part``, as ``TraceWriter.close`` had it.

    A last line that a crash cut short is left out.

    Raises:
        TraceError: the file cannot be read, a line before the last is damaged, or the run's start
            is missing.
    """
    path = Path(part)
    try:
        with open_for_reading(path) as lines:
            return _folded(path, _strictly(path, lines))
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> TraceError:
    return TraceError(
        f"the trace {path} cannot be read: {error.strerror or error}; check the name and its "
        "permissions"
    )


def _no_trace(path: Path) -> TraceError:
    return TraceError(
        f"{path} is no trace of Autellix; name a file that `autellix run --trace FILE` wrote"
    )


# Which form it is.


def _document(path: Path, text: TextIO, losses: list[str]) -> _Document:
    lines = _lines(text, losses)
    first = next(lines, "")
    start = _json(first)
    if isinstance(start, dict) and "event" in start:
        return _events_folded(path, first, lines, losses)
    head = _json(first.rstrip("\n") + "]}") if first.rstrip().endswith('"programs":[') else None
    if isinstance(head, dict):
        _check_version(path, head)
        return {**head, "programs": _programs(lines, losses)}
    document = _json(first + "".join(lines))
    if isinstance(document, dict) and isinstance(document.get("programs"), list):
        return document
    if document is None and '"programs"' in first[:2000]:
        raise TraceError(
            f"{path} begins as a trace but is damaged or cut off, and it is not in the form that "
            "Autellix writes (a program a line), so no part of it can be read; copy it again"
        )
    raise _no_trace(path)


def _lines(text: TextIO, losses: list[str]) -> Iterator[str]:
    """The lines; where compressed data is damaged, those before it."""
    try:
        yield from text
    except DAMAGED as error:
        losses.append(f"the compressed data is damaged or cut off ({error})")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# The document, a program a line.


def _programs(lines: Iterator[str], losses: list[str]) -> list[_Document]:
    programs: list[_Document] = []
    damaged = 0
    for line in lines:
        text = line.strip()
        if text == "]}":
            break
        program = _json(text.removesuffix(","))
        if isinstance(program, dict):
            programs.append(program)
        elif text:
            damaged += 1
    else:
        losses.append(
            f"the file is cut off: its first {_counted(len(programs), 'program')} could be read, "
            + ("the next one only in part and is left out; " if damaged else "")
            + "how many followed is not known"
        )
        damaged = max(0, damaged - 1)
    if damaged:
        is_or_are = "is" if damaged == 1 else "are"
        losses.append(f"{_counted(damaged, 'program')} could not be read and {is_or_are} left out")
    return programs


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


# Events, one a line.


def _events_folded(path: Path, first: str, lines: Iterator[str], losses: list[str]) -> _Document:
    damaged: list[int] = []

    def events() -> Iterator[Event]:
        for number, line in enumerate(_with(first, lines), start=1):
            event = _event(path, line)
            if event is None:
                damaged.append(number)
                last.append(line)
            else:
                yield event

    last: list[str] = []
    document = _folded(path, events())
    if damaged and not last[-1].endswith("\n"):
        losses.append(f"line {damaged.pop()}, the last one, is cut off; its event is left out")
    if damaged:
        some = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
        losses.append(f"lines that are no events are left out: {some}")
    return document


def _with(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _strictly(path: Path, lines: TextIO) -> Iterator[Event]:
    damaged: int | None = None
    for number, line in enumerate(lines, start=1):
        if damaged is not None:
            raise TraceError(
                f"line {damaged} of {path} is no event of a trace; delete the line to read the rest"
            )
        event = _event(path, line)
        if event is None:
            damaged = number
        else:
            yield event


def _event(path: Path, line: str) -> Event | None:
    try:
        wire = json.loads(line)
        if wire["event"] == "run_started":
            _check_version(path, {"schema": wire.get("schema", OLDEST_VERSION)})
        return event_from_wire(wire)
    except _NOT_EVENTS:
        return None


def _folded(path: Path, events: Iterator[Event]) -> _Document:
    record = RunRecord()
    for event in events:
        record.apply(event)
    try:
        return record.document()
    except TraceError as error:
        raise TraceError(
            f"{path} holds no run's start: the run ended before its engine was up, or this is no "
            "trace; choose another file"
        ) from error


# Versions.


def _check_version(path: Path, document: Mapping[str, Any]) -> int:
    version = document.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < OLDEST_VERSION:
        raise _no_trace(path)
    if version > SCHEMA_VERSION:
        raise TraceError(
            f"{path} is a trace of version {version}; this Autellix reads versions "
            f"{OLDEST_VERSION} to {SCHEMA_VERSION}. Read it with the Autellix that wrote it, or "
            "a newer one."
        )
    return version


def _present(path: Path, document: _Document) -> _Document:
    for version in range(_check_version(path, document), SCHEMA_VERSION):
        document = _UPGRADES[version](document)
    return document
