"""What a move must do, in plain PyTorch: the specification that every kernel is tested against."""

from __future__ import annotations

import torch

from autellix.errors import KvMoveError

from .layout import PagedLayout


def gather(layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor) -> None:
    """Copy blocks into rows: ``stage[i]`` becomes the row of block ``blocks[i]``.

    Bytes of the row that no page covers keep their value. A block may be named twice.

    Args:
        layout: the pool.
        blocks: ``int64[n]``, block ids.
        stage: ``uint8[>= n, row_bytes]`` on the same device.
    """
    check_move(layout, blocks, stage)
    count = blocks.numel()
    for view, offset in zip(layout.regions, layout.offsets, strict=True):
        stage[:count, offset : offset + view.shape[1]] = view.index_select(0, blocks)


def scatter(layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor) -> None:
    """Copy rows into blocks: the inverse of :func:`gather`.

    Raises:
        KvMoveError: a block is named twice; which row it would get is undefined.
    """
    check_move(layout, blocks, stage)
    check_unique(blocks)
    count = blocks.numel()
    for view, offset in zip(layout.regions, layout.offsets, strict=True):
        view.index_copy_(0, blocks, stage[:count, offset : offset + view.shape[1]])


def store(layout: PagedLayout, blocks: torch.Tensor, host: torch.Tensor, rows: torch.Tensor) -> int:
    """Copy blocks to rows of the host pool; the bytes moved.

    Args:
        layout: the pool.
        blocks: ``int64[n]``, block ids.
        host: ``uint8[rows, row_bytes]``, the host pool.
        rows: ``int64[n]``, the row that each block goes to.

    Raises:
        KvMoveError: a row is named twice, or an id is out of range.
    """
    check_move(layout, blocks, host, rows)
    check_unique(rows)
    for view, offset in zip(layout.regions, layout.offsets, strict=True):
        host[:, offset : offset + view.shape[1]].index_copy_(0, rows, view.index_select(0, blocks))
    return blocks.numel() * layout.moved_bytes


def load(layout: PagedLayout, blocks: torch.Tensor, host: torch.Tensor, rows: torch.Tensor) -> int:
    """Copy rows of the host pool to blocks: the inverse of :func:`store`."""
    check_move(layout, blocks, host, rows)
    check_unique(blocks)
    for view, offset in zip(layout.regions, layout.offsets, strict=True):
        view.index_copy_(0, blocks, host[:, offset : offset + view.shape[1]].index_select(0, rows))
    return blocks.numel() * layout.moved_bytes


def check_unique(destinations: torch.Tensor) -> None:
    """Raise KvMoveError where two copies would go to one place."""
    if destinations.unique().numel() != destinations.numel():
        raise KvMoveError(
            "A destination is named twice in one move, so its content would be undefined; move "
            "each block or row once."
        )


def check_range(ids: torch.Tensor, count: int, what: str) -> None:
    """Raise KvMoveError where an id is not among ``count`` of them."""
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < count):
        raise KvMoveError(
            f"{what} {int(ids.min())} to {int(ids.max())} were asked for, but there are {count}."
        )


def check_move(
    layout: PagedLayout,
    blocks: torch.Tensor,
    rows_of: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> None:
    """Raise KvMoveError where blocks, rows and the memory of the rows do not fit each other."""
    if rows_of.dtype != torch.uint8 or rows_of.ndim != 2 or rows_of.shape[1] != layout.row_bytes:
        raise KvMoveError(
            f"Rows are uint8[n, {layout.row_bytes}] here, got {rows_of.dtype}{list(rows_of.shape)}."
        )
    check_range(blocks, layout.blocks, "Blocks")
    if rows is None:
        if rows_of.shape[0] < blocks.numel():
            raise KvMoveError(
                f"{blocks.numel()} blocks do not fit a stage of {rows_of.shape[0]} rows."
            )
        return
    check_range(rows, rows_of.shape[0], "Host rows")
    if rows.numel() != blocks.numel():
        raise KvMoveError(f"{blocks.numel()} blocks cannot go with {rows.numel()} host rows.")
