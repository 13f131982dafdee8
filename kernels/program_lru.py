"""Which stored KV goes first when the host pool is full: what was used longest ago, by contexts.

1. A request uses its whole context when it begins and when it ends, whether the pieces were loaded,
   stored or found on the device. So what a program goes on with stays together, and what it has
   left behind, a branch given up or a history that was summed up, is the older.
2. The piece used longest ago goes first, and the end of a context before its start: what is left
   can still be found, since a context is looked up from its start. An aged program's go first.
3. Pinned programs and what is being moved are passed over. If too little is left, nothing is
   evicted at all; the caller then stores nothing, and the tokens are computed again one day. A
   program that is pinned no longer counts as just used.
4. A piece that several programs share (a system prompt) stays while one of them is pinned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from .vllm_names import CachePolicy, ChunkStatus, OffloadKey, ReqContext

# Weight of the newest in the mean of how long things stay.
_NEWEST = 0.05
_LEAST_SWEEP = 1024


class _Use:
    """A use that keys have in common: when it was last, by count and by the clock; 0 for never."""

    __slots__ = ("at", "at_s")

    def __init__(self) -> None:
        self.at = 0
        self.at_s = 0.0


class ProgramLru(CachePolicy):
    """Cache policy for vLLM's manager of host memory.

    Attributes:
        chunks: stored pieces by key.
        pinned: programs that are not evicted.
        storing: the request whose pieces are being inserted; the manager sets it first.
        stays_s: how long after its last use a piece had to go, a running mean, seconds; infinite
            before any had to.
        now: the clock, seconds; a test may put its own here.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self.pinned: set[str] = set()
        self.storing: ReqContext | None = None
        self.stays_s = math.inf
        self.now = time.monotonic
        self._names: dict[str, str] = {}
        # What uses there are of the requests under way; a key's use is its last request's.
        self._uses: dict[str, _Use] = {}
        self._use_of: dict[OffloadKey, _Use] = {}
        self._count = 0
        # Program -> its keys with their place in its context.
        self._keys: dict[str, dict[OffloadKey, int]] = {}
        # (last use, -place in the context, tie, key): as it was when a key was put here. What is
        # not pinned is here at least once.
        self._ends: list[tuple[int, int, int, OffloadKey]] = []
        # Key -> programs that have it; the one that used it last is last.
        self._owners: dict[OffloadKey, list[str]] = {}

    # Programs.

    def name(self, request_id: str, program: str) -> None:
        """From now on this request is the program's."""
        self._names[request_id] = program

    def forget_request(self, request_id: str) -> None:
        """The request has ended."""
        self._names.pop(request_id, None)
        self._uses.pop(request_id, None)

    def pin(self, program: str) -> None:
        """Nothing that the program has, or will have, goes."""
        self.pinned.add(program)

    def unpin(self, program: str) -> None:
        """What the program has goes again in its turn, the last one."""
        if program in self.pinned:
            self.pinned.discard(program)
            self._adopt(self._keys.get(program, {}), self._used(_Use()))

    def program_of(self, context: ReqContext) -> str:
        """The program that a request belongs to; a request nobody named is one of its own."""
        named = (context.kv_transfer_params or {}).get("program")
        if isinstance(named, str) and named:
            return named
        return self._names.get(context.req_id, context.req_id)

    def keys_of(self, program: str) -> list[OffloadKey]:
        """Keys of a program, first tokens first."""
        mine = self._keys.get(program, {})
        return sorted(mine, key=mine.__getitem__)

    def age(self, program: str) -> None:
        """What only this program has goes first, as if it had been used never."""
        mine = self._keys.get(program, {})
        only = {key: place for key, place in mine.items() if self._owners[key] == [program]}
        self._adopt(only, _Use())

    def disown(self, program: str) -> list[OffloadKey]:
        """Forget the program; the keys that nobody has now."""
        orphans: list[OffloadKey] = []
        for key in self._keys.pop(program, {}):
            owners = self._owners[key]
            owners.remove(program)
            if not owners:
                orphans.append(key)
        return orphans

    def is_owned(self, key: OffloadKey) -> bool:
        """Whether a program still has this key."""
        return bool(self._owners.get(key))

    def is_pinned(self, key: OffloadKey) -> bool:
        """Whether a pinned program has this key."""
        return not self.pinned.isdisjoint(self._owners.get(key, ()))

    def check(self) -> None:
        """Raise AssertionError where the books do not agree; for tests."""
        assert set(self._owners) == set(self.chunks), "a stored key without books, or the reverse"
        for key, owners in self._owners.items():
            assert len(set(owners)) == len(owners)
            assert all(key in self._keys[program] for program in owners)
        for program, mine in self._keys.items():
            assert mine and all(program in self._owners[key] for key in mine)
        assert set(self._use_of) == set(self.chunks), "a stored key that was never used"
        due = {key for *_, key in self._ends}
        assert due >= {key for key in self.chunks if not self.is_pinned(key)}, "one stays for ever"

    # What vLLM's manager asks.

    def get(self, key: OffloadKey) -> ChunkStatus | None:
        """The stored piece."""
        return self.chunks.get(key)

    def insert(self, key: OffloadKey, chunk: ChunkStatus) -> None:
        """A new piece, of the request set as ``storing``."""
        self.chunks[key] = chunk
        self._owners[key] = []
        assert self.storing is not None
        self.touch((key,), self.storing)

    def remove(self, key: OffloadKey) -> None:
        """A piece is gone."""
        del self.chunks[key]
        del self._use_of[key]
        for program in self._owners.pop(key):
            mine = self._keys[program]
            del mine[key]
            if not mine:
                del self._keys[program]

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """A request uses these keys: its program has them from now on.

        The first time it uses anything, it uses its whole context.
        """
        program = self.program_of(req_context)
        mine = self._keys.setdefault(program, {})
        used = [key for key in keys if key in self.chunks]
        for key in used:
            mine[key] = req_context.get_offload_key_position(key) or mine.get(key, 0)
            if program not in self._owners[key]:
                self._owners[key].append(program)
        if not mine:
            del self._keys[program]
        use = self._uses.get(req_context.req_id)
        if use is None:
            use = self._uses[req_context.req_id] = _Use()
            self._adopt(self._context(req_context), use)
        self._adopt({key: mine[key] for key in used}, self._used(use))

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """A request has ended: it has used its context until now."""
        for keys in key_groups:
            self.touch(keys, req_context)
        use = self._used(self._uses.get(req_context.req_id, _Use()))
        self._adopt(self._context(req_context), use)

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Exactly ``n`` pieces by the rules above, or None and nothing is changed."""
        chosen: dict[OffloadKey, None] = {}
        passed_over: list[OffloadKey] = []
        ends = self._ends
        while len(chosen) < n and ends:
            at, _, _, key = heappop(ends)
            if key not in self.chunks or key in chosen or self.is_pinned(key):
                continue
            if self._use_of[key].at != at:
                self._push(key)
            elif self.chunks[key].ref_cnt or key in protected:
                passed_over.append(key)
            else:
                chosen[key] = None
        enough = len(chosen) == n
        for key in (*passed_over, *(() if enough else chosen)):
            self._push(key)
        if not enough:
            return None
        self._stayed(next(iter(chosen), None))
        gone = [(key, self.chunks[key]) for key in chosen]
        for key in chosen:
            self.remove(key)
        return gone

    def clear(self) -> None:
        """Everything is gone."""
        self.chunks.clear()
        self._keys.clear()
        self._owners.clear()
        self._use_of.clear()
        self._ends.clear()

    def _context(self, request: ReqContext) -> dict[OffloadKey, int]:
        """What there is of a request's context, with the places in it."""
        places = request._offload_key_positions
        return {key: place for key, place in places.items() if key in self.chunks}

    def _used(self, use: _Use) -> _Use:
        """It happens now."""
        self._count += 1
        use.at, use.at_s = self._count, self.now()
        return use

    def _adopt(self, keys: Mapping[OffloadKey, int], use: _Use) -> None:
        """These keys' last use is this one from now on."""
        for key, place in keys.items():
            if self._use_of.get(key) is not use:
                self._use_of[key] = use
                self._push(key, place)
        if len(self._ends) > _LEAST_SWEEP + 4 * len(self.chunks):
            kept = [key for key in self.chunks if not self.is_pinned(key)]
            self._ends.clear()
            for key in kept:
                self._push(key)

    def _push(self, key: OffloadKey, place: int = -1) -> None:
        if place < 0:
            owners = self._owners[key]  # none of what is dropped and still moves
            place = max((self._keys[program].get(key, 0) for program in owners), default=0)
        self._count += 1
        heappush(self._ends, (self._use_of[key].at, -place, self._count, key))

    def _stayed(self, key: OffloadKey | None) -> None:
        """The next to go; after so long without use."""
        use = None if key is None else self._use_of[key]
        if use is None or not use.at:
            return
        idle_s = self.now() - use.at_s
        first = self.stays_s == math.inf
        self.stays_s = idle_s if first else self.stays_s + _NEWEST * (idle_s - self.stays_s)
