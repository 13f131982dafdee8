"""Which way is fastest on this machine: measured at start, in about a second.

Constants do not carry over from one GPU to the next, so there are none. For each direction, and for
moves of one block, four, sixteen and so on, every way is tried with the engine's own pool and host
memory. What is tried writes nothing new: blocks go to the host and come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from .host_tier import Direction
from .layout import PagedLayout
from .pipeline import Part, Pipeline
from .streams import Path

BUDGET_S = 1.0
_REPEATS = 3
_GROWTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Moves of about one size.

    Attributes:
        direction: store or load.
        blocks: blocks of the move.
        block_bytes: bytes of a block.
    """

    direction: Direction
    blocks: int
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured seconds of each way in each cell.

    Attributes:
        seconds: cell -> way -> median time of a move, seconds, from the call until it is done.
    """

    seconds: dict[Cell, dict[Path, float]]

    def nearest(self, direction: Direction, blocks: int, block_bytes: int) -> Cell | None:
        """The measured cell most like a move: nearest in ratio of blocks, then of bytes."""

        def distance(cell: Cell) -> tuple[float, float]:
            return (
                abs(math.log(cell.block_bytes / max(block_bytes, 1))),
                abs(math.log(cell.blocks / max(blocks, 1))),
            )

        cells = [cell for cell in self.seconds if cell.direction == direction]
        return min(cells, key=distance, default=None)

    def bytes_per_s(self, direction: Direction) -> float | None:
        """Best bandwidth measured in a direction, bytes a second; None if nothing was."""
        speeds = [
            cell.blocks * cell.block_bytes / min(ways.values())
            for cell, ways in self.seconds.items()
            if cell.direction == direction
        ]
        return max(speeds, default=None)

    def table(self) -> str:
        """The measurements for people: GB/s of each way, the fastest one marked."""
        ways = sorted({path for found in self.seconds.values() for path in found})
        lines = ["direction  blocks  KiB/block  " + "  ".join(f"{path:>8}" for path in ways)]
        for cell, found in self.seconds.items():
            best = min(found, key=found.__getitem__)
            moved = cell.blocks * cell.block_bytes / 1e9
            speeds = [
                f"{moved / found[path]:7.1f}{'*' if path == best else ' '}"
                if path in found
                else f"{'-':>7} "
                for path in ways
            ]
            size = cell.block_bytes / 1024
            lines.append(f"{cell.direction:9}  {cell.blocks:6}  {size:9.0f}  " + "  ".join(speeds))
        return "\n".join(lines)


def ways_for(pipeline: Pipeline, layout: PagedLayout) -> tuple[Path, ...]:
    """Ways that can move this layout; staging a block that is one run already gains nothing."""
    stages = layout.dense and not layout.packed and pipeline.device.can_stage(layout)
    return (*((Path.STAGED,) if stages else ()), *pipeline.device.paths)


def calibrate(
    pipeline: Pipeline,
    layouts: Iterable[PagedLayout],
    *,
    clock: Callable[[], float],
    budget_s: float = BUDGET_S,
) -> Calibration:
    """Measure. The pool must be idle; its content is the same afterwards.

    Cells are measured whole or not at all, small moves first, until the time is used up.

    Args:
        pipeline: the streams and host memory that will be used.
        layouts: layouts of the pool; those with blocks of one size are measured once.
        clock: seconds.
        budget_s: stop after this time; the cell under way is finished.
    """
    deadline = clock() + budget_s
    seconds: dict[Cell, dict[Path, float]] = {}
    sizes: set[int] = set()
    for layout in layouts:
        if layout.moved_bytes in sizes:
            continue
        sizes.add(layout.moved_bytes)
        for blocks in _counts(min(layout.blocks, pipeline.host.shape[0])):
            if seconds and clock() >= deadline:
                break
            part = _spread(layout, blocks, pipeline.host.shape[0])
            # In turns, so that a load brings back what the store has taken.
            timings: dict[Direction, dict[Path, list[float]]] = {"store": {}, "load": {}}
            for path in ways_for(pipeline, layout):
                for repeat in range(_REPEATS + 1):
                    for direction, found in timings.items():
                        taken = _timed(pipeline, direction, part, path, clock)
                        if repeat:  # the first one compiles and warms up
                            found.setdefault(path, []).append(taken)
            for direction, found in timings.items():
                cell = Cell(direction=direction, blocks=blocks, block_bytes=layout.moved_bytes)
                seconds[cell] = {path: median(times) for path, times in found.items()}
    return Calibration(seconds=seconds)


def _timed(
    pipeline: Pipeline,
    direction: Direction,
    part: Part,
    path: Path,
    clock: Callable[[], float],
) -> float:
    started = clock()
    pipeline.submit(direction, [part], path).wait()
    return max(clock() - started, 1e-9)


def _counts(most: int) -> Sequence[int]:
    counts = [1]
    while counts[-1] * _GROWTH <= min(most, 1024):
        counts.append(counts[-1] * _GROWTH)
    return counts


def _spread(layout: PagedLayout, blocks: int, rows: int) -> Part:
    # Every other block, as a pool looks after some use; dense rows, as the host's are given out.
    step = 2 if 2 * blocks <= layout.blocks else 1
    return Part(
        layout=layout,
        blocks=torch.arange(blocks, dtype=torch.int64) * step,
        rows=torch.arange(blocks, dtype=torch.int64) % rows,
    )
