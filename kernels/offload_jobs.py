"""VLLM's transfer jobs in this room's words: which blocks of which regions go to which rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from autellix.errors import KvMoveError

from .layout import PagedLayout, byte_view
from .pipeline import Part
from .vllm_names import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
)


def layouts_of(caches: CanonicalKVCaches) -> list[PagedLayout]:
    """The layout of each cache group; the groups' rows are the same, each covers its own pages.

    A row holds one page of every tensor, padded as the engine pads it; a group's layer may use less
    of a page than its tensor has.
    """
    offsets, end = [], 0
    for tensor in caches.tensors:
        offsets.append(end)
        end += tensor.page_size_bytes
    return [_layout(caches, refs, offsets, end) for refs in caches.group_data_refs]


def _layout(
    caches: CanonicalKVCaches, refs: Sequence[CanonicalKVCacheRef], offsets: list[int], row: int
) -> PagedLayout:
    # Layers of a group that share a tensor are moved once, as far as the longest of them goes.
    used: dict[int, int] = {}
    for ref in refs:
        used[ref.tensor_idx] = max(used.get(ref.tensor_idx, 0), ref.page_size_bytes)
    return PagedLayout(
        regions=tuple(byte_view(caches.tensors[i].tensor, used[i]) for i in sorted(used)),
        offsets=tuple(offsets[i] for i in sorted(used)),
        row_bytes=row,
    )


def parts_of(
    layouts: Sequence[PagedLayout],
    device: GPULoadStoreSpec,
    host: LoadStoreSpec,
    blocks_per_chunk: int,
) -> list[Part]:
    """Split a job by cache group.

    A host chunk holds ``blocks_per_chunk`` rows. The first block of a group may lie inside a chunk
    (``block_indices`` tells), and the last chunk may be used in part.

    Raises:
        KvMoveError: the job names fewer or more host chunks than its blocks need.
    """
    assert isinstance(host, BlockIDsLoadStoreSpec)
    blocks = np.asarray(device.block_ids, dtype=np.int64)
    chunks = np.asarray(host.block_ids, dtype=np.int64)
    within = np.arange(blocks_per_chunk, dtype=np.int64)
    parts: list[Part] = []
    at = chunk_at = 0
    for layout, size, first in zip(layouts, device.group_sizes, device.block_indices, strict=True):
        if size == 0:
            continue
        skip = first % blocks_per_chunk
        used = chunks[chunk_at : chunk_at + -(-(size + skip) // blocks_per_chunk)]
        rows = (used[:, None] * blocks_per_chunk + within).ravel()[skip : skip + size]
        if len(rows) != size:
            break
        parts.append(
            Part(
                layout=layout,
                blocks=torch.from_numpy(blocks[at : at + size]),
                rows=torch.from_numpy(rows),
            )
        )
        at, chunk_at = at + size, chunk_at + len(used)
    if (at, chunk_at) != (len(blocks), len(chunks)):
        raise KvMoveError(
            f"A job of {len(blocks)} blocks in groups of {list(device.group_sizes)} does not fit "
            f"its {len(chunks)} host chunks of {blocks_per_chunk} blocks."
        )
    return parts
