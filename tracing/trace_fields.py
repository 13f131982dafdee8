"""From a trace document to values, with every field checked: files may come from anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast, get_args

from autellix.errors import TraceError

from ..scheduler.tickets import CallStatus
from .dag import CallKind, EdgeKind
from .events import ProgramStatus
from .trace import (
    EngineFacts,
    ReplicaChange,
    Trace,
    TracedCall,
    TracedEvent,
    TracedParent,
    TracedProgram,
)

_NUMBER = (int, float)
_OPTIONAL = ("earlier", "replica_changes")


def trace_from_document(document: Mapping[str, Any], where: str) -> Trace:
    """The trace of a document of the present version.

    Args:
        document: what the file holds.
        where: its name, for messages.

    Raises:
        TraceError: a field is missing or is not what the schema says; the message names it.
    """
    root = _Fields(document, where)
    engine = root.within("engine")
    programs = tuple(_program(fields) for fields in root.each("programs", "program"))
    ids = [call.id for program in programs for call in program.calls]
    if len(set(ids)) < len(ids):
        raise TraceError(f"{where} has two calls of one id, so it is damaged; use another copy")
    return Trace(
        schema=root.count("schema"),
        engine=EngineFacts(
            kind=engine.text("kind"),
            model=engine.text("model"),
            replicas=engine.count("replicas"),
            seats=engine.count("seats", 0),
            kv_tokens=engine.count("kv_tokens", 0),
            block_tokens=engine.count("block_tokens", 0),
            token_budget=engine.count("token_budget", 0),
        ),
        policy=root.text("policy"),
        programs=programs,
        started_at=root.number_or_none("started_at"),
        scheduler=root.mapping_or_none("scheduler") or {},
        replica_changes=tuple(
            ReplicaChange(
                at_s=fields.number("at_s"),
                replica=fields.count("replica"),
                state=fields.text("state"),
            )
            for fields in root.each("replica_changes", "change")
        ),
    )


def _program(fields: _Fields) -> TracedProgram:
    program = fields.text("id")
    calls = tuple(
        _call(call, program, number)
        for number, call in enumerate(fields.each("calls", "call"), start=1)
    )
    earlier = {
        part.text("id"): part.number("critical_path_s") for part in fields.each("earlier", "part")
    }
    return TracedProgram(
        id=program,
        name=fields.text("name"),
        status=cast("ProgramStatus", fields.one_of("status", get_args(ProgramStatus))),
        start_s=fields.number("start_s"),
        end_s=fields.number_or_none("end_s"),
        response_s=fields.number("response_s"),
        service_s=fields.number("service_s"),
        wait_s=fields.number("wait_s"),
        tool_s=fields.number("tool_s"),
        critical_path_s=fields.number("critical_path_s"),
        critical_path=tuple(fields.texts("critical_path")),
        calls=calls,
        earlier=earlier,
        error=fields.text_or_none("error"),
    )


def _call(fields: _Fields, program: str, number: int) -> TracedCall:
    return TracedCall(
        number=number,
        program=program,
        id=fields.text("id"),
        kind=cast("CallKind", fields.one_of("kind", get_args(CallKind))),
        name=fields.text("name"),
        node=fields.text_or_none("node"),
        parents=tuple(
            TracedParent(
                id=parent.text("id"),
                kind=cast("EdgeKind", parent.one_of("kind", get_args(EdgeKind))),
            )
            for parent in fields.each("parents", "parent")
        ),
        start_s=fields.number("start_s"),
        first_token_s=fields.number_or_none("first_token_s"),
        end_s=fields.number_or_none("end_s"),
        service_s=fields.number("service_s"),
        wait_s=fields.number("wait_s"),
        attained_s=fields.number("attained_s"),
        replica=fields.count_or_none("replica"),
        levels=tuple(fields.counts("levels")),
        preemptions=fields.count("preemptions"),
        prompt_tokens=fields.count("prompt_tokens"),
        cached_tokens=fields.count("cached_tokens"),
        output_tokens=fields.count("output_tokens"),
        status=cast("CallStatus", fields.one_of("status", get_args(CallStatus))),
        error=fields.text_or_none("error"),
        events=tuple(
            TracedEvent(
                at_s=event.number("at_s"),
                kind=event.text("kind"),
                level=event.count("level"),
                reason=event.text("reason"),
            )
            for event in fields.each("events", "event")
        ),
        content=_content(fields),
        attempt=fields.count("attempt", 1),
    )


def _content(fields: _Fields) -> Mapping[str, str] | None:
    if fields.mapping_or_none("content") is None:
        return None
    content = fields.within("content")
    return {name: content.text(name) for name in ("prompt", "answer")}


class _Fields:
    """The fields of one object, and where in the file it is."""

    __slots__ = ("_values", "_where")

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise TraceError(f"{where} must be an object, got {_shown(values)}")
        self._values = values
        self._where = where

    def _wrong(self, name: str, wanted: str) -> TraceError:
        if name not in self._values:
            return TraceError(
                f"{self._where} has no {name!r}: the trace is damaged or was written by hand; use "
                "another copy"
            )
        found = _shown(self._values[name])
        return TraceError(f"{name!r} of {self._where} must be {wanted}, got {found}")

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._values.get(name) is None else self.text(name)

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}")
        return value

    def number(self, name: str) -> float:
        value = self._values.get(name)
        if type(value) not in _NUMBER or not math.isfinite(cast("float", value)):
            raise self._wrong(name, "a number")
        return cast("float", value)

    def number_or_none(self, name: str) -> float | None:
        return None if self._values.get(name) is None else self.number(name)

    def count(self, name: str, default: int | None = None) -> int:
        value = self._values.get(name, default)
        if type(value) is not int or value < 0:
            raise self._wrong(name, "a whole number >= 0")
        return value

    def count_or_none(self, name: str) -> int | None:
        return None if self._values.get(name) is None else self.count(name)

    def texts(self, name: str) -> list[str]:
        return self._all(name, str, "a list of texts")

    def counts(self, name: str) -> list[int]:
        return self._all(name, int, "a list of whole numbers")

    def _all(self, name: str, kind: type, wanted: str) -> list[Any]:
        values = self._values.get(name)
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            raise self._wrong(name, wanted)
        return values

    def mapping_or_none(self, name: str) -> Mapping[str, Any] | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return value

    def within(self, name: str) -> _Fields:
        if name not in self._values:
            raise self._wrong(name, "an object")
        return _Fields(self._values[name], f"{name!r} of {self._where}")

    def each(self, name: str, what: str) -> Iterator[_Fields]:
        """The objects of a list; of one that only some documents have, none."""
        values = self._values.get(name, [] if name in _OPTIONAL else None)
        if not isinstance(values, list):
            raise self._wrong(name, "a list")
        for number, value in enumerate(values, start=1):
            yield _Fields(value, f"{what} {number} of {self._where}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
