"""What a pool of KV blocks looks like in memory, as bytes.

A *pool* is one engine's KV cache. It consists of *regions*, usually one a layer; block ``b`` has
one *page* in each. A *row* is a block with its pages side by side: the form in which the host keeps
it, and in which a staging buffer holds it.

    region 0   | page of block 0 | page of block 1 | ...      pages of a region are ``stride`` apart
    region 1   | page of block 0 | page of block 1 | ...

    row of block 1 = | its page in region 0 | its page in region 1 |

Only addresses and strides are used. So token-major and head-major pages (NHD, HND), any element
type, one tensor or a list of them, padding between pages and pages of different sizes are all the
same to what comes after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from autellix.errors import KvMoveError

# Accesses of 16 bytes are the widest that a GPU's thread makes.
WORD_BYTES = 16


def byte_view(tensor: torch.Tensor, page_bytes: int | None = None) -> torch.Tensor:
    """A tensor whose first dimension counts blocks, as ``uint8[blocks, page_bytes]``; no copy.

    Args:
        tensor: KV cache of a layer, of any element type; the other dimensions may be in any order
            in memory but must fill one dense page.
        page_bytes: use the first so many bytes of each page; all of them by default.

    Raises:
        KvMoveError: a page has gaps, so its bytes are not one run.
    """
    size = tensor.element_size()
    dense = 1
    inner = zip(tensor.stride()[1:], tensor.shape[1:], strict=True)
    for stride, length in sorted((s, n) for s, n in inner if n > 1):
        if stride != dense:
            raise KvMoveError(
                f"A page of this KV cache is not one run of bytes: shape {tuple(tensor.shape)}, "
                f"strides {tensor.stride()}. Give the tensor as the engine allocated it, not a "
                "slice of its pages."
            )
        dense *= length
    page = dense * size
    if page_bytes is not None and page_bytes > page:
        raise KvMoveError(f"A page has {page} bytes, so {page_bytes} of them cannot be moved.")
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    raw.set_(tensor.untyped_storage())
    return raw.as_strided(
        (tensor.shape[0], page if page_bytes is None else page_bytes),
        (tensor.stride(0) * size, 1),
        tensor.storage_offset() * size,
    )


@dataclass(frozen=True, kw_only=True)
class PagedLayout:
    """Regions of a pool and the place of each region's page in a row.

    Attributes:
        regions: ``uint8[blocks, page]`` views, as :func:`byte_view` gives them.
        offsets: byte in the row at which each region's page starts.
        row_bytes: length of a row; pages need not fill it.

    Raises:
        KvMoveError: pages overlap or leave the row, or regions disagree on the number of blocks.
    """

    regions: tuple[torch.Tensor, ...]
    offsets: tuple[int, ...]
    row_bytes: int

    def __post_init__(self) -> None:
        if len(self.regions) != len(self.offsets) or not self.regions:
            raise KvMoveError(
                f"A layout has one offset a region and at least one region; got "
                f"{len(self.regions)} regions and {len(self.offsets)} offsets."
            )
        for view in self.regions:
            if view.dtype != torch.uint8 or view.ndim != 2 or view.stride(1) != 1:
                raise KvMoveError("Regions are uint8[blocks, page] views; make them by byte_view.")
            if view.shape[0] != self.blocks or view.device != self.device:
                raise KvMoveError("All regions of a pool have the same blocks on one device.")
        end = 0
        for offset, page in sorted(zip(self.offsets, self.pages, strict=True)):
            if offset < end or offset + page > self.row_bytes:
                raise KvMoveError(
                    f"A page of {page} bytes at byte {offset} overlaps another or leaves its row "
                    f"of {self.row_bytes} bytes."
                )
            end = offset + page

    @classmethod
    def side_by_side(cls, regions: Sequence[torch.Tensor]) -> PagedLayout:
        """Rows in which the regions' pages follow each other without gaps."""
        offsets, end = [], 0
        for view in regions:
            offsets.append(end)
            end += view.shape[1]
        return cls(regions=tuple(regions), offsets=tuple(offsets), row_bytes=end)

    @property
    def blocks(self) -> int:
        """Blocks in the pool."""
        return self.regions[0].shape[0]

    @property
    def device(self) -> torch.device:
        """Where the pool lies."""
        return self.regions[0].device

    @cached_property
    def pages(self) -> tuple[int, ...]:
        """Bytes of a page in each region."""
        return tuple(view.shape[1] for view in self.regions)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Bytes between the pages of neighbouring blocks in each region."""
        return tuple(view.stride(0) for view in self.regions)

    @cached_property
    def span(self) -> tuple[int, int]:
        """First byte of a row that a page covers, and the byte after the last one."""
        ends = (o + p for o, p in zip(self.offsets, self.pages, strict=True))
        return min(self.offsets), max(ends)

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes that a move of one block moves."""
        return sum(self.pages)

    @property
    def dense(self) -> bool:
        """Whether pages fill their span, so that a span can be moved as one run."""
        low, high = self.span
        return high - low == self.moved_bytes

    def tight(self) -> PagedLayout:
        """The same pages in rows that begin and end with them."""
        low, high = self.span
        return PagedLayout(
            regions=self.regions,
            offsets=tuple(offset - low for offset in self.offsets),
            row_bytes=high - low,
        )

    @property
    def packed(self) -> bool:
        """Whether a block is one run in the pool already, so that gathering it gains nothing."""
        return len(self.regions) == 1

    @cached_property
    def in_words(self) -> bool:
        """Whether every page can be moved in words of 16 bytes."""
        numbers = (*self.pages, *self.strides, *self.offsets, self.row_bytes, *self.addresses)
        return all(number % WORD_BYTES == 0 for number in numbers)

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Address of block 0's page in each region."""
        return tuple(view.data_ptr() for view in self.regions)
