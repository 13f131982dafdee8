"""Ways to move blocks that the benchmark compares: ours, the paper's, and vLLM's two.

VLLM's ways are written anew here, so that the benchmark needs no vLLM: one batch of all pages for
the copy engine, and a kernel of 12 thread blocks over mapped host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .calibration import Calibration
from .dispatcher import Dispatcher
from .host_tier import Direction
from .layout import PagedLayout
from .pipeline import Part, Pipeline
from .runs import Copies, Ints, page_copies
from .streams import Path

VLLM_CTAS = 12


class Bed(Protocol):
    """The machine under test: a GPU, or host memory for a trial run."""

    name: str
    measures: bool
    """False for a trial run: no figure of it means anything."""

    def pool(self, regions: int, blocks: int, page: int, *, packed: bool) -> PagedLayout:
        """A KV pool of random bytes."""
        ...

    def host(self, rows: int, row_bytes: int) -> torch.Tensor:
        """Host memory, pinned where there is a GPU."""
        ...

    def pipeline(self, host: torch.Tensor, slot_bytes: int | None = None) -> Pipeline:
        """Our pipeline on this machine."""
        ...

    def one_by_one(self, copies: Copies) -> None:
        """A call for each copy, then wait."""
        ...

    def batch(self, copies: Copies, direction: Direction) -> None:
        """All copies in one call, then wait."""
        ...

    def mapped(self, copies: Copies, ctas: int) -> None:
        """All copies by the GPU's threads, then wait."""
        ...

    def decode(self, steps: int) -> list[float]:
        """Steps of a model that decodes, seconds each; on a stream of their own."""
        ...

    def apart(self) -> AbstractContextManager[None]:
        """Within it this thread's work does not wait for the model of :meth:`decode`."""
        ...

    def free(self) -> None:
        """Give all memory back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is moved.

    Attributes:
        layout: the pool.
        host: ``uint8[rows, row_bytes]``.
        part: which blocks go to which rows.
    """

    layout: PagedLayout
    host: torch.Tensor
    part: Part

    @property
    def size_bytes(self) -> int:
        """Bytes of a move."""
        return self.part.size_bytes

    def copies(self, direction: Direction) -> Copies:
        """A copy for each page."""
        rows: Ints = self.host.data_ptr() + self.part.rows.numpy() * self.host.stride(0)
        copies = page_copies(self.layout, self.part.blocks.numpy(), rows)
        return copies if direction == "store" else copies.reversed_direction()


Way = Callable[[Direction], Any]
"""Moves the scene's blocks and waits until they are there."""


def ways_of(bed: Bed, scene: Scene, calibration: Calibration | None) -> dict[str, Way]:
    """Each way by name; those that make no sense for the scene are left out.

    Args:
        bed: the machine.
        scene: what is moved.
        calibration: measurements for the dispatcher; without them it is left out.
    """
    pipeline = bed.pipeline(scene.host)
    parts = [scene.part]
    found: dict[str, Way] = {
        "loop": lambda way: bed.one_by_one(scene.copies(way)),
        "vllm batch": lambda way: bed.batch(scene.copies(way), way),
        "vllm mapped": lambda way: bed.mapped(scene.copies(way), VLLM_CTAS),
        "batch": lambda way: pipeline.submit(way, parts, Path.BATCH).wait(),
    }
    if not scene.layout.packed:
        whole = bed.pipeline(scene.host, slot_bytes=scene.size_bytes)
        found["gather+memcpy"] = lambda way: whole.submit(way, parts, Path.STAGED).wait()
        found["staged"] = lambda way: pipeline.submit(way, parts, Path.STAGED).wait()
    if calibration is not None:
        chooser = Dispatcher(pipeline, calibration)
        found["dispatcher"] = lambda way: pipeline.submit(
            way, parts, chooser.choose(way, parts)
        ).wait()
    return found


def ceiling_of(bed: Bed, scene: Scene) -> Way:
    """One copy of as many bytes: nothing can be faster."""
    flat = bed.pool(1, 1, scene.size_bytes, packed=True)
    host = bed.host(1, scene.size_bytes)
    only = Part(
        layout=flat,
        blocks=torch.zeros(1, dtype=torch.int64),
        rows=torch.zeros(1, dtype=torch.int64),
    )
    one = Scene(layout=flat, host=host, part=only)
    return lambda way: bed.batch(one.copies(way), way)


def spoils(bed: Bed, scene: Scene, way: Way) -> bool:
    """Whether a way does not bring the very bytes there and back."""
    blocks = scene.part.blocks.to(scene.layout.device)
    wanted = [view[blocks].clone() for view in scene.layout.regions]
    scene.host.zero_()
    way("store")
    there = torch.cat([pages.cpu() for pages in wanted], dim=1)
    if not torch.equal(scene.host[scene.part.rows], there):
        return True
    for view in scene.layout.regions:
        view[blocks] = 0
    way("load")
    found = [view[blocks] for view in scene.layout.regions]
    return not all(map(torch.equal, found, wanted))
