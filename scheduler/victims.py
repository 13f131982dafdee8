"""Which running calls give way to better-placed waiting ones when the engine is full.

1. Waiting calls are taken best first, as the engine will; the first that cannot be fitted ends the
   search, since the engine stops there too.
2. A victim stands at least a gap of levels below the call it makes room for.
3. They come in the order of :mod:`.preemption`: worst level first; in a level, the one whose KV is
   back soonest.
4. Nobody loses a seat in vain: victims that the waiting call can do without keep theirs, and when
   all of them together are not enough, none is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from .live_call import LiveCall


class Capacity(Protocol):
    """What the engine has free now, and what calls need and hold."""

    @property
    def free_seats(self) -> int:
        """Calls that could be seated now."""
        ...

    @property
    def free_blocks(self) -> int:
        """KV blocks that are free now."""
        ...

    def may_start(self, call: LiveCall) -> bool:
        """Whether a waiting call could run if there were room."""
        ...

    def may_stop(self, call: LiveCall) -> bool:
        """Whether a running call may lose its seat."""
        ...

    def blocks_needed(self, call: LiveCall) -> int:
        """Free KV blocks that a waiting call takes when it is seated."""
        ...

    def blocks_freed(self, call: LiveCall) -> int:
        """KV blocks that are free at once when a running call stops."""
        ...

    def seconds_back(self, call: LiveCall) -> float:
        """How long a running call that stops now will take to get its KV back, seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A running call that is to stop.

    Attributes:
        call: the one that stops.
        beneficiary: the waiting call it makes room for.
        reason: why, in a few words.
    """

    call: LiveCall
    beneficiary: LiveCall
    reason: str


def choose_victims(
    waiting: Iterable[LiveCall], running: Iterator[LiveCall], capacity: Capacity, gap: int
) -> list[Victim]:
    """The running calls to stop now.

    Args:
        waiting: calls that may start, best first; read no further than need be.
        running: calls that may stop, the next victim first; read no further than need be.
        capacity: the engine's.
        gap: levels between a victim and the call it makes room for, at least.
    """
    seats, blocks = capacity.free_seats, capacity.free_blocks
    spared: list[LiveCall] = []
    victims: list[Victim] = []
    for call in waiting:
        need = capacity.blocks_needed(call)
        lacks = "seats full" if seats < 1 else "KV cache full"
        chosen: list[tuple[LiveCall, int]] = []
        while seats < 1 or blocks < need:
            victim = spared.pop() if spared else next(running, None)
            if victim is None or victim.level - call.level < gap:
                return victims
            freed = capacity.blocks_freed(victim)
            chosen.append((victim, freed))
            seats += 1
            blocks += freed
        for entry in reversed(chosen[:-1]):
            if seats > 1 and blocks - entry[1] >= need:
                seats -= 1
                blocks -= entry[1]
                chosen.remove(entry)
                spared.append(entry[0])
        seats -= 1
        blocks -= need
        reason = f"for call {call.ticket.call} at level {call.level + 1}: {lacks}"
        victims += [Victim(call=v, beneficiary=call, reason=reason) for v, _ in chosen]
    return victims
