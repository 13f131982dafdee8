"""Which stored KV goes first when the host pool is full: least recently used, by program.

1. Programs are ordered by their last use. The program used longest ago loses first.
2. Within a program the end of the context goes first: what is left can still be found, since a
   context is looked up from its start.
3. Pinned programs and what is being moved are passed over. If too little is left, nothing is
   evicted at all; the caller then stores nothing, and the tokens are computed again one day.
4. A piece that several programs share (a system prompt) counts as the most recent one's.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from .vllm_names import CachePolicy, ChunkStatus, OffloadKey, ReqContext

# Weight of the newest in the mean of how long things stay.
_NEWEST = 0.05


class ProgramLru(CachePolicy):
    """Cache policy for vLLM's manager of host memory.

    Attributes:
        chunks: stored pieces by key.
        pinned: programs that are not evicted.
        storing: the request whose pieces are being inserted; the manager sets it first.
        stays_s: how long after its last use a program's KV had to go, a running mean, seconds;
            infinite before any had to.
        now: the clock, seconds; a test may put its own here.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self.pinned: set[str] = set()
        self.storing: ReqContext | None = None
        self.stays_s = math.inf
        self.now = time.monotonic
        self._used_s: dict[str, float] = {}
        self._names: dict[str, str] = {}
        # Program -> its keys with their place in its context; last used program last.
        self._keys: OrderedDict[str, dict[OffloadKey, int]] = OrderedDict()
        # Key -> programs that have it; the one that used it last is last.
        self._owners: dict[OffloadKey, list[str]] = {}

    # Programs.

    def name(self, request_id: str, program: str) -> None:
        """From now on this request is the program's."""
        self._names[request_id] = program

    def forget_request(self, request_id: str) -> None:
        """The request has ended."""
        self._names.pop(request_id, None)

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
        """Its keys go first, as if it had been used never."""
        if program in self._keys:
            self._keys.move_to_end(program, last=False)
            self._used_s.pop(program, None)

    def disown(self, program: str) -> list[OffloadKey]:
        """Forget the program; the keys that nobody has now."""
        orphans: list[OffloadKey] = []
        self._used_s.pop(program, None)
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
        for program in self._owners.pop(key):
            mine = self._keys[program]
            del mine[key]
            if not mine:
                del self._keys[program]
                self._used_s.pop(program, None)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """A request uses these keys: its program has them from now on, and is the last used."""
        program = self.program_of(req_context)
        mine = self._keys.setdefault(program, {})
        self._keys.move_to_end(program)
        self._used_s[program] = self.now()
        for key in keys:
            if key not in self.chunks:
                continue
            mine[key] = req_context.get_offload_key_position(key) or mine.get(key, 0)
            owners = self._owners[key]
            if not owners or owners[-1] != program:
                if program in owners:
                    owners.remove(program)
                owners.append(program)
        if not mine:
            del self._keys[program]
            self._used_s.pop(program, None)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """A request has ended: its program was in use until now."""
        for keys in key_groups:
            self.touch(keys, req_context)

    def evict(
        self, n: int, protected: set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """Exactly ``n`` pieces by the rules above, or None and nothing is changed."""
        chosen = list(islice(self._in_turn(protected), n))
        if len(chosen) < n:
            return None
        gone = [(key, self.chunks[key]) for key in chosen]
        if gone and (used_s := self._used_s.get(self._owners[chosen[0]][-1])) is not None:
            idle_s = self.now() - used_s
            first = self.stays_s == math.inf
            self.stays_s = idle_s if first else self.stays_s + _NEWEST * (idle_s - self.stays_s)
        for key in chosen:
            self.remove(key)
        return gone

    def clear(self) -> None:
        """Everything is gone."""
        self.chunks.clear()
        self._keys.clear()
        self._owners.clear()
        self._used_s.clear()

    def _in_turn(self, protected: set[OffloadKey]) -> Iterator[OffloadKey]:
        for program, mine in self._keys.items():
            if program in self.pinned:
                continue
            for key in sorted(mine, key=mine.__getitem__, reverse=True):
                if self._owners[key][-1] != program or key in protected:
                    continue
                if self.chunks[key].ref_cnt == 0 and not self.is_pinned(key):
                    yield key
