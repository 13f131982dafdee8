"""What the engine tells its front while it runs, so that nobody need ask.

vLLM sends its statistics along with a step's outputs, those of every step or none. Where nobody has
asked for them, this sends the little that the pool of replicas wants, every few steps and with the
last call's end: it costs the engine next to nothing, and the front no work per call.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.metrics.stats import SchedulerStats

_STEPS = 8  # from one to the next


class TellingScheduler(AsyncScheduler):
    """vLLM's scheduler that says how full it is."""

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """All of vLLM's own where they are asked for; else calls, KV in use and the step's number.

        vLLM itself numbers steps there for engines that run in step with others, which ours do not.
        """
        if self.log_stats:
            told = super().make_stats(*args, **kwargs)
            if told is not None:
                told.step_counter = self.current_step
            return told
        if self.requests and self.current_step % _STEPS:
            return None
        running, waiting = self.get_request_counts()
        return SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            kv_cache_usage=self.kv_cache_manager.usage,
            step_counter=self.current_step,
        )
