"""The KV tier as a plug-in of vLLM: host memory as the second level of the KV cache.

It needs nothing else of Autellix. With stock vLLM, on a GPU or on the CPU build:

    LLM(model, kv_transfer_config=transfer_config(4 * 2**30))

which is short for the connector "OffloadingConnector" with ``spec_name`` "HostTierSpec" and
``spec_module_path`` "autellix.kernels.offload". A request says whose it is by
``extra_args={"kv_transfer_params": {"program": "NAME"}}``; without it, it is a program of its own.

vLLM makes one spec in the engine core, for the books (``get_manager``), and one in every worker,
for the moves (``get_worker``). Each tensor-parallel rank keeps its own part of every block in a
pool of its own; the books are common, so all ranks use the same rows.
"""

from __future__ import annotations

from typing import Any

from .offload_manager import ProgramManager
from .offload_worker import HostMemoryWorker
from .vllm_names import (
    CanonicalKVCaches,
    CPUOffloadingSpec,
    KVTransferConfig,
    OffloadingConfig,
    OffloadingWorker,
    current_platform,
)


def transfer_config(host_bytes: int, **extra: Any) -> KVTransferConfig:
    """The engine's argument ``kv_transfer_config`` that turns the tier on.

    Args:
        host_bytes: size of the host pool over all ranks of one engine, bytes.
        extra: further entries for ``kv_connector_extra_config``.
    """
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": HostTierSpec.__name__,
            "spec_module_path": __name__,
            "cpu_bytes_to_use": host_bytes,
            # What the model says in one turn is the next turn's prompt.
            "offload_prompt_only": False,
            **extra,
        },
    )


class HostTierSpec(CPUOffloadingSpec):
    """Host tier by program, with the moves of this room."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._tier: ProgramManager | None = None
        self._moves: OffloadingWorker | None = None

    def get_manager(self) -> ProgramManager:
        """The books; called in the engine core."""
        if self._tier is None:
            self._tier = ProgramManager(
                self.num_chunks,
                self.kv_bytes_per_chunk,
                tuple(tokens * self.blocks_per_chunk for tokens in self.tokens_per_block),
                enable_events=self.kv_events_config.enable_kv_cache_events,
            )
        return self._tier

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The moves; called in every worker once the KV cache is allocated."""
        if self._moves is None:
            self._moves = self._make_worker(kv_caches)
        return self._moves

    def _uses_shared_region(self) -> bool:
        """With our moves each rank has a pool of its own; vLLM's own worker may share one."""
        return not current_platform.is_cuda() and super()._uses_shared_region()

    def _make_worker(self, caches: CanonicalKVCaches) -> OffloadingWorker:
        if current_platform.is_cpu():
            return HostMemoryWorker(caches, self.num_chunks, self.blocks_per_chunk)
        if current_platform.is_cuda():
            from .offload_gpu import gpu_worker

            return gpu_worker(caches, self.num_chunks, self.blocks_per_chunk)
        return super().get_worker(caches)
