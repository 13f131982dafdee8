"""What the host keeps for which program, and how fast it comes back: the seam for schedulers.

Pure values and protocols; ``offload_manager`` implements them inside vLLM's engine core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

Direction = Literal["store", "load"]
"""``store``: device to host (swap out). ``load``: host to device (swap in)."""

# Weight of the newest move in the running mean; a move counts by its bytes, so that many small ones
# do not drown a large one.
_HALF_LIFE_BYTES = 256 * 2**20


class Bandwidth:
    """Measured bandwidth of moves, a running mean that forgets over 256 MiB.

    With nothing measured yet the answer is None: nobody should decide on a made-up figure.
    """

    def __init__(self) -> None:
        self._bytes: dict[Direction, float] = {"store": 0.0, "load": 0.0}
        self._seconds: dict[Direction, float] = {"store": 0.0, "load": 0.0}

    def observe(self, direction: Direction, moved_bytes: int, seconds: float) -> None:
        """Take a finished move, or several that were added up, into account."""
        if moved_bytes <= 0 or seconds <= 0.0:
            return
        keep = 0.5 ** (moved_bytes / _HALF_LIFE_BYTES)
        self._bytes[direction] = self._bytes[direction] * keep + moved_bytes
        self._seconds[direction] = self._seconds[direction] * keep + seconds

    def bytes_per_s(self, direction: Direction) -> float | None:
        """Bytes a second; None while nothing was measured."""
        seconds = self._seconds[direction]
        return self._bytes[direction] / seconds if seconds else None

    def seconds_for(self, direction: Direction, moved_bytes: int) -> float | None:
        """How long a move would take; None while nothing was measured."""
        speed = self.bytes_per_s(direction)
        return None if speed is None else moved_bytes / speed


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKv:
    """What the host holds of a program.

    Attributes:
        chunks: pieces kept, those on their way included.
        ready_chunks: pieces that can be loaded now.
        size_bytes: host memory they take.
        tokens: tokens of context they cover, counted in one cache group.
        pinned: whether they are safe from eviction.
    """

    chunks: int
    ready_chunks: int
    size_bytes: int
    tokens: int
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUsage:
    """State of the host pool, in bytes.

    Attributes:
        capacity_bytes: size of the pool.
        used_bytes: taken by stored KV, evictable or not.
        pinned_bytes: of pinned programs.
        moving_bytes: source or destination of moves under way; these cannot be evicted either.
    """

    capacity_bytes: int
    used_bytes: int
    pinned_bytes: int
    moving_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """Rows of a program that are held for a load, in the order of its context.

    Attributes:
        program: id of the program.
        keys: the offload keys, first tokens first; without a gap from the start.
        rows: host chunk of each key.
        size_bytes: bytes to load.
    """

    program: str
    keys: tuple[bytes, ...]
    rows: tuple[int, ...]
    size_bytes: int


class HostTier(Protocol):
    """The host's part of the KV cache, by program. Called between engine steps, not within one."""

    @property
    def bandwidth(self) -> Bandwidth:
        """Measured bandwidth of finished moves."""
        ...

    @property
    def token_bytes(self) -> int:
        """Bytes that the KV of a token of context takes, over all cache groups and ranks."""
        ...

    @property
    def capacity_tokens(self) -> int:
        """Tokens of context that fit the pool."""
        ...

    @property
    def used_share(self) -> float:
        """Part of the pool that is taken by stored KV, 0 to 1."""
        ...

    def name_program(self, request_id: str, program: str) -> None:
        """Say whose request this is; before the request is added to the engine."""
        ...

    def stored(self, program: str) -> StoredKv:
        """What is kept of a program."""
        ...

    def usage(self) -> TierUsage:
        """State of the pool."""
        ...

    def pin(self, program: str) -> None:
        """Keep the program's KV, present and future, until :meth:`unpin` or :meth:`drop`."""
        ...

    def unpin(self, program: str) -> None:
        """Let the program's KV be evicted again, in its turn."""
        ...

    @property
    def stays_s(self) -> float:
        """How long KV that nobody uses stays, a running mean, seconds.

        Infinite before anything had to go.
        """
        ...

    def age(self, program: str) -> None:
        """The program's KV goes first when room is wanted, as if it had been used never."""
        ...

    def observe(self, finished: Any) -> None:
        """Take what a worker tells of moves that have ended into account."""
        ...

    def drop(self, program: str) -> int:
        """Free what only this program has; bytes freed at once.

        What is moving is freed when it has arrived; what another program shares stays.
        """
        ...

    def begin_prefetch(self, program: str) -> Prefetch | None:
        """Hold the program's stored context for a load; None where there is none to load."""
        ...

    def end_prefetch(self, prefetch: Prefetch) -> None:
        """The load has finished, or will not happen; the rows may be evicted again."""
        ...
