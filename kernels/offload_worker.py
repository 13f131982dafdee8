"""The worker's side of the plug-in where the KV cache itself lies in host memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from . import reference
from .layout import PagedLayout
from .offload_jobs import layouts_of, parts_of
from .vllm_names import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)


class HostMemoryWorker(OffloadingWorker):
    """Moves blocks within host memory, at once, by the reference implementation.

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
        rows = chunks * blocks_per_chunk
        self._host = torch.empty((rows, self._layouts[0].row_bytes), dtype=torch.uint8)
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Blocks to the pool."""
        return self._move(job_id, src_spec, dst_spec, reference.store)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Rows of the pool to blocks."""
        return self._move(job_id, dst_spec, src_spec, reference.load)

    def get_finished(self) -> list[TransferResult]:
        """Moves that have ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def _move(
        self,
        job_id: int,
        device: GPULoadStoreSpec,
        host: LoadStoreSpec,
        move: Callable[[PagedLayout, torch.Tensor, torch.Tensor, torch.Tensor], int],
    ) -> bool:
        started = time.perf_counter()
        size = 0
        for part in parts_of(self._layouts, device, host, self._blocks_per_chunk):
            size += move(part.layout, part.blocks, self._host, part.rows)
        taken = time.perf_counter() - started
        self._finished.append(TransferResult(job_id, True, size, taken))
        return True
