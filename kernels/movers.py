"""Which gather and scatter a GPU gets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from autellix.errors import KvMoveError

from .cuda_swap import CudaKernels, CudaMover
from .layout import PagedLayout
from .triton_swap import TritonMover

_log = logging.getLogger("autellix")


@cache
def mover_for(device: torch.device) -> Callable[[PagedLayout], Any]:
    """CUDA C++ where it can be compiled, else Triton; both are tested against one reference."""
    try:
        kernels = CudaKernels.for_device(device)
    except KvMoveError as cause:
        _log.info("KV tier: Triton's kernels are used. %s", cause)
        return TritonMover
    return lambda layout: CudaMover(layout, kernels)
