"""KV that a simulated replica loads from host memory before its program's next call comes.

:mod:`.fetch_ahead` decides when; here it is done. A load takes blocks as a call's would, but nobody
has a seat for it, and when it has ended its blocks are like those of a call that has ended: the
next call finds them in the cache, or they go in their turn.

It is done at the start of a step, after waiting calls have got their seats, and only with blocks
that neither they nor the running calls want before the policy runs again.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from .prefix_cache import BlockCache, CacheNode
from .sim_host import HostKv


class Fetched(NamedTuple):
    """A load that has begun.

    Attributes:
        tail: where the context ends.
        held: what the host holds for it.
    """

    tail: CacheNode
    held: CacheNode | None


class Fetches:
    """Of one replica.

    Args:
        cache: the device's blocks.
        host: those in host memory.

    Attributes:
        begun: loads since the start.
        used: those whose program's next call found them.
    """

    def __init__(self, cache: BlockCache, host: HostKv) -> None:
        self.begun = 0
        self.used = 0
        self._cache = cache
        self._host = host
        self._asked: dict[str, CacheNode] = {}
        self._moving: list[tuple[float, int, Fetched]] = []
        self._ties = count()
        # Blocks that a program's next call finds because of a load ahead.
        self._brought: dict[str, int] = {}

    def ask(self, program: str, tail: CacheNode) -> None:
        """A program's context is to be loaded with the next step, if it is not back by then."""
        self._asked[program] = tail

    def back(self, program: str) -> None:
        """The program is back: what it asked for its call sees to by itself."""
        self._asked.pop(program, None)

    def forget(self, program: str) -> None:
        """The program is over."""
        self._asked.pop(program, None)
        self._brought.pop(program, None)

    def found(self, program: str, found: int) -> int:
        """Of the blocks that the program's call finds, those that a load ahead has brought."""
        brought = min(self._brought.pop(program, 0), found)
        self.used += bool(brought)
        return brought

    def take_asked(self) -> dict[str, CacheNode]:
        """What was asked for since the last step."""
        asked, self._asked = self._asked, {}
        return asked

    def begin(self, program: str, tail: CacheNode, spare: int) -> int:
        """Take blocks for what the host has of a context beyond the device's part.

        Args:
            spare: blocks that nobody wants soon.

        Returns:
            How many blocks are to be loaded; 0 where there is nothing to load, or no room.
        """
        cache, host = self._cache, self._host
        device, hosted = cache.found(tail, tail.end), host.found(tail, tail.end)
        blocks = hosted - device
        if blocks <= 0 or blocks > spare:
            return 0
        cache.lock(tail)
        if blocks > cache.available:
            cache.unlock_unused(tail)
            return 0
        cache.take(blocks)
        cache.fill(tail, hosted)
        self.begun += 1
        self._brought[program] = blocks
        return blocks

    def ends(self, program: str, tail: CacheNode, ready_s: float, now: float) -> None:
        """The load that has begun ends at that time."""
        held = self._host.hold(program, tail, ready_s, now)
        heappush(self._moving, (ready_s, next(self._ties), Fetched(tail, held)))

    @property
    def next_end_s(self) -> float:
        """When the first load under way ends; infinite if there is none."""
        return self._moving[0][0] if self._moving else math.inf

    def settle(self, now: float) -> None:
        """Loads that have ended by now let their blocks go."""
        moving = self._moving
        while moving and moving[0][0] <= now:
            _, _, fetched = heappop(moving)
            self._cache.unlock(fetched.tail)
            if fetched.held is not None:
                self._host.release(fetched.held)
