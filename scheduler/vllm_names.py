"""The private or undocumented names of vLLM that the adapter uses, checked when it is imported."""

from __future__ import annotations

import vllm
from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.request import Request

from autellix.errors import VersionError
from autellix.private_names import missing_names

TESTED_VERSIONS = "0.32.*"

# What classes offer, and what their instances hold.
_OFFERED: tuple[tuple[type, tuple[str, ...]], ...] = (
    (
        AsyncScheduler,
        (
            "_free_request",
            "_is_blocked_waiting_status",
            "_preempt_request",
            "_request_remaining_blocks",
            "add_request",
            "finish_requests",
            "get_request_counts",
            "make_stats",
            "schedule",
            "update_from_output",
        ),
    ),
    (KVCacheManager, ("cache_blocks", "get_blocks", "get_computed_blocks", "usage")),
    (BlockPool, ("get_num_free_blocks",)),
    (BlockHashToBlockMap, ("get_one_block",)),
    (FreeKVCacheBlockQueue, ("popleft_n", "prepend_n", "remove")),
    (KVCacheBlock, ("_block_hash", "block_id", "next_free_block", "ref_cnt")),
)
_HELD: tuple[tuple[type, tuple[str, ...]], ...] = (
    (FreeKVCacheBlockQueue, ("fake_free_list_head", "num_free_blocks")),
    (
        VllmScheduler,
        (
            "_inflight_prefills",
            "connector",
            "failed_recving_kv_req_ids",
            "finished_recving_kv_req_ids",
            "current_step",
            "log_stats",
            "kv_cache_manager",
            "block_size",
            "max_model_len",
            "max_num_active_reqs",
            "max_num_scheduled_tokens",
            "num_waiting_for_streaming_input",
            "requests",
            "requires_kv_delivery",
            "running",
            "waiting",
        ),
    ),
    (
        BlockPool,
        (
            "cached_block_hash_to_block",
            "free_block_queue",
            "hash_block_size",
            "num_gpu_blocks",
        ),
    ),
    (KVCacheManager, ("block_pool", "kv_cache_config", "watermark_blocks")),
    (
        Request,
        (
            "block_hashes",
            "drop_stale_output",
            "is_prefill_chunk",
            "num_computed_tokens",
            "num_stale_output_tokens",
            "priority",
        ),
    ),
)


def require_names() -> None:
    """Raise VersionError where the installed vLLM lacks a name."""
    if missing := missing_names(_OFFERED, _HELD):
        raise VersionError(
            f"vLLM {vllm.__version__} has no {', '.join(missing)}, which program-aware scheduling "
            f"needs; it was tested with vLLM {TESTED_VERSIONS}: install one of these"
        )
