"""Byte views and the reference: what every kernel is compared with."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.errors import KvMoveError
from autellix.kernels import reference
from autellix.kernels.layout import PagedLayout, byte_view
from tests.kernels.pools import DTYPES, KINDS, layers_of

pools = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "layers": st.integers(1, 4),
        "blocks": st.integers(1, 9),
        "dtype": st.sampled_from(DTYPES),
        "seed": st.integers(0, 10**6),
    }
)


@given(pool=pools, data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_row_is_the_blocks_own_bytes_layer_by_layer(pool: dict, data: st.DataObject) -> None:
    layers = layers_of(**pool)
    layout = PagedLayout.side_by_side([byte_view(layer) for layer in layers])
    blocks = data.draw(st.lists(st.integers(0, pool["blocks"] - 1), max_size=9))
    stage = torch.zeros((len(blocks), layout.row_bytes), dtype=torch.uint8)
    reference.gather(layout, torch.tensor(blocks, dtype=torch.int64), stage)
    for row, block in zip(stage, blocks, strict=True):
        # As it lies in memory: heads before tokens or the other way round.
        pieces = [_in_memory_order(layer[block]) for layer in layers]
        assert torch.equal(row, torch.cat(pieces))


@given(pool=pools, data=st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_stored_comes_back_and_nothing_else_changes(
    pool: dict, data: st.DataObject
) -> None:
    layers = layers_of(**pool)
    layout = PagedLayout.side_by_side([byte_view(layer) for layer in layers])
    everything = [_whole(layer).clone() for layer in layers]
    count = pool["blocks"]
    source = data.draw(st.permutations(range(count)))
    n = data.draw(st.integers(0, count))
    rows = torch.tensor(data.draw(st.permutations(range(count + 2)))[:n], dtype=torch.int64)
    host = torch.full((count + 2, layout.row_bytes), 0xAB, dtype=torch.uint8)
    blocks = torch.tensor(source[:n], dtype=torch.int64)
    assert reference.store(layout, blocks, host, rows) == n * layout.moved_bytes
    untouched = [row for row in range(count + 2) if row not in rows.tolist()]
    assert (host[untouched] == 0xAB).all()
    saved = [layer[blocks].clone() for layer in layers]
    for layer in layers:
        layer[blocks] = torch.zeros_like(layer[blocks])
    reference.load(layout, blocks, host, rows)
    for layer, was in zip(layers, saved, strict=True):
        assert torch.equal(_bytes(layer[blocks]), _bytes(was))
    for layer, was in zip(layers, everything, strict=True):
        assert torch.equal(_whole(layer), was), "gaps and other blocks are as they were"


def test_packed_keys_and_values_are_one_page() -> None:
    """LMCache 4463: K and V in the channel dimension were read as two tensors."""
    packed = torch.arange(2 * 3 * 4 * 32, dtype=torch.int16).view(2, 3, 4, 32)
    pages = byte_view(packed)
    assert pages.shape == (2, 3 * 4 * 32 * 2)
    for page, block in zip(pages, packed, strict=True):
        assert torch.equal(page, block.flatten().view(torch.uint8))


def test_a_page_with_gaps_is_refused() -> None:
    with pytest.raises(KvMoveError, match="not one run of bytes"):
        byte_view(torch.zeros(4, 2, 6, 8)[:, :, ::2])


def test_more_bytes_than_a_page_has_are_refused() -> None:
    with pytest.raises(KvMoveError, match="A page has 32 bytes"):
        byte_view(torch.zeros(4, 8), page_bytes=33)


def test_rows_leave_out_what_no_page_covers() -> None:
    views = tuple(torch.full((3, 16), i + 1, dtype=torch.uint8) for i in range(2))
    layout = PagedLayout(regions=views, offsets=(16, 48), row_bytes=80)
    assert layout.span == (16, 64) and not layout.dense and layout.moved_bytes == 32
    host = torch.zeros((2, 80), dtype=torch.uint8)
    reference.store(layout, torch.tensor([1]), host, torch.tensor([0]))
    assert host[0].tolist() == [0] * 16 + [1] * 16 + [0] * 16 + [2] * 16 + [0] * 16
    assert layout.tight().offsets == (0, 32) and layout.tight().row_bytes == 48


@pytest.mark.parametrize("offsets", [(0, 8), (0, 70), (-1, 16)])
def test_pages_neither_overlap_nor_leave_the_row(offsets: tuple[int, int]) -> None:
    views = tuple(torch.zeros((3, 16), dtype=torch.uint8) for _ in range(2))
    with pytest.raises(KvMoveError, match="overlaps another or leaves its row"):
        PagedLayout(regions=views, offsets=offsets, row_bytes=80)


def test_two_rows_for_one_block_are_refused() -> None:
    layout = PagedLayout.side_by_side([torch.zeros((3, 16), dtype=torch.uint8)])
    stage = torch.zeros((2, 16), dtype=torch.uint8)
    with pytest.raises(KvMoveError, match="named twice"):
        reference.scatter(layout, torch.tensor([1, 1]), stage)
    with pytest.raises(KvMoveError, match="there are 3"):
        reference.gather(layout, torch.tensor([3]), stage)
    with pytest.raises(KvMoveError, match="do not fit"):
        reference.gather(layout, torch.tensor([0, 1, 2]), stage)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _in_memory_order(block: torch.Tensor) -> torch.Tensor:
    order = sorted(range(block.ndim), key=block.stride, reverse=True)
    return block.permute(order).contiguous().view(torch.uint8).flatten()


def _whole(layer: torch.Tensor) -> torch.Tensor:
    raw = torch.empty(0, dtype=torch.uint8)
    return raw.set_(layer.untyped_storage())
