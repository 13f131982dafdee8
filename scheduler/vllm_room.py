"""The capacity of an engine of vLLM's, as the core asks for it when it looks for victims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.request import RequestStatus

from .live_call import LiveCall
from .way_back import KvRates, way_back

if TYPE_CHECKING:
    from .vllm_adapter import ProgramScheduler


class VllmRoom:
    """Satisfies ``Capacity``."""

    def __init__(self, scheduler: ProgramScheduler) -> None:
        self._scheduler = scheduler

    @property
    def free_seats(self) -> int:
        """See ``Capacity.free_seats``."""
        scheduler = self._scheduler
        # A paused session of streamed input is not running but keeps its seat.
        taken = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        return scheduler.max_num_active_reqs - taken

    @property
    def free_blocks(self) -> int:
        """See ``Capacity.free_blocks``."""
        manager = self._scheduler.kv_cache_manager
        watermark = manager.watermark_blocks if self._scheduler.running else 0
        return manager.block_pool.free_block_queue.num_free_blocks - watermark

    def may_start(self, call: LiveCall) -> bool:
        """See ``Capacity.may_start``."""
        request = self._scheduler.requests[call.key]
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False  # vLLM waits for the output that was in flight when it was stopped
        return not self._scheduler._is_blocked_waiting_status(request.status)

    def may_stop(self, call: LiveCall) -> bool:
        """See ``Capacity.may_stop``."""
        return self._scheduler.requests[call.key].status == RequestStatus.RUNNING

    def blocks_needed(self, call: LiveCall) -> int:
        """See ``Capacity.blocks_needed``."""
        scheduler = self._scheduler
        request = scheduler.requests[call.key]
        need = scheduler._request_remaining_blocks(request)
        if need <= self.free_blocks or request.num_computed_tokens:
            return need
        # Blocks of the prefix that other calls hold need not be free.
        found = scheduler.kv_cache_manager.get_computed_blocks(request)[0]
        return need - sum(block.ref_cnt > 0 for group in found.blocks for block in group)

    def blocks_freed(self, call: LiveCall) -> int:
        """See ``Capacity.blocks_freed``."""
        # With steps in flight vLLM may free them a step later; the waiting call still comes first.
        held = self._scheduler.kv_cache_manager.get_blocks(call.key)
        return sum(block.ref_cnt == 1 for group in held.blocks for block in group)

    def seconds_back(self, call: LiveCall) -> float:
        """See ``Capacity.seconds_back``.

        Blocks of a call that stops are taken after all that lay free before. Where there are as
        many of those, it is taken to find its own again.
        """
        scheduler = self._scheduler
        tokens = scheduler.requests[call.key].num_computed_tokens
        kept = tokens if self.free_blocks * scheduler.block_size >= tokens else 0
        if scheduler.tier is None:
            rates, stored = KvRates(prefill_s=scheduler.prefill_rate.token_s), 0
        else:
            rates, stored = scheduler.tier.rates, tokens
        return way_back(tokens, kept, stored, rates).seconds
