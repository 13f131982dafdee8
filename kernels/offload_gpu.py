"""The plug-in's worker on an NVIDIA GPU: host pool, pipeline and calibration, put together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch

from autellix.errors import KvMoveError

from .calibration import Calibration, calibrate
from .cuda_device import CudaDevice
from .cuda_runtime import CudaRuntime
from .dispatcher import Dispatcher
from .host_pool import HostPool, node_of_gpu
from .host_tier import Direction
from .movers import mover_for
from .offload_jobs import layouts_of
from .offload_worker import PipelineWorker
from .pipeline import Pipeline
from .runs import Copies
from .triton_swap import TritonMover
from .vllm_names import CanonicalKVCaches, _select_swap_blocks_fn

_log = logging.getLogger("autellix")


def gpu_worker(caches: CanonicalKVCaches, chunks: int, blocks_per_chunk: int) -> PipelineWorker:
    """The worker for the GPU that holds the KV cache; takes about a second to calibrate.

    Where CUDA is too old for batches, or the host pool cannot be pinned, all moves go vLLM's way.

    Args:
        caches: the engine's KV cache; nothing is computed on it yet.
        chunks: pieces in the host pool.
        blocks_per_chunk: blocks in a piece.

    Raises:
        KvMoveError: there is not so much host memory.
    """
    device = caches.tensors[0].tensor.device
    runtime = _runtime()
    layouts = layouts_of(caches)
    node = node_of_gpu(_pci_address(device))
    rows = chunks * blocks_per_chunk
    pool = HostPool(rows, layouts[0].row_bytes, registrar=runtime, node=node)
    if runtime is not None and not pool.pinned:
        _log.warning(
            "KV tier: %.1f GiB of host memory could not be pinned, so moves go vLLM's way, slower. "
            "Ask for less with --kv-host-gib.",
            rows * layouts[0].row_bytes / 2**30,
        )
    try:
        own = runtime if pool.pinned else None
        target = CudaDevice(
            device,
            own,
            mover=TritonMover if own is None else mover_for(device),
            vllm_copy=_vllm_copy(caches, pinned=pool.pinned),
        )
        pipeline = Pipeline(target, pool.rows)
        measured = calibrate(pipeline, layouts, clock=time.perf_counter)
    except BaseException:
        pool.close()
        raise
    _report(measured, device)
    dispatcher = Dispatcher(pipeline, measured)
    return PipelineWorker(caches, pipeline, dispatcher, blocks_per_chunk, on_shutdown=pool.close)


def _runtime() -> CudaRuntime | None:
    try:
        return CudaRuntime()
    except KvMoveError as cause:
        _log.warning("KV tier: moves go vLLM's way. %s", cause)
        return None


def _vllm_copy(
    caches: CanonicalKVCaches, *, pinned: bool
) -> Callable[[Copies, Direction, bool], Any]:
    """What vLLM itself would do with these copies."""
    chosen = {
        direction: _select_swap_blocks_fn(caches.group_data_refs, direction == "store", pinned)
        for direction in ("store", "load")
    }

    def copy(copies: Copies, direction: Direction, stable_source: bool) -> Any:
        tables = [
            torch.from_numpy(values).clone()
            for values in (copies.sources, copies.destinations, copies.sizes)
        ]
        chosen[direction](*tables, is_src_access_order_any=stable_source)
        return tables

    return copy


def _pci_address(device: torch.device) -> str:
    found = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def _report(measured: Calibration, device: torch.device) -> None:
    _log.info(
        "KV tier on %s, GB/s by way (* is taken):\n%s",
        torch.cuda.get_device_name(device),
        measured.table(),
    )
