"""Machines for the benchmark: a GPU, or host memory for a trial run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import pairwise

import torch

from .cpu_device import CpuDevice
from .cuda_device import CudaDevice
from .cuda_runtime import CudaRuntime
from .host_pool import HostPool
from .host_tier import Direction
from .layout import PagedLayout
from .movers import mover_for
from .pipeline import SLOT_BYTES, Pipeline
from .runs import Copies, copy_in_host_memory
from .triton_swap import TritonMover, copy_each

_DECODE_WIDTH, _DECODE_HIDDEN, _DECODE_LAYERS, _DECODE_BATCH = 4096, 14336, 16, 64


class CpuBed:
    """Satisfies ``Bed`` in host memory; what takes how long here says nothing of a GPU."""

    name = "trial run in host memory"
    measures = False

    def pool(self, regions: int, blocks: int, page: int, *, packed: bool) -> PagedLayout:
        """See ``Bed.pool``."""
        return _pool(regions, blocks, page, packed, torch.device("cpu"))

    def host(self, rows: int, row_bytes: int) -> torch.Tensor:
        """See ``Bed.host``."""
        return torch.zeros((rows, row_bytes), dtype=torch.uint8)

    def pipeline(self, host: torch.Tensor, slot_bytes: int | None = None) -> Pipeline:
        """See ``Bed.pipeline``; gather and scatter by Triton under its interpreter."""
        return Pipeline(CpuDevice(TritonMover), host, slot_bytes=slot_bytes or SLOT_BYTES)

    def one_by_one(self, copies: Copies) -> None:
        """See ``Bed.one_by_one``."""
        copy_in_host_memory(copies)

    def batch(self, copies: Copies, direction: Direction) -> None:
        """See ``Bed.batch``."""
        copy_in_host_memory(copies)

    def mapped(self, copies: Copies, ctas: int) -> None:
        """See ``Bed.mapped``."""
        copy_each(copies, torch.device("cpu"), ctas=ctas)

    def decode(self, steps: int) -> list[float]:
        """See ``Bed.decode``."""
        return [0.0] * steps

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """See ``Bed.apart``."""
        yield

    def free(self) -> None:
        """See ``Bed.free``."""


class CudaBed:
    """Satisfies ``Bed`` on a GPU of this process."""

    measures = True

    def __init__(self, index: int = 0) -> None:
        self._device = torch.device("cuda", index)
        torch.cuda.init()
        self._runtime = CudaRuntime()
        self._queue = torch.cuda.Stream(self._device)
        self._pools: list[HostPool] = []
        self._weights: list[torch.Tensor] = []
        self._inputs: torch.Tensor | None = None
        self.name = torch.cuda.get_device_name(self._device)

    def pool(self, regions: int, blocks: int, page: int, *, packed: bool) -> PagedLayout:
        """See ``Bed.pool``."""
        return _pool(regions, blocks, page, packed, self._device)

    def host(self, rows: int, row_bytes: int) -> torch.Tensor:
        """See ``Bed.host``."""
        self._pools.append(HostPool(rows, row_bytes, registrar=self._runtime))
        assert self._pools[-1].pinned, "the driver refuses to pin host memory"
        return self._pools[-1].rows

    def pipeline(self, host: torch.Tensor, slot_bytes: int | None = None) -> Pipeline:
        """See ``Bed.pipeline``."""
        device = CudaDevice(self._device, self._runtime, mover=mover_for(self._device))
        slots = {"slots": 1, "slot_bytes": slot_bytes} if slot_bytes else {}
        return Pipeline(device, host, **slots)

    def one_by_one(self, copies: Copies) -> None:
        """See ``Bed.one_by_one``."""
        self._runtime.copy_one_by_one(copies, self._queue.cuda_stream)
        self._queue.synchronize()

    def batch(self, copies: Copies, direction: Direction) -> None:
        """See ``Bed.batch``."""
        stable = direction == "load"
        self._runtime.copy_batch(copies, self._queue.cuda_stream, stable_source=stable)
        self._queue.synchronize()

    def mapped(self, copies: Copies, ctas: int) -> None:
        """See ``Bed.mapped``."""
        with torch.cuda.stream(self._queue):
            kept = copy_each(copies, self._device, ctas=ctas)
        self._queue.synchronize()
        del kept

    def decode(self, steps: int) -> list[float]:
        """See ``Bed.decode``: small batches through large matrices, bound by memory."""
        if not self._weights:
            shape = (_DECODE_WIDTH, _DECODE_HIDDEN)
            for i in range(_DECODE_LAYERS):
                weight = torch.randn(shape, device=self._device, dtype=torch.bfloat16)
                self._weights.append(weight if i % 2 == 0 else weight.t().contiguous())
            self._inputs = torch.randn(
                (_DECODE_BATCH, _DECODE_WIDTH), device=self._device, dtype=torch.bfloat16
            )
        assert self._inputs is not None
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        marks[0].record()
        for mark in marks[1:]:
            x = self._inputs
            for weight in self._weights:
                x = x @ weight * 1e-2
            mark.record()
        torch.cuda.current_stream(self._device).synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(marks)]

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """See ``Bed.apart``."""
        with torch.cuda.stream(torch.cuda.Stream(self._device)):
            yield

    def free(self) -> None:
        """See ``Bed.free``."""
        torch.cuda.synchronize(self._device)
        for pool in self._pools:
            pool.close()
        self._pools.clear()
        torch.cuda.empty_cache()


def clock() -> float:
    """Seconds."""
    return time.perf_counter()


def _pool(regions: int, blocks: int, page: int, packed: bool, device: torch.device) -> PagedLayout:
    if packed:
        whole = torch.randint(0, 256, (blocks, regions * page), dtype=torch.uint8, device=device)
        return PagedLayout.side_by_side([whole])
    whole = torch.randint(0, 256, (regions, blocks, page), dtype=torch.uint8, device=device)
    return PagedLayout.side_by_side(list(whole))
