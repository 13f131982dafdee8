"""The Triton kernels, run by Triton's interpreter, against the reference."""

from __future__ import annotations

import mmap
import random

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")


import numpy as np
import torch

from autellix.errors import KvMoveError
from autellix.kernels import reference
from autellix.kernels.layout import PagedLayout, byte_view
from autellix.kernels.runs import Copies, page_copies
from autellix.kernels.triton_swap import TritonMover, copy_each
from tests.kernels.pools import DTYPES, KINDS, layers_of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_gather_and_scatter_are_the_reference(kind: str, dtype: torch.dtype, seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(3, 9)
    layers = layers_of(kind, draw.randint(1, 4), count, dtype, seed)
    layout = PagedLayout.side_by_side([byte_view(layer) for layer in layers])
    mover = TritonMover(layout, ctas=[1, 5][seed])
    n = draw.randint(1, count)
    ids = [torch.int32, torch.int64][seed]
    source = torch.tensor(draw.sample(range(count), n))
    wanted = torch.zeros((n, layout.row_bytes), dtype=torch.uint8)
    reference.gather(layout, source, wanted)
    stage = torch.full((n + 1, layout.row_bytes), 0xAB, dtype=torch.uint8)
    mover.gather(source.to(ids), stage)
    assert torch.equal(stage[:n], wanted)
    assert (stage[n:] == 0xAB).all(), "nothing after the last row"
    target = torch.tensor(draw.sample(range(count), n))
    pools = [torch.empty(0, dtype=torch.uint8).set_(v.untyped_storage()) for v in layout.regions]
    before = [pool.clone() for pool in pools]
    reference.scatter(layout, target, wanted)
    after = [pool.clone() for pool in pools]
    for pool, was in zip(pools, before, strict=True):
        pool.copy_(was)
    mover.scatter(target.to(ids), stage)
    assert all(map(torch.equal, pools, after)), "and nothing else of the pool"


def test_pages_of_different_sizes_in_one_launch() -> None:
    sizes = (656 * 16, 132 * 16, 16, 48)
    draw = torch.Generator().manual_seed(7)
    views = [torch.randint(0, 256, (9, p), dtype=torch.uint8, generator=draw) for p in sizes]
    layout = PagedLayout.side_by_side(views)
    blocks = torch.tensor([8, 0, 3, 3, 1])  # a source may be named twice
    wanted = torch.zeros((5, layout.row_bytes), dtype=torch.uint8)
    reference.gather(layout, blocks, wanted)
    stage = torch.zeros_like(wanted)
    TritonMover(layout).gather(blocks, stage)
    assert torch.equal(stage, wanted)


def test_addresses_beyond_2_gib_do_not_wrap() -> None:
    size = 5 << 30  # untouched pages of an anonymous mapping take no memory
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = torch.frombuffer(memory, dtype=torch.uint8).view(-1, 1 << 20)
    view[4999, :64] = 7
    layout = PagedLayout.side_by_side([byte_view(view, 64)])
    stage = torch.zeros((1, 64), dtype=torch.uint8)
    TritonMover(layout).gather(torch.tensor([4999], dtype=torch.int32), stage)
    assert (stage == 7).all()


def test_no_blocks_are_no_launch() -> None:
    layout = PagedLayout.side_by_side([torch.zeros((4, 32), dtype=torch.uint8)])
    TritonMover(layout).gather(torch.tensor([], dtype=torch.int64), torch.zeros(0, 32))


def test_pages_that_are_not_16_byte_words_are_refused() -> None:
    odd = PagedLayout.side_by_side([torch.zeros((4, 24), dtype=torch.uint8)])
    with pytest.raises(KvMoveError, match="no multiple of 16"):
        TritonMover(odd)


def test_a_stage_that_is_too_small_is_refused() -> None:
    layout = PagedLayout.side_by_side([torch.zeros((4, 32), dtype=torch.uint8)])
    with pytest.raises(KvMoveError, match="stage for 2 blocks"):
        TritonMover(layout).gather(torch.tensor([1, 2]), torch.zeros((1, 32), dtype=torch.uint8))


@pytest.mark.parametrize("kind", ["LBHNC", "BLHNC", "padded"])
def test_copies_by_descriptor_are_the_reference(kind: str) -> None:
    layers = layers_of(kind, 3, 6, torch.bfloat16, 1)
    layout = PagedLayout.side_by_side([byte_view(layer) for layer in layers])
    blocks, rows = np.array([4, 0, 5]), np.array([2, 3, 0])
    wanted = torch.zeros((4, layout.row_bytes), dtype=torch.uint8)
    reference.store(layout, torch.from_numpy(blocks), wanted, torch.from_numpy(rows))
    host = torch.zeros_like(wanted)
    copies = page_copies(layout, blocks, host.data_ptr() + rows * host.stride(0))
    copy_each(copies, torch.device("cpu"))
    assert torch.equal(host, wanted)
    empty = np.empty(0, dtype=np.int64)
    assert (
        copy_each(Copies(destinations=empty, sources=empty, sizes=empty), torch.device("cpu")) == []
    )
