"""The host pool's books, kept in the engine core: vLLM's manager, by program.

vLLM's own manager counts references, so that nothing is evicted or dropped while it moves; this one
adds whose KV it is. Where room is wanting, the answer to a store is None: vLLM then stores nothing,
and what is missing later is computed again. It is never an error.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from .host_tier import Bandwidth, Prefetch, StoredKv, TierUsage
from .program_lru import ProgramLru
from .vllm_names import (
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LoadStoreSpec,
    OffloadingEvent,
    OffloadingWorkerMetadata,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)

_GROUP_BYTES = 4  # an offload key ends with the number of its cache group


class ProgramManager(CPUOffloadingManager):
    """Manager of host memory by program; satisfies ``HostTier``.

    Args:
        chunks: pieces that fit the pool.
        chunk_bytes: host memory of a piece, over all ranks.
        tokens_per_chunk: tokens of context that a piece of each cache group covers.
        options: further arguments of vLLM's manager.
    """

    def __init__(
        self, chunks: int, chunk_bytes: int, tokens_per_chunk: tuple[int, ...], **options: Any
    ) -> None:
        super().__init__(
            num_chunks=chunks,
            cache_policy=ProgramLru.__name__,
            cache_policy_module_path=ProgramLru.__module__,
            **options,
        )
        self._lru = cast("ProgramLru", self._policy)
        self.bandwidth = Bandwidth()
        self._chunk_bytes = chunk_bytes
        self._tokens_per_chunk = tokens_per_chunk
        # Nobody's any more, but still moving.
        self._stray: set[OffloadKey] = set()
        self._prefetches: list[Prefetch] = []

    # What vLLM's connector asks.

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Room for new pieces, or None where there is none."""
        self._lru.storing = req_context
        self._lru.touch(keys, req_context)
        self._stray.difference_update(keys)
        return super().prepare_store(keys, req_context)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Where stored pieces lie; they stay until ``complete_load``."""
        self._lru.touch(keys, req_context)
        self._stray.difference_update(keys)
        return super().prepare_load(keys, req_context)

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """A store has arrived, or failed."""
        super().complete_store(keys, req_context, success)
        self._free_strays(keys)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """A load has arrived."""
        super().complete_load(keys, req_context)
        self._free_strays(keys)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The request is over; its program may go on."""
        super().on_request_finished(req_context)
        self._lru.forget_request(req_context.req_id)

    def reset_cache(self) -> None:
        """Everything stored is void."""
        super().reset_cache()
        self._stray.clear()
        self._prefetches.clear()

    # What schedulers ask: see HostTier.

    @property
    def token_bytes(self) -> int:
        """See ``HostTier.token_bytes``."""
        return round(sum(self._chunk_bytes / tokens for tokens in self._tokens_per_chunk))

    @property
    def capacity_tokens(self) -> int:
        """See ``HostTier.capacity_tokens``."""
        return self._num_chunks * self._chunk_bytes // self.token_bytes

    @property
    def used_share(self) -> float:
        """See ``HostTier.used_share``."""
        return len(self._lru.chunks) / self._num_chunks

    @property
    def stays_s(self) -> float:
        """See ``HostTier.stays_s``."""
        return self._lru.stays_s

    def age(self, program: str) -> None:
        """See ``HostTier.age``."""
        self._lru.age(program)

    def name_program(self, request_id: str, program: str) -> None:
        """See ``HostTier.name_program``."""
        self._lru.name(request_id, program)

    def stored(self, program: str) -> StoredKv:
        """See ``HostTier.stored``."""
        keys = self._lru.keys_of(program)
        first = _group_of(keys[0]) if keys else 0
        covered = sum(_group_of(key) == first for key in keys)
        return StoredKv(
            chunks=len(keys),
            ready_chunks=sum(self._lru.chunks[key].is_ready for key in keys),
            size_bytes=len(keys) * self._chunk_bytes,
            tokens=covered * self._tokens_per_chunk[0],
            pinned=program in self._lru.pinned,
        )

    def usage(self) -> TierUsage:
        """See ``HostTier.usage``."""
        chunks, policy, size = self._lru.chunks, self._lru, self._chunk_bytes
        return TierUsage(
            capacity_bytes=self._num_chunks * size,
            used_bytes=len(chunks) * size,
            pinned_bytes=sum(policy.is_pinned(key) for key in chunks) * size
            if policy.pinned
            else 0,
            moving_bytes=(len(chunks) - self._num_evictable_cache_chunks) * size,
        )

    def pin(self, program: str) -> None:
        """See ``HostTier.pin``."""
        self._lru.pin(program)

    def unpin(self, program: str) -> None:
        """See ``HostTier.unpin``."""
        self._lru.unpin(program)

    def drop(self, program: str) -> int:
        """See ``HostTier.drop``."""
        self._lru.unpin(program)
        orphans = self._lru.disown(program)
        self._stray.update(orphans)
        return self._free_strays(orphans) * self._chunk_bytes

    def begin_prefetch(self, program: str) -> Prefetch | None:
        """See ``HostTier.begin_prefetch``."""
        keys: list[OffloadKey] = []
        missing: set[int] = set()
        for key in self._lru.keys_of(program):
            group = _group_of(key)
            if not self._lru.chunks[key].is_ready:
                missing.add(group)
            if group not in missing:
                keys.append(key)
        if not keys:
            return None
        spec = super().prepare_load(keys, _prefetching(program))
        assert isinstance(spec, CPULoadStoreSpec)
        rows = tuple(int(row) for row in spec.chunk_ids)
        size = len(keys) * self._chunk_bytes
        held = Prefetch(program=program, keys=tuple(keys), rows=rows, size_bytes=size)
        self._prefetches.append(held)
        return held

    def end_prefetch(self, prefetch: Prefetch) -> None:
        """See ``HostTier.end_prefetch``."""
        if prefetch not in self._prefetches:
            return  # the pool was reset in the meantime
        self._prefetches.remove(prefetch)
        keys = [OffloadKey(key) for key in prefetch.keys]
        self.complete_load(keys, _prefetching(prefetch.program))

    def observe(self, finished: OffloadingWorkerMetadata) -> None:
        """Take the worker's report on finished moves into account (in ``KVConnectorOutput``)."""
        moved = finished.transfer_stats
        self.bandwidth.observe("store", moved.store.bytes, moved.store.time)
        self.bandwidth.observe("load", moved.load.bytes, moved.load.time)

    def check(self) -> None:
        """Raise AssertionError where the books do not agree; for tests."""
        self._lru.check()
        chunks = self._lru.chunks
        rows = [chunk.chunk_id for chunk in chunks.values()] + self._free_list
        assert sorted(rows) == list(range(self._num_allocated_chunks)), "rows lost or used twice"
        idle = sum(chunk.ref_cnt == 0 for chunk in chunks.values())
        assert idle == self._num_evictable_cache_chunks
        assert all(chunks[key].ref_cnt != 0 for key in self._stray if key in chunks)

    def _free_strays(self, keys: Collection[OffloadKey]) -> int:
        """Free those of these keys that nobody has and that have stopped moving; how many."""
        gone: list[OffloadKey] = []
        for key in self._stray.intersection(keys):
            chunk = self._lru.chunks.get(key)
            if chunk is None or self._lru.is_owned(key):
                self._stray.discard(key)
            elif chunk.ref_cnt == 0:
                self._stray.discard(key)
                self._lru.remove(key)
                self._free_chunk(chunk)
                self._num_evictable_cache_chunks -= 1
                gone.append(key)
        if gone and self.events is not None:
            self.events.append(OffloadingEvent(keys=gone, medium=self.medium, removed=True))
        return len(gone)


def _group_of(key: OffloadKey) -> int:
    return int.from_bytes(key[-_GROUP_BYTES:], "big")


def _prefetching(program: str) -> ReqContext:
    return ReqContext(req_id=f"prefetch of {program}", kv_transfer_params={"program": program})
