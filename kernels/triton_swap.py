"""Gather and scatter between a paged pool and rows, and copies by descriptor, as Triton kernels.

Triton is imported directly: vLLM's own wrapper of it turns it off where there is no GPU, and with
it the interpreter in which the tests run these kernels (``TRITON_INTERPRET=1``).

Both kernels are *persistent*: a few programs walk all pages, so that a move leaves the rest of the
GPU to the model. An access is two 64-bit words; the hints that the pointers and the number of words
are even make the compiler use 16-byte instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from autellix.errors import KvMoveError

from .layout import WORD_BYTES, PagedLayout
from .runs import Copies

CTAS = 8
"""Thread blocks of a move by default: enough for the bus, few enough for the model's own."""
_STEP_BYTES = 8192
_WARPS = 8


@triton.jit
def _move_pages(  # noqa: ANN202
    bases,  # noqa: ANN001
    strides,  # noqa: ANN001
    pages,  # noqa: ANN001
    offsets,  # noqa: ANN001
    blocks,  # noqa: ANN001
    stage,  # noqa: ANN001
    row_words,  # noqa: ANN001
    n_blocks,  # noqa: ANN001
    n_regions,  # noqa: ANN001
    TO_STAGE: tl.constexpr,
    STEP: tl.constexpr,
):
    # bases, strides, pages, offsets: int64[n_regions], bytes; blocks: int64[n_blocks];
    # stage: int64 words, n_blocks rows of row_words.
    lane = tl.arange(0, STEP // 8)
    job = tl.program_id(0)
    while job < n_blocks * n_regions:
        i = job // n_regions
        region = job - i * n_regions
        # 64 bits before the product: a pool is larger than 2 GiB.
        block = tl.load(blocks + i).to(tl.int64)
        address = tl.load(bases + region) + block * tl.load(strides + region)
        words = tl.multiple_of(tl.load(pages + region) // 8, 2)
        paged = tl.multiple_of(address.to(tl.pointer_type(tl.int64)), 16)
        row = tl.multiple_of(
            stage + (i.to(tl.int64) * row_words + tl.load(offsets + region) // 8), 16
        )
        for start in range(0, words, STEP // 8):
            at = start + lane
            inside = at < words
            if TO_STAGE:
                tl.store(row + at, tl.load(paged + at, mask=inside, other=0), mask=inside)
            else:
                tl.store(paged + at, tl.load(row + at, mask=inside, other=0), mask=inside)
        job += tl.num_programs(0)


@triton.jit
def _copy_each(  # noqa: ANN202
    destinations,  # noqa: ANN001
    sources,  # noqa: ANN001
    sizes,  # noqa: ANN001
    n_copies,  # noqa: ANN001
    STEP: tl.constexpr,
):
    # destinations, sources: int64[n_copies], addresses; sizes: int64[n_copies], bytes.
    lane = tl.arange(0, STEP // 8)
    job = tl.program_id(0)
    while job < n_copies:
        source = tl.load(sources + job).to(tl.pointer_type(tl.int64))
        destination = tl.load(destinations + job).to(tl.pointer_type(tl.int64))
        words = tl.load(sizes + job) // 8
        for start in range(0, words, STEP // 8):
            at = start + lane
            inside = at < words
            tl.store(destination + at, tl.load(source + at, mask=inside, other=0), mask=inside)
        job += tl.num_programs(0)


class TritonMover:
    """Gather and scatter for one layout; the tables of its regions are made once.

    Launches go to the current stream of the pool's device and return at once. Whatever is given to
    them (``blocks``, ``stage``) must stay untouched until the stream has passed them.

    Args:
        layout: pages, strides, offsets and addresses must be multiples of 16 bytes.
        ctas: thread blocks of a launch.

    Raises:
        KvMoveError: a page is not made of 16-byte words.
    """

    def __init__(self, layout: PagedLayout, *, ctas: int = CTAS) -> None:
        if not layout.in_words:
            raise KvMoveError(
                "The kernel moves 16-byte words, and a page, stride, offset or address here is no "
                "multiple of 16; such a pool is moved by plain copies."
            )
        self.layout = layout
        self._ctas = ctas

        def table(values: tuple[int, ...]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=layout.device)

        self._tables = tuple(
            map(table, (layout.addresses, layout.strides, layout.pages, layout.offsets))
        )
        self._step = min(_STEP_BYTES, triton.next_power_of_2(max(layout.pages)))

    def gather(self, blocks: torch.Tensor, stage: torch.Tensor) -> None:
        """Blocks into rows; see ``reference.gather``.

        Args:
            blocks: ``int64[n]`` or ``int32[n]`` on the pool's device.
            stage: ``uint8[>= n, row_bytes]`` on the pool's device, dense.
        """
        self._launch(blocks, stage, to_stage=True)

    def scatter(self, blocks: torch.Tensor, stage: torch.Tensor) -> None:
        """Rows into blocks; see ``reference.scatter``. Blocks must be unique: nobody looks here."""
        self._launch(blocks, stage, to_stage=False)

    def _launch(self, blocks: torch.Tensor, stage: torch.Tensor, *, to_stage: bool) -> None:
        count, row = blocks.numel(), self.layout.row_bytes
        if count == 0:
            return
        if not stage.is_contiguous() or stage.shape[0] < count or stage.shape[1] != row:
            raise KvMoveError(
                f"A stage for {count} blocks is dense uint8[{count}, {row}], got "
                f"{list(stage.shape)} with strides {stage.stride()}."
            )
        if stage.data_ptr() % WORD_BYTES or blocks.device != stage.device:
            raise KvMoveError("The stage starts at a multiple of 16 bytes, on the blocks' device.")
        regions = len(self.layout.regions)
        launch: Any = _move_pages[(min(self._ctas, count * regions),)]
        launch(
            *self._tables,
            blocks,
            stage.view(-1)[: count * row].view(torch.int64),
            row // 8,
            count,
            regions,
            TO_STAGE=to_stage,
            STEP=self._step,
            num_warps=_WARPS,
        )


def copy_each(copies: Copies, device: torch.device, *, ctas: int = CTAS) -> list[torch.Tensor]:
    """Copy between addresses by the GPU's own threads, host memory mapped into its address space.

    Sizes and addresses must be multiples of 8 bytes and host memory pinned.

    Returns:
        The tables the launch reads; keep them until the stream has passed it.
    """
    if len(copies) == 0:
        return []
    tables = [
        torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)
        for values in (copies.destinations, copies.sources, copies.sizes)
    ]
    step = min(_STEP_BYTES, triton.next_power_of_2(int(copies.sizes.max())))
    launch: Any = _copy_each[(min(ctas, len(copies)),)]
    launch(*tables, len(copies), STEP=max(step, 16), num_warps=_WARPS)
    return tables
