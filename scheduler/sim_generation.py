"""What a stretch of like steps does, without taking them one by one."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count

from .sim_call import ReplicaCall


class StepSeries:
    """Steps that follow each other, each longer than the one before by the same amount.

    Args:
        first_s: the first one's duration, seconds.
        growth_s: by how much the next one is longer.
    """

    __slots__ = ("first_s", "growth_s")

    def __init__(self, first_s: float = 0.0, growth_s: float = 0.0) -> None:
        self.first_s = first_s
        self.growth_s = growth_s

    def lasts(self, steps: int) -> float:
        """Seconds that so many of them take."""
        return steps * self.first_s + self.growth_s * (steps * (steps - 1) // 2)

    def until(self, seconds: float, most: int) -> int:
        """The fewest steps, at least one, that last as long; at most ``most``."""
        first, growth = self.first_s, self.growth_s
        if seconds <= first:
            return 1
        if growth:
            half = first - growth / 2
            steps = math.ceil(2 * seconds / (half + math.sqrt(half * half + 2 * growth * seconds)))
        else:
            steps = math.ceil(seconds / first)
        # The root is rounded; the sum decides.
        while steps > 1 and self.lasts(steps - 1) >= seconds:
            steps -= 1
        while steps < most and self.lasts(steps) < seconds:
            steps += 1
        return min(steps, most)


class Generation:
    """The calls that generate: each writes one token's KV at every step.

    A call's next block is due when the count of steps has a certain remainder by the block size, so
    that the blocks of many steps are counted by remainders, not by calls.

    Attributes:
        calls: how many there are.
        kv_tokens: tokens whose KV they have.
    """

    __slots__ = ("_block_tokens", "_due", "_ends", "_ties", "calls", "kv_tokens")

    def __init__(self, block_tokens: int) -> None:
        self.calls = 0
        self.kv_tokens = 0
        self._block_tokens = block_tokens
        self._due = [0] * block_tokens
        # By the count of steps at which they will have all their tokens.
        self._ends: list[tuple[int, int, ReplicaCall]] = []
        self._ties = count()

    def begin(self, call: ReplicaCall, steps: int) -> None:
        """A call generates from this count of steps on."""
        call.began_at = steps
        call.ends_at = steps + call.output_tokens - call.generated
        heappush(self._ends, (call.ends_at, next(self._ties), call))
        self._due[(steps - call.computed) % self._block_tokens] += 1
        self.calls += 1
        self.kv_tokens += call.computed

    def drop(self, call: ReplicaCall, steps: int) -> None:
        """A call generates no longer; it has all the tokens up to here."""
        done = steps - call.began_at
        self._due[(call.began_at - call.computed) % self._block_tokens] -= 1
        self.calls -= 1
        self.kv_tokens -= call.computed + done
        call.generated += done
        call.ends_at = -1

    def advance(self, steps: int) -> None:
        """So many steps are over."""
        self.kv_tokens += self.calls * steps

    def next_end(self) -> int | None:
        """The count of steps at which the next call has all its tokens."""
        ends = self._ends
        while ends and ends[0][2].ends_at != ends[0][0]:
            heappop(ends)
        return ends[0][0] if ends else None

    def ended(self, steps: int) -> list[ReplicaCall]:
        """The calls that have all their tokens at this count; they are still to be dropped."""
        ended: list[ReplicaCall] = []
        ends = self._ends
        while ends and ends[0][0] <= steps:
            at, _, call = heappop(ends)
            if call.ends_at == at and call not in ended:
                ended.append(call)
        return ended

    def blocks_at(self, step: int) -> int:
        """Blocks that are due in the step of this count."""
        return self._due[step % self._block_tokens]

    def blocks(self, first: int, steps: int) -> int:
        """Blocks that are due in so many steps from this count on."""
        size, due = self._block_tokens, self._due
        rounds, rest = divmod(steps, size)
        blocks = rounds * self.calls
        for step in range(first, first + rest):
            blocks += due[step % size]
        return blocks

    def steps_with_room(self, first: int, most: int, available: int) -> int:
        """Steps for which there are blocks, where those of the first one are taken already."""
        size = self._block_tokens
        if not self.calls or available >= self.calls * -(-(most - 1) // size):
            return most
        rounds, available = divmod(available, self.calls)
        steps = 1 + rounds * size
        while steps < most:
            available -= self._due[(first + steps) % size]
            if available < 0:
                break
            steps += 1
        return min(steps, most)
