"""Which way a move goes.

| move | way, if nothing was measured |
|---|---|
| a block is one run, or pages of 64 KiB and more, or at most 16 copies | BATCH |
| pages below 28 KiB | STAGED |
| between, and where a layout cannot be staged | VLLM where there is one, else BATCH |
| the host pool is not pinned | VLLM alone |

Measured cells come before the table: there the fastest way is taken, vLLM's own being one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from .calibration import Calibration, ways_for
from .host_tier import Direction
from .layout import PagedLayout
from .pipeline import Part, Pipeline
from .streams import Path

_LARGE_PAGE = 64 * 1024
_SMALL_PAGE = 28 * 1024
_FEW_COPIES = 16


class Dispatcher:
    """Chooses the way of each move.

    Args:
        pipeline: what the moves go through.
        calibration: measurements; without them the table above decides.
    """

    def __init__(self, pipeline: Pipeline, calibration: Calibration | None = None) -> None:
        self._pipeline = pipeline
        self.calibration = calibration or Calibration(seconds={})

    def choose(self, direction: Direction, parts: Sequence[Part]) -> Path:
        """The way for a move; it can take all of its parts."""
        if not parts:
            return self._pipeline.device.paths[0]
        possible = set(self._pipeline.device.paths) | {Path.STAGED}
        for part in parts:
            possible &= set(ways_for(self._pipeline, part.layout))
        blocks = sum(part.blocks.numel() for part in parts)
        size = sum(part.size_bytes for part in parts)
        cell = self.calibration.nearest(direction, blocks, size // max(blocks, 1))
        measured = {} if cell is None else self.calibration.seconds[cell]
        fastest = [path for path in measured if path in possible]
        if fastest:
            return min(fastest, key=measured.__getitem__)
        return _by_table(parts, possible)


def _by_table(parts: Sequence[Part], possible: set[Path]) -> Path:
    copies = sum(part.blocks.numel() * len(part.layout.regions) for part in parts)
    pages = [_mean_page(part.layout) for part in parts]
    few = copies <= _FEW_COPIES or min(pages) >= _LARGE_PAGE
    if Path.BATCH in possible and (few or all(part.layout.packed for part in parts)):
        return Path.BATCH
    if Path.STAGED in possible and max(pages) < _SMALL_PAGE:
        return Path.STAGED
    return Path.VLLM if Path.VLLM in possible else Path.BATCH


def _mean_page(layout: PagedLayout) -> int:
    return layout.moved_bytes // len(layout.regions)
