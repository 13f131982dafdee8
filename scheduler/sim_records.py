"""What a simulation tells: of a call that has ended, of a program, of the whole run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .tickets import Receipt


class CallRecord(NamedTuple):
    """A call that has ended.

    Attributes:
        number: which of its program's calls, from 0.
        started_s, ended_s: when it came and when it ended, virtual time.
    """

    program: str
    number: int
    started_s: float
    ended_s: float
    receipt: Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """A program that has ended.

    Attributes:
        name: the program's.
        arrived_s: its arrival.
        first_call_s, ended_s: when its first call came and its last one ended.
        response_s: the time between less the intervals in which no call of it was outstanding.
        service_s, wait_s: sums over its calls.
        critical_path_s: service along its longest chain of calls.
        calls, output_tokens, preemptions: how many.
    """

    name: str
    arrived_s: float
    first_call_s: float
    ended_s: float
    response_s: float
    service_s: float
    wait_s: float
    critical_path_s: float
    calls: int
    output_tokens: int
    preemptions: int

    @property
    def token_latency_s(self) -> float:
        """Program token latency: response time for each token generated."""
        return self.response_s / self.output_tokens


@dataclass(slots=True, kw_only=True)
class SimResult:
    """What a run gave.

    Attributes:
        programs: in the order in which they ended.
        ended_s: end of the last one.
        steps, stretches: of all replicas; a stretch is a number of steps taken at once.
        busy_s: time in steps, of each replica.
        calls_served: by each replica.
        known_tokens, lost_tokens, recomputed_tokens, loads, loaded_tokens, load_wait_s: see
            :class:`ReplicaKv`.
    """

    programs: list[ProgramRecord] = field(default_factory=list)
    ended_s: float = 0.0
    calls: int = 0
    preemptions: int = 0
    promotions: int = 0
    demotions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    known_tokens: int = 0
    lost_tokens: int = 0
    recomputed_tokens: int = 0
    loads: int = 0
    loaded_tokens: int = 0
    load_wait_s: float = 0.0
    steps: int = 0
    stretches: int = 0
    busy_s: list[float] = field(default_factory=list)
    calls_served: list[int] = field(default_factory=list)
