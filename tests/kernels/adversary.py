"""A device whose work runs in the worst order that its events allow, on memory of this process.

- Each stream is a queue; which queue goes on is drawn at random, and nothing goes on by itself. For
  every other seed the model goes on only when nothing else can.
- A copy whose source is said to be stable may read it as soon as it is queued.
- Copies of one batch run in a random order.
- Memory that work reads must be kept alive until it has run; the device holds no reference.
- Waits between two named streams can be switched off, to show that a test would notice.
"""

from __future__ import annotations

import ctypes
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autellix.kernels import reference
from autellix.kernels.host_tier import Direction
from autellix.kernels.layout import PagedLayout
from autellix.kernels.runs import Copies
from autellix.kernels.streams import Event, Path, Stream


class Point:
    """An event: a place in a stream's queue."""

    def __init__(self, stream: Queue) -> None:
        self.stream = stream
        self.place = stream.queued

    def done(self) -> bool:
        return self.stream.ran >= self.place

    def wait(self) -> None:
        self.stream.device.run_until(self)

    def seconds_since(self, earlier: Event) -> float:
        return 1.0


class Queue:
    """A stream."""

    def __init__(self, device: Adversary, name: str) -> None:
        self.device, self.name = device, name
        self.work: list[Callable[[], None] | Point] = []
        self.ran = 0

    @property
    def queued(self) -> int:
        return self.ran + len(self.work)

    def record(self) -> Point:
        return Point(self)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, Point)
        if (self.name, event.stream.name) not in self.device.deaf:
            self.work.append(event)

    def ready(self) -> bool:
        head = self.work[0] if self.work else None
        return head is not None and (not isinstance(head, Point) or head.done())

    def step(self) -> None:
        head = self.work.pop(0)
        if not isinstance(head, Point):
            head()
        self.ran += 1


class Adversary:
    """Satisfies ``Device``."""

    paths = (Path.BATCH, Path.MAPPED, Path.VLLM)

    def __init__(self, seed: int, *, deaf: set[tuple[str, str]] = frozenset()) -> None:  # type: ignore[assignment]
        self.random = random.Random(seed)
        self.deaf = deaf
        self.model_last = bool(seed % 2)
        self.queues: list[Queue] = []
        self.model = Queue(self, "model")
        self.queues.append(self.model)
        self.in_capture = False
        self.everything_stable = False
        self.orders: list[tuple[str, bool]] = []
        self._owners: list[tuple[int, int, Any]] = []

    # Device.

    def new_stream(self, name: str) -> Queue:
        self.queues.append(Queue(self, name))
        return self.queues[-1]

    def compute_stream(self) -> Queue:
        return self.model

    def capturing(self) -> bool:
        return self.in_capture

    def can_stage(self, layout: PagedLayout) -> bool:
        return True

    def new_stage(self, size_bytes: int) -> torch.Tensor:
        return torch.from_numpy(np.full(size_bytes, 0xEE, dtype=np.uint8))

    def upload(self, stream: Stream, ids: torch.Tensor) -> torch.Tensor:
        there = np.zeros(ids.numel(), dtype=np.int64)
        self._owners.append((there.ctypes.data, there.nbytes, weakref.ref(there)))
        address = ids.data_ptr()

        def run() -> None:
            target = self._owner_of(there_at)
            ctypes.memmove(there_at, address, target.nbytes)

        there_at = there.ctypes.data
        self._queue(stream, run)
        return torch.from_numpy(there)

    def gather(
        self, stream: Stream, layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor
    ) -> None:
        at, count = blocks.data_ptr(), blocks.numel()
        self._queue(stream, lambda: reference.gather(layout, self._ids(at, count), stage))

    def scatter(
        self, stream: Stream, layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor
    ) -> None:
        at, count = blocks.data_ptr(), blocks.numel()
        self._queue(stream, lambda: reference.scatter(layout, self._ids(at, count), stage))

    def copy(
        self,
        stream: Stream,
        copies: Copies,
        path: Path,
        *,
        direction: Direction,
        stable_source: bool,
    ) -> Any:
        assert isinstance(stream, Queue)
        self.orders.append((stream.name, stable_source))
        kept = _Descriptors(copies)
        alive = weakref.ref(kept)
        early = stable_source or self.everything_stable
        read = _read(copies) if early and self.random.random() < 0.5 else None

        def run() -> None:
            mine = _living(alive, "descriptors").copies
            data = read if read is not None else _read(mine)
            order = list(range(len(mine)))
            self.random.shuffle(order)
            for i in order:
                ctypes.memmove(int(mine.destinations[i]), data[i], int(mine.sizes[i]))

        self._queue(stream, run)
        return kept

    # The test's side.

    def run_model(self, work: Callable[[], None]) -> None:
        """Queue work of the model."""
        self._queue(self.model, work)

    def run_some(self, steps: int) -> None:
        """Let so much work run, if there is as much."""
        for _ in range(steps):
            if not self._step():
                return

    def run_all(self) -> None:
        """Let everything run."""
        while self._step():
            pass
        assert not any(queue.work for queue in self.queues), "work waits for itself"

    def run_until(self, point: Point) -> None:
        while not point.done():
            assert self._step(), "nothing can run, yet the event is not reached"

    def _step(self) -> bool:
        ready = [queue for queue in self.queues if queue.ready()]
        if self.model_last and len(ready) > 1:
            ready = [queue for queue in ready if queue is not self.model]
        if ready:
            self.random.choice(ready).step()
        return bool(ready)

    def _owner_of(self, address: int) -> np.ndarray:
        for base, size, alive in reversed(self._owners):
            if base <= address < base + size:
                return _living(alive, "ids")
        raise AssertionError("ids that were never uploaded")

    def _ids(self, address: int, count: int) -> torch.Tensor:
        owner = self._owner_of(address)
        start = (address - owner.ctypes.data) // owner.itemsize
        return torch.from_numpy(owner[start : start + count].copy())

    def _queue(self, stream: Stream, work: Callable[[], None]) -> None:
        assert isinstance(stream, Queue)
        stream.work.append(work)


class _Descriptors:
    def __init__(self, copies: Copies) -> None:
        self.copies = copies


def _living(reference_to: Any, what: str) -> Any:
    found = reference_to()
    assert found is not None, f"{what} given back while in use"
    return found


def _read(copies: Copies) -> list[bytes]:
    return [
        ctypes.string_at(int(source), int(size))
        for source, size in zip(copies.sources, copies.sizes, strict=True)
    ]
