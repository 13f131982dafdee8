"""Ticket in, receipt out: what travels with a call and what comes back.

Both are plain values that cross process borders as flat dictionaries, the same in-process and
over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple, Self

_PREFIX = "autellix_"

DecisionKind = Literal[
    "admission", "arrival", "dispatch", "demotion", "promotion", "preemption", "resume", "leave"
]
CallStatus = Literal["running", "done", "failed", "aborted"]


class Ticket(NamedTuple):
    """What the scheduler needs to know of a call before it runs.

    A tuple, since the engine reads one for every call, and that is the quickest value to make; give
    its fields by name all the same.

    Attributes:
        program: id of the program.
        call: id of the call, unique within the run.
        attained_s: attained service p(c) as the run's policy computes it, seconds.
        program_service_s: T_program, service of the program's finished calls, seconds.
        program_wait_s: W_program, wait of the program's finished calls, seconds.
        prompt_tokens: length of the prompt; 0 while it is not tokenised yet.
        program_number: place of the program in the order in which programs came, from 0; -1 where
            that is not known: the call then stands as if its program had come last.
        course: where the call stands as it goes on, see :mod:`.course`; empty: by attained service.
        tenant: on whose behalf; empty where there is but one.
        share: of the engine that the tenant has against others, see :mod:`.tenant_shares`.
        to_come_s: the longest chain of its program that the call is expected to begin, seconds, see
            :mod:`.chains_to_come`; 0 where nothing is known.
    """

    program: str
    call: str
    attained_s: float = 0.0
    program_service_s: float = 0.0
    program_wait_s: float = 0.0
    prompt_tokens: int = 0
    program_number: int = -1
    course: tuple[float, ...] = ()
    tenant: str = ""
    share: float = 1.0
    to_come_s: float = 0.0

    def to_flat(self) -> dict[str, str | int | float | list[float]]:
        """The ticket as a flat dictionary with prefixed keys (vLLM's ``extra_args``)."""
        flat: dict[str, Any] = dict(zip(_TICKET_KEYS.values(), self, strict=True))
        flat[_TICKET_KEYS["course"]] = list(self.course)
        return flat

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any] | None) -> Self | None:
        """Read a ticket back; None where there is none (a call from outside)."""
        if not flat or _TICKET_KEYS["call"] not in flat:
            return None
        try:
            values = list(_TICKET_VALUES(flat))
        except KeyError:  # what is left out has its default
            some = {name: flat[key] for name, key in _TICKET_KEYS.items() if key in flat}
            some["course"] = tuple(some.get("course", ()))
            return cls(**some)
        values[_COURSE] = tuple(values[_COURSE])
        return cls._make(values)


_TICKET_KEYS = {name: _PREFIX + name for name in Ticket._fields}
_TICKET_VALUES = itemgetter(*_TICKET_KEYS.values())
_COURSE = Ticket._fields.index("course")


# Words, or a template for str.format and what goes in. The engine has no time to make words of it.
Cause = str | tuple[Any, ...]


class Decision(NamedTuple):
    """One thing the scheduler did with a call, and why.

    Attributes:
        at_s: monotonic clock of the machine, seconds.
        kind: what was done.
        level: the call's level from then on, counted from 1.
        cause: of it, in words or to be put into words.
    """

    at_s: float
    kind: DecisionKind
    level: int
    cause: Cause = ""

    @property
    def reason(self) -> str:
        """The cause in a few words, e.g. "quantum of 0.64 s used up"."""
        cause = self.cause
        return cause if isinstance(cause, str) else cause[0].format(*cause[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a call cost, measured in the engine.

    Attributes:
        service_s: sum of the steps the call took part in, seconds.
        wait_s: time in the engine's queues, preempted time included, seconds.
        levels: levels visited, in order, counted from 1.
        preemptions: how often the call lost its seat.
        prompt_tokens, cached_tokens, output_tokens: lengths in tokens; ``cached_tokens`` is the
            part of the prompt that was found in the KV cache when the call was first admitted, in
            the device's or in host memory.
        swapped_in_tokens: tokens of its KV that were loaded from host memory, when it was first
            admitted and each time it came back.
        recomputed_tokens: tokens that were computed again because it had lost its seat.
        replica: index of the replica that served it.
        decisions: the scheduler's decisions about the call, oldest first.
    """

    program: str
    call: str
    service_s: float
    wait_s: float
    levels: tuple[int, ...]
    preemptions: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    swapped_in_tokens: int = 0
    recomputed_tokens: int = 0
    replica: int = 0
    decisions: tuple[Decision, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """The receipt as nested plain types (msgpack and JSON safe; there a decision is a list)."""
        wire = dict(zip(_RECEIPT_NAMES, _RECEIPT_VALUES(self), strict=True))
        wire["levels"] = list(self.levels)
        wire["decisions"] = list(self.decisions)
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_wire`."""
        values = dict(wire)
        values["levels"] = tuple(values["levels"])
        values["decisions"] = tuple(
            Decision(at_s, kind, level, cause if isinstance(cause, str) else tuple(cause))
            for at_s, kind, level, cause in values["decisions"]
        )
        return cls(**values)


_RECEIPT_NAMES = tuple(f.name for f in fields(Receipt))
_RECEIPT_VALUES = attrgetter(*_RECEIPT_NAMES)
