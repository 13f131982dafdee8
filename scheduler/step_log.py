"""One engine step as it was measured: what it computed and how long it took."""

from __future__ import annotations

from typing import NamedTuple

LOGGING_SCHEDULER = "autellix.scheduler.vllm_step_log.LoggingScheduler"


class Step(NamedTuple):
    """A step.

    Attributes:
        ended_s: when its output came, on the machine's monotonic clock, seconds.
        step_s: from the later of (its dispatch, the previous step's output) to its output, seconds.
        gap_s: from the previous step's output to its dispatch, seconds: the engine's own work
            between steps, or idleness; 0 with steps in flight.
        prefill_tokens: prompt tokens computed.
        prefills: calls of which prompt tokens are computed.
        sequences: calls in it.
        kv_tokens: context that these calls have in the cache when it begins.
        prefill_reach: sum over prompt tokens computed of the tokens each looks back on.
    """

    ended_s: float
    step_s: float
    gap_s: float
    prefill_tokens: int
    prefills: int
    sequences: int
    kv_tokens: int
    prefill_reach: int
