"""What the pipeline needs of a device: streams, events, and four kinds of work.

The semantics are CUDA's. Work on one stream runs in order; work on two streams runs in any order
and at the same time, unless one waits for an event of the other. Every call returns at once. A
test's device runs the work in the worst order that the events allow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

import torch

from .host_tier import Direction
from .layout import PagedLayout
from .runs import Copies


class Path(StrEnum):
    """A way to move blocks between the device and the host."""

    STAGED = "staged"
    """Gather into a stage and one bulk copy, or the reverse; several stages take turns."""
    BATCH = "batch"
    """All copies in one submission to the copy engine, neighbouring ones merged."""
    MAPPED = "mapped"
    """The GPU's own threads copy, host memory mapped into their address space."""
    VLLM = "vllm"
    """Whatever vLLM itself would do."""


class Event(Protocol):
    """A point in a stream's work."""

    def done(self) -> bool:
        """Whether all work before the point has ended; does not wait."""
        ...

    def wait(self) -> None:
        """Block the calling thread until it has."""
        ...

    def seconds_since(self, earlier: Event) -> float:
        """Device time between two points that are done, seconds."""
        ...


class Stream(Protocol):
    """A queue of work on the device."""

    def record(self) -> Event:
        """The point after all work queued so far."""
        ...

    def wait_for(self, event: Event) -> None:
        """Work queued from now on starts only after that point of another stream."""
        ...


class Device(Protocol):
    """A device's queues and the work that moves need."""

    paths: tuple[Path, ...]
    """Ways that this device has, besides STAGED."""

    def new_stream(self, name: str) -> Stream:
        """A stream of our own; never the device's legacy stream, which orders all others."""
        ...

    def compute_stream(self) -> Stream:
        """The stream on which the model runs at this moment."""
        ...

    def capturing(self) -> bool:
        """Whether work queued now would be recorded into a graph instead of done."""
        ...

    def can_stage(self, layout: PagedLayout) -> bool:
        """Whether gather and scatter work for this layout."""
        ...

    def new_stage(self, size_bytes: int) -> torch.Tensor:
        """``uint8[size_bytes]`` of device memory at a multiple of 16 bytes."""
        ...

    def upload(self, stream: Stream, ids: torch.Tensor) -> torch.Tensor:
        """``int64[n]`` on the device. ``ids`` and the result stay untouched until it is used."""
        ...

    def gather(
        self, stream: Stream, layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor
    ) -> None:
        """Blocks into rows of a stage, ``uint8[n, row_bytes]``."""
        ...

    def scatter(
        self, stream: Stream, layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor
    ) -> None:
        """Rows of a stage into blocks."""
        ...

    def copy(
        self,
        stream: Stream,
        copies: Copies,
        path: Path,
        *,
        direction: Direction,
        stable_source: bool,
    ) -> Any:
        """Copies between addresses by BATCH, MAPPED or VLLM.

        Args:
            stream: where.
            copies: what.
            path: how.
            direction: whether the sources are on the device ("store") or on the host ("load").
            stable_source: sources are not written by any work that is still queued, so they may be
                read at any time from now on, ahead of the stream's order.

        Returns:
            What the copies read while they run; the caller keeps it until they are done.
        """
        ...
