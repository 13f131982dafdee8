"""A device whose work is done when it is queued, in host memory: for trials without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from . import reference
from .host_tier import Direction
from .layout import PagedLayout
from .runs import Copies, copy_in_host_memory
from .streams import Event, Path, Stream


class _Now:
    def __init__(self) -> None:
        self.at = time.perf_counter()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, _Now)
        return self.at - earlier.at


class _Immediate:
    def record(self) -> Event:
        return _Now()

    def wait_for(self, event: Event) -> None:
        pass


class CpuDevice:
    """Satisfies ``Device``.

    Args:
        mover: makes gather and scatter for a layout, such as ``TritonMover`` under Triton's
            interpreter; the reference by default.
    """

    paths: tuple[Path, ...] = (Path.BATCH, Path.MAPPED)

    def __init__(self, mover: Callable[[PagedLayout], Any] | None = None) -> None:
        self._mover = mover

    def new_stream(self, name: str) -> Stream:
        """See ``Device.new_stream``."""
        return _Immediate()

    def compute_stream(self) -> Stream:
        """See ``Device.compute_stream``."""
        return _Immediate()

    def capturing(self) -> bool:
        """See ``Device.capturing``."""
        return False

    def can_stage(self, layout: PagedLayout) -> bool:
        """See ``Device.can_stage``."""
        return self._mover is None or layout.tight().in_words

    def new_stage(self, size_bytes: int) -> torch.Tensor:
        """See ``Device.new_stage``."""
        return torch.empty(size_bytes, dtype=torch.uint8)

    def upload(self, stream: Stream, ids: torch.Tensor) -> torch.Tensor:
        """See ``Device.upload``."""
        return ids

    def gather(
        self, stream: Stream, layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor
    ) -> None:
        """See ``Device.gather``."""
        if self._mover is None:
            reference.gather(layout, blocks, stage)
        else:
            self._mover(layout).gather(blocks, stage)

    def scatter(
        self, stream: Stream, layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor
    ) -> None:
        """See ``Device.scatter``."""
        if self._mover is None:
            reference.scatter(layout, blocks, stage)
        else:
            self._mover(layout).scatter(blocks, stage)

    def copy(
        self,
        stream: Stream,
        copies: Copies,
        path: Path,
        *,
        direction: Direction,
        stable_source: bool,
    ) -> Any:
        """See ``Device.copy``."""
        copy_in_host_memory(copies)
        return None
