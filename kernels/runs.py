"""A move as plain copies, and neighbouring copies merged into runs.

Two copies are merged only where the first one's end is the second one's start *on both sides*, by
address. So gaps between pages are never copied, whatever the strides are.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .layout import PagedLayout

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copies between addresses: ``sizes[i]`` bytes from ``sources[i]`` to ``destinations[i]``.

    All three are ``int64[n]``; addresses are as the device sees them.
    """

    destinations: Ints
    sources: Ints
    sizes: Ints

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def total_bytes(self) -> int:
        """Bytes that all copies move."""
        return int(self.sizes.sum())

    def reversed_direction(self) -> Copies:
        """The same copies the other way."""
        return Copies(destinations=self.sources, sources=self.destinations, sizes=self.sizes)

    def merged(self) -> Copies:
        """The same bytes in as few copies as neighbourhood allows; the order is kept."""
        if len(self) < 2:
            return self
        ends = self.sizes[:-1]
        breaks = (self.sources[:-1] + ends != self.sources[1:]) | (
            self.destinations[:-1] + ends != self.destinations[1:]
        )
        starts = np.flatnonzero(np.concatenate(([True], breaks)))
        return Copies(
            destinations=self.destinations[starts],
            sources=self.sources[starts],
            sizes=np.add.reduceat(self.sizes, starts),
        )


def page_copies(layout: PagedLayout, blocks: Ints, row_addresses: Ints) -> Copies:
    """One copy a page, from the pool to rows; block by block, so that a packed block is a run.

    Args:
        layout: the pool.
        blocks: ``int64[n]``, block ids.
        row_addresses: ``int64[n]``, address of the row that each block goes to.
    """
    order = np.argsort(np.array(layout.offsets), kind="stable")
    bases, strides, offsets, pages = (
        np.array(values, dtype=np.int64)[order]
        for values in (layout.addresses, layout.strides, layout.offsets, layout.pages)
    )
    return Copies(
        destinations=(row_addresses[:, None] + offsets).ravel(),
        sources=(bases + blocks[:, None] * strides).ravel(),
        sizes=np.tile(pages, len(blocks)),
    )


def row_copies(row_addresses: Ints, stage_address: int, row_bytes: int) -> Copies:
    """One copy a row, from a stage in which rows follow each other, to rows anywhere."""
    count = len(row_addresses)
    return Copies(
        destinations=row_addresses,
        sources=stage_address + np.arange(count, dtype=np.int64) * row_bytes,
        sizes=np.full(count, row_bytes, dtype=np.int64),
    )


def copy_in_host_memory(copies: Copies) -> None:
    """Make the copies here and now; all addresses are of this process.

    A plain copy of each run: with pages of some KiB PyTorch's indexing takes a hundred times as
    long.
    """
    for destination, source, size in zip(
        copies.destinations.tolist(), copies.sources.tolist(), copies.sizes.tolist(), strict=True
    ):
        ctypes.memmove(destination, source, size)
