"""Reads recorded programs: JSON Lines, one program a line, plain or gzipped.

    {"program_id": "p", "source": "s", "arrival_s": null, "calls": [{"id": 0, "parents": [],
     "prompt_tokens": 120, "output_tokens": 30, "shared_prefix_tokens": 0, "tool_s_before": null}]}

``prompt_tokens`` is the whole prompt, ``shared_prefix_tokens`` the part of it that an earlier call
of the program has in its context, ``tool_s_before`` the seconds between the last parent's end and
the call. What is null is not known and counts as 0. A call may say its ``kind``: the node of the
program's graph that made it. Further keys are ignored. Calls may stand in any order; a call without
tokens counts as one token.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from autellix.errors import InputError
from autellix.scheduler.sim_programs import SimCall, SimProgram


@dataclass(slots=True)
class Trace:
    """What a file holds.

    Attributes:
        programs: in the file's order.
        arrivals_s: arrival of each as recorded, None where it is not.
        skipped: what was wrong with lines left out, each with its number.
    """

    programs: list[SimProgram] = field(default_factory=list)
    arrivals_s: list[float | None] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def read_trace(path: Path, *, strict: bool = False) -> Trace:
    """Read a file; a name that ends in ``.gz`` is unpacked.

    Args:
        strict: stop at the first line that cannot be read, instead of leaving it out.

    Raises:
        InputError: the file cannot be read, has no program, or (strict) a bad line.
    """
    if _is_of_a_run(path):
        raise InputError(
            f"{path} is the trace of a run, not a file of recorded programs. Replay it with "
            f"autellix trace whatif {path}"
        )
    trace = Trace()
    names: set[str] = set()
    for number, line in _lines(path, trace, strict=strict):
        try:
            program, arrival_s = _program(line)
            if program.name in names:
                raise InputError(f"program {program.name!r} was there before")
        except InputError as error:
            message = f"line {number} of {path.name}: {error}"
            if strict:
                raise InputError(f"{message}; without --strict such lines are left out") from None
            trace.skipped.append(message)
            continue
        names.add(program.name)
        trace.programs.append(program)
        trace.arrivals_s.append(arrival_s)
    if not trace.programs:
        first = f"; the first fault: {trace.skipped[0]}" if trace.skipped else ""
        raise InputError(f"{path} holds no program that can be read{first}")
    return trace


def _is_of_a_run(path: Path) -> bool:
    """Whether ``autellix run --trace`` has written it: one document, its schema's number first."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return re.match(rb'\s*\{\s*"schema"', file.read(64)) is not None
    except (OSError, EOFError):  # whoever reads it next says what is wrong
        return False


def _lines(path: Path, trace: Trace, *, strict: bool) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode(errors="replace")
                if text.strip():
                    yield number, text
    except FileNotFoundError:
        raise InputError(f"there is no trace file {path}; give trace:FILE") from None
    except EOFError:
        message = f"{path.name} is cut off after line {number}; pack it again"
        if strict:
            raise InputError(message) from None
        trace.skipped.append(message)
    except OSError as error:
        raise InputError(
            f"trace file {path} cannot be read: {error.strerror or error}; give trace:FILE[.gz]"
        ) from None


def _program(line: str) -> tuple[SimProgram, float | None]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"no valid JSON ({error})") from None
    if not isinstance(record, dict) or not isinstance(record.get("calls"), list):
        raise InputError('a program must be an object with a list "calls"')
    name = record.get("program_id")
    if not isinstance(name, str) or not name:
        raise InputError('"program_id" must be a text that is not empty')
    calls = cast("list[Any]", record["calls"])
    order = _in_order(calls)
    place = {calls[index]["id"]: at for at, index in enumerate(order)}
    source = record.get("source")
    kind = source if isinstance(source, str) else ""
    program = SimProgram(name, [_call(calls[index], place) for index in order], kind=kind)
    return program, _number(record, "arrival_s", None)


def _in_order(calls: list[Any]) -> list[int]:
    """Indices of the calls, parents first, otherwise as they stand."""
    index_of: dict[object, int] = {}
    for index, call in enumerate(calls):
        if not isinstance(call, dict) or not isinstance(call.get("id"), int | str):
            raise InputError(f'call {index} must be an object with an "id"')
        if not isinstance(call.get("parents", []), list):
            raise InputError(f'"parents" of call {call["id"]!r} must be a list')
        if call["id"] in index_of:
            raise InputError(f"two calls have the id {call['id']!r}")
        index_of[call["id"]] = index
    lacking = []
    children: list[list[int]] = [[] for _ in calls]
    for index, call in enumerate(calls):
        parents = dict.fromkeys(call.get("parents", []))
        for parent in parents:
            if parent not in index_of:
                raise InputError(f"call {call['id']!r} has parent {parent!r}, which is not there")
            children[index_of[parent]].append(index)
        lacking.append(len(parents))
    if all(index_of[p] < i for i, call in enumerate(calls) for p in call.get("parents", [])):
        return list(range(len(calls)))
    order = [index for index, count in enumerate(lacking) if not count]
    for index in order:
        for child in children[index]:
            lacking[child] -= 1
            if not lacking[child]:
                order.append(child)
    if len(order) < len(calls):
        stuck = next(calls[i]["id"] for i, count in enumerate(lacking) if count)
        raise InputError(f"the parents form a cycle that holds up call {stuck!r}")
    return order


def _call(call: dict[str, Any], place: dict[object, int]) -> SimCall:
    prompt = _tokens(call, "prompt_tokens")
    shared = _tokens(call, "shared_prefix_tokens", default=0)
    return SimCall(
        parents=tuple(dict.fromkeys(place[parent] for parent in call.get("parents", []))),
        prompt_tokens=max(1, prompt),
        output_tokens=max(1, _tokens(call, "output_tokens")),
        shared_prefix_tokens=min(shared, max(1, prompt)),
        tool_s=_number(call, "tool_s_before", 0.0) or 0.0,
        node=call["kind"] if isinstance(call.get("kind"), str) else "",
    )


def _tokens(call: dict[str, Any], key: str, default: int | None = None) -> int:
    value = call.get(key, default)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(
            f'"{key}" of call {call["id"]!r} must be a whole number >= 0, got {value!r}'
        )
    return value


def _number(record: dict[str, Any], key: str, default: float | None) -> float | None:
    value = record.get(key)
    if value is None:
        return default
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise InputError(f'"{key}" must be seconds >= 0 or null, got {value!r}')
    return float(value)
