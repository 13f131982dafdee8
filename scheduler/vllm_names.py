"""The private or undocumented names of vLLM that the adapter uses, checked when it is imported."""

from __future__ import annotations

import vllm
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.request import Request

from autellix.errors import VersionError

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
            "get_request_counts",
            "make_stats",
            "schedule",
            "update_from_output",
        ),
    ),
    (KVCacheManager, ("get_blocks", "get_computed_blocks", "usage")),
)
_HELD: tuple[tuple[type, tuple[str, ...]], ...] = (
    (
        VllmScheduler,
        (
            "_inflight_prefills",
            "current_step",
            "log_stats",
            "kv_cache_manager",
            "block_size",
            "max_num_active_reqs",
            "max_num_scheduled_tokens",
            "num_waiting_for_streaming_input",
            "requests",
            "requires_kv_delivery",
            "running",
            "waiting",
        ),
    ),
    (KVCacheManager, ("block_pool", "watermark_blocks")),
    (
        Request,
        (
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
    missing = [
        f"{c.__name__}.{name}" for c, names in _OFFERED for name in names if name not in dir(c)
    ]
    for owner, names in _HELD:
        set_there = owner.__init__.__code__.co_names
        missing += [f"{owner.__name__}.{name}" for name in names if name not in set_there]
    if missing:
        raise VersionError(
            f"vLLM {vllm.__version__} has no {', '.join(missing)}, which program-aware scheduling "
            f"needs; it was tested with vLLM {TESTED_VERSIONS}: install one of these"
        )
