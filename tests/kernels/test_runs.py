"""Copies and runs: merging changes their number, never a byte."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.kernels import reference
from autellix.kernels.layout import PagedLayout, byte_view
from autellix.kernels.runs import Copies, copy_in_host_memory, page_copies
from tests.kernels.pools import KINDS, layers_of

addresses = st.integers(0, 400).map(lambda word: word * 8)
lists = st.lists(st.tuples(addresses, addresses, st.sampled_from([8, 16])), max_size=30)


def copies_of(triples: list[tuple[int, int, int]]) -> Copies:
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    return Copies(destinations=columns[0], sources=columns[1], sizes=columns[2])


def bytes_of(copies: Copies) -> list[tuple[int, int]]:
    return [
        (int(d) + k, int(s) + k)
        for d, s, n in zip(copies.destinations, copies.sources, copies.sizes, strict=True)
        for k in range(int(n))
    ]


@given(triples=lists, neighbours=st.booleans())
@settings(max_examples=300)
def test_merging_keeps_every_byte_and_leaves_no_neighbours(
    triples: list[tuple[int, int, int]], neighbours: bool
) -> None:
    if neighbours:  # else hardly any two of them touch
        triples = [(8 * i, 1000 + 8 * i + 8 * (i // 5), 8) for i in range(len(triples))]
    copies = copies_of(triples)
    merged = copies.merged()
    assert bytes_of(merged) == bytes_of(copies)
    ends = merged.sizes[:-1]
    touch = (merged.sources[:-1] + ends == merged.sources[1:]) & (
        merged.destinations[:-1] + ends == merged.destinations[1:]
    )
    assert not touch.any()


def test_copies_that_touch_on_one_side_alone_are_not_merged() -> None:
    assert len(copies_of([(0, 0, 8), (8, 24, 8)]).merged()) == 2
    assert len(copies_of([(0, 0, 8), (24, 8, 8)]).merged()) == 2
    assert len(copies_of([(0, 0, 8), (8, 8, 8)]).merged()) == 1


@given(
    kind=st.sampled_from(KINDS),
    layers=st.integers(1, 3),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_the_copies_of_a_move_are_the_reference(
    kind: str, layers: int, seed: int, data: st.DataObject
) -> None:
    tensors = layers_of(kind, layers, 6, torch.bfloat16, seed)
    layout = PagedLayout.side_by_side([byte_view(tensor) for tensor in tensors])
    n = data.draw(st.integers(1, 6))
    blocks = np.array(data.draw(st.permutations(range(6)))[:n])
    rows = np.array(data.draw(st.permutations(range(8)))[:n])
    wanted = torch.zeros((8, layout.row_bytes), dtype=torch.uint8)
    reference.store(layout, torch.from_numpy(blocks), wanted, torch.from_numpy(rows))
    host = torch.zeros_like(wanted)
    copies = page_copies(layout, blocks, host.data_ptr() + rows * host.stride(0)).merged()
    copy_in_host_memory(copies)
    assert torch.equal(host, wanted)
    before = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor[torch.from_numpy(blocks)] = 0
    copy_in_host_memory(copies.reversed_direction())
    for tensor, was in zip(tensors, before, strict=True):
        assert torch.equal(
            tensor.contiguous().view(torch.uint8), was.contiguous().view(torch.uint8)
        )


def test_a_packed_pool_moves_in_one_run() -> None:
    tensors = layers_of("BLHNC", 3, 6, torch.bfloat16, 0)
    layout = PagedLayout.side_by_side([byte_view(tensor) for tensor in tensors])
    host = torch.zeros((6, layout.row_bytes), dtype=torch.uint8)
    blocks = np.arange(2, 5)
    rows = host.data_ptr() + np.arange(3) * host.stride(0)
    assert len(page_copies(layout, blocks, rows)) == 9
    assert len(page_copies(layout, blocks, rows).merged()) == 1
