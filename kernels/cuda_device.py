"""The pipeline's device on an NVIDIA GPU: PyTorch's streams and events, and this room's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autellix.errors import KvMoveError

from .cuda_runtime import CudaRuntime
from .host_tier import Direction
from .layout import PagedLayout
from .runs import Copies
from .streams import Event, Path, Stream
from .triton_swap import TritonMover, copy_each

CopyFunction = Callable[[Copies, Direction, bool], Any]
"""Queues copies on the current stream: (copies, direction, whether the source is stable)."""


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(stream)

    def done(self) -> bool:
        return self.event.query()

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, _CudaEvent)
        return earlier.event.elapsed_time(self.event) * 1e-3


class _CudaStream:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def record(self) -> Event:
        return _CudaEvent(self.stream)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self.stream.wait_event(event.event)


class CudaDevice:
    """Satisfies ``Device``.

    Args:
        device: the GPU.
        runtime: CUDA's own copies; None where they, or pinned host memory, are not to be had, which
            leaves vLLM's path alone.
        mover: makes gather and scatter for a layout; Triton's by default.
        vllm_copy: vLLM's own path, where there is one.
    """

    def __init__(
        self,
        device: torch.device,
        runtime: CudaRuntime | None,
        *,
        mover: Callable[[PagedLayout], Any] = TritonMover,
        vllm_copy: CopyFunction | None = None,
    ) -> None:
        self._device = device
        self._runtime = runtime
        self._mover = mover
        self._vllm_copy = vllm_copy
        self._movers: dict[tuple[int, ...], Any] = {}
        own = () if runtime is None else (Path.BATCH, Path.MAPPED)
        self.paths: tuple[Path, ...] = own if vllm_copy is None else (*own, Path.VLLM)

    def new_stream(self, name: str) -> Stream:
        """See ``Device.new_stream``; CUDA streams have no names."""
        return _CudaStream(torch.cuda.Stream(self._device))

    def compute_stream(self) -> Stream:
        """See ``Device.compute_stream``."""
        return _CudaStream(torch.cuda.current_stream(self._device))

    def capturing(self) -> bool:
        """See ``Device.capturing``."""
        return torch.cuda.is_current_stream_capturing()

    def can_stage(self, layout: PagedLayout) -> bool:
        """See ``Device.can_stage``."""
        return self._runtime is not None and layout.tight().in_words

    def new_stage(self, size_bytes: int) -> torch.Tensor:
        """See ``Device.new_stage``."""
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def upload(self, stream: Stream, ids: torch.Tensor) -> torch.Tensor:
        """See ``Device.upload``."""
        with torch.cuda.stream(_handle(stream)):
            return ids.to(self._device, non_blocking=True)

    def gather(
        self, stream: Stream, layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor
    ) -> None:
        """See ``Device.gather``."""
        with torch.cuda.stream(_handle(stream)):
            self._mover_of(layout).gather(blocks, stage)

    def scatter(
        self, stream: Stream, layout: PagedLayout, blocks: torch.Tensor, stage: torch.Tensor
    ) -> None:
        """See ``Device.scatter``."""
        with torch.cuda.stream(_handle(stream)):
            self._mover_of(layout).scatter(blocks, stage)

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
        queue = _handle(stream)
        with torch.cuda.stream(queue):
            if path == Path.BATCH and self._runtime is not None:
                self._runtime.copy_batch(copies, queue.cuda_stream, stable_source=stable_source)
                return None
            if path == Path.MAPPED and self._runtime is not None:
                return copy_each(copies, self._device)
            if path == Path.VLLM and self._vllm_copy is not None:
                return self._vllm_copy(copies, direction, stable_source)
        raise KvMoveError(f"This device has no path {path.value!r}.")

    def _mover_of(self, layout: PagedLayout) -> Any:
        key = (*layout.addresses, *layout.offsets, *layout.pages, layout.row_bytes)
        if key not in self._movers:
            self._movers[key] = self._mover(layout)
        return self._movers[key]


def _handle(stream: Stream) -> torch.cuda.Stream:
    assert isinstance(stream, _CudaStream)
    return stream.stream
