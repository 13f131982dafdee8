"""The worker's side of the plug-in: vLLM's jobs become moves."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from . import reference
from .dispatcher import Dispatcher
from .host_pool import HostPool
from .host_tier import Direction
from .offload_jobs import layouts_of, parts_of
from .pipeline import Move, Pipeline
from .runs import copy_in_host_memory, page_copies
from .vllm_names import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)


class HostMemoryWorker(OffloadingWorker):
    """For a KV cache in host memory: moves blocks at once, run by run.

    A move is complete when it has been submitted: nothing can overtake it. The CPU build computes
    on the same cores, so a move on the side would gain nothing.

    Args:
        caches: the engine's KV cache.
        chunks: pieces in the host pool.
        blocks_per_chunk: blocks in a piece.
    """

    def __init__(self, caches: CanonicalKVCaches, chunks: int, blocks_per_chunk: int) -> None:
        self._layouts = layouts_of(caches)
        self._blocks_per_chunk = blocks_per_chunk
        self._pool = HostPool(chunks * blocks_per_chunk, self._layouts[0].row_bytes)
        self._finished: list[TransferResult] = []

    @property
    def rows(self) -> torch.Tensor:
        """The host pool, ``uint8[rows, row_bytes]``."""
        return self._pool.rows

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Blocks to the pool."""
        return self._move(job_id, "store", src_spec, dst_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Rows of the pool to blocks."""
        return self._move(job_id, "load", dst_spec, src_spec)

    def get_finished(self) -> list[TransferResult]:
        """Moves that have ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        """Give the host pool back."""
        self._pool.close()

    def _move(
        self, job_id: int, direction: Direction, device: GPULoadStoreSpec, host: LoadStoreSpec
    ) -> bool:
        started = time.perf_counter()
        parts = parts_of(self._layouts, device, host, self._blocks_per_chunk)
        for part in parts:
            reference.check_move(part.layout, part.blocks, self.rows, part.rows)
            addresses = self.rows.data_ptr() + part.rows.numpy() * self.rows.stride(0)
            copies = page_copies(part.layout, part.blocks.numpy(), addresses)
            if direction == "load":
                copies = copies.reversed_direction()
            copy_in_host_memory(copies.merged())
        taken = time.perf_counter() - started
        size = sum(part.size_bytes for part in parts)
        self._finished.append(TransferResult(job_id, True, size, taken))
        return True


class PipelineWorker(OffloadingWorker):
    """Moves blocks through a pipeline, each by the way the dispatcher chooses.

    Args:
        caches: the engine's KV cache.
        pipeline: streams and the host pool; its rows are those of ``layouts_of(caches)``.
        dispatcher: chooses the way.
        blocks_per_chunk: blocks in a piece.
        on_shutdown: called when nothing moves any more.
    """

    def __init__(
        self,
        caches: CanonicalKVCaches,
        pipeline: Pipeline,
        dispatcher: Dispatcher,
        blocks_per_chunk: int,
        *,
        on_shutdown: Callable[[], None] | None = None,
    ) -> None:
        self._layouts = layouts_of(caches)
        self._pipeline = pipeline
        self._dispatcher = dispatcher
        self._blocks_per_chunk = blocks_per_chunk
        self._on_shutdown = on_shutdown
        self._moves: dict[int, Move] = {}

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Blocks to the pool; returns at once."""
        return self._submit(job_id, "store", src_spec, dst_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Rows of the pool to blocks; returns at once."""
        return self._submit(job_id, "load", dst_spec, src_spec)

    def get_finished(self) -> list[TransferResult]:
        """Moves that have ended since the last call."""
        finished = [job for job, move in self._moves.items() if move.done()]
        results: list[TransferResult] = []
        for job in finished:
            move = self._moves.pop(job)
            results.append(TransferResult(job, True, move.size_bytes, move.seconds()))
        return results

    def wait(self, job_ids: set[int]) -> None:
        """Block until these have ended; vLLM asks before it uses their blocks for others."""
        for job in job_ids:
            if (move := self._moves.get(job)) is not None:
                move.wait()

    def shutdown(self) -> None:
        """Let what moves arrive, then free streams and memory."""
        self._pipeline.close()
        self._moves.clear()
        if self._on_shutdown is not None:
            self._on_shutdown()

    def _submit(
        self, job_id: int, direction: Direction, device: GPULoadStoreSpec, host: LoadStoreSpec
    ) -> bool:
        parts = parts_of(self._layouts, device, host, self._blocks_per_chunk)
        path = self._dispatcher.choose(direction, parts)
        self._moves[job_id] = self._pipeline.submit(direction, parts, path)
        return True
