"""VLLM's own offloading where its worker does not run: its manager, with this project's copies.

What is stored, loaded and evicted is decided by vLLM alone; only the bytes are moved by the worker
of the KV tier, since vLLM's needs a GPU.
"""

from __future__ import annotations

from vllm.config import KVTransferConfig
from vllm.v1.kv_offload.base import OffloadingManager
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from autellix.kernels.offload import HostTierSpec, transfer_config


class VllmBooks(HostTierSpec):
    """The spec that vLLM makes from :func:`vllm_books_config`."""

    def get_manager(self) -> OffloadingManager:  # type: ignore[override]
        """The books; called in the engine core."""
        return CPUOffloadingSpec.get_manager(self)


def vllm_books_config(host_bytes: int) -> KVTransferConfig:
    """The engine's argument ``kv_transfer_config`` for vLLM's own offloading.

    Args:
        host_bytes: size of the host pool, bytes.
    """
    return transfer_config(
        host_bytes, spec_name=VllmBooks.__name__, spec_module_path=VllmBooks.__module__
    )
