"""Trace files: events line by line while the run lasts, one document at its end.

``FILE.part`` grows by one JSON line per event and is all that a crash leaves;
:func:`~autellix.tracing.trace_file.rebuild` makes the document from it. :meth:`TraceWriter.close`
puts the document in place of both, at once, compressed where the name ends in ``.zst`` or ``.gz``.
Neither holds more than one event or one program in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from autellix.errors import TraceError

from .compression import open_for_writing
from .events import Event, event_to_wire

_log = logging.getLogger("autellix")
_encode = json.JSONEncoder(separators=(",", ":")).encode


class TraceWriter:
    """Writes one trace; safe to use from any thread.

    A disk that fills up does not disturb the run: appending stops with one logged warning, and
    :meth:`close` says what is lost.

    Attributes:
        path: where the document will be.
        part: where the events go meanwhile.
    """

    def __init__(self, path: str | Path) -> None:
        """Check that the trace can be written and open ``FILE.part``.

        What an earlier, crashed run left there is kept as ``FILE.part.old``.

        Raises:
            TraceError: the file cannot be written, or another run writes it now.
        """
        self.path = Path(path)
        if not self.path.name:
            raise TraceError("the trace needs the name of a file: --trace run.json")
        self.part = part_of(self.path)
        self._lock = Lock()
        self._broken = False
        self._file: TextIO | None = _open_part(self.path, self.part)

    def write(self, event: Event) -> None:
        """Append one event; after :meth:`close` it is left out."""
        line = _encode(event_to_wire(event)) + "\n"
        with self._lock:
            if self._file is None or self._broken:
                return
            try:
                self._file.write(line)
            except OSError as error:
                self._broken = True
                _log.warning(
                    "trace: cannot append to %s (%s); the run goes on, its trace survives only if "
                    "the document can be written at the end",
                    self.part,
                    error.strerror,
                )

    def close(self, document: Mapping[str, Any]) -> None:
        """Put the document in place and remove ``FILE.part``; a second close does nothing.

        Args:
            document: its programs may come one by one, as
                :meth:`RunRecord.streamed_document <autellix.tracing.record.RunRecord>` gives them.

        Raises:
            TraceError: the document cannot be written; ``FILE.part`` then stays.
        """
        with self._lock:
            if self._file is None:
                return
            file, self._file = self._file, None
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            write_document(document, temporary, name=self.path.name)
            temporary.replace(self.path)
            self.part.unlink(missing_ok=True)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise TraceError(
                f"the trace {self.path} cannot be written: {error.strerror}; free space or choose "
                f"another place. What happened until then is in {self.part}."
            ) from error
        finally:
            _close_quietly(file)

    def abandon(self) -> None:
        """Stop writing and leave ``FILE.part`` as it is; an empty one is removed."""
        with self._lock:
            file, self._file = self._file, None
        if file is None:
            return
        _close_quietly(file)
        with contextlib.suppress(OSError):
            if not self.part.stat().st_size:
                self.part.unlink()


def part_of(path: Path) -> Path:
    """Where the events of a trace go while its run lasts."""
    return path.with_name(path.name + ".part")


def document_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The document as JSON text with one program a line."""
    head = {key: value for key, value in document.items() if key != "programs"}
    yield _encode(head)[:-1] + ',"programs":['
    separator = "\n"
    for program in document["programs"]:
        yield separator + _encode(program)
        separator = ",\n"
    yield "\n]}\n"


def write_document(document: Mapping[str, Any], path: Path, *, name: str | None = None) -> None:
    """Write the document and have it on the disk, compressed as its name asks.

    Args:
        document: its programs may come one by one.
        path: where to.
        name: decides the compression in place of the path's own name.

    Raises:
        OSError: the file cannot be written.
    """
    out, file = open_for_writing(path, name)
    with file:
        with out:
            out.writelines(document_lines(document))
        file.flush()
        os.fsync(file.fileno())


def _open_part(path: Path, part: Path) -> TextIO:
    if path.is_dir():
        raise TraceError(f"the trace {path} is a folder; name a file in it, e.g. {path}/trace.json")
    if not path.parent.is_dir():
        raise TraceError(
            f"the trace {path} cannot be written: the folder {path.parent} does not exist; create "
            "it or choose another place"
        )
    try:
        # Append mode: the lock comes before anything of another run could be lost.
        file = part.open("a", buffering=1, encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise TraceError(
                f"the trace {path} is being written by another run; choose another file"
            ) from None
        if part.stat().st_size == 0:
            return file
        old = part.with_name(part.name + ".old")
        part.replace(old)
        file.close()
        _log.warning("trace: an earlier run did not end; its events are kept as %s", old)
    except OSError as error:
        raise TraceError(
            f"the trace {path} cannot be written: {error.strerror}; check the permissions or "
            "choose another place"
        ) from error
    return _open_part(path, part)


def _close_quietly(file: TextIO) -> None:
    """Close a file whose last bytes may not fit the disk: what counts has been reported."""
    try:
        file.close()
    except OSError:
        _log.debug("trace: the last events could not be flushed")
