"""vLLM's own metrics of all replicas of a process, in one place.

vLLM makes a logger for each engine, and each takes the metrics of the one before out of the
registry. Here one logger keeps the metrics of all replicas, told apart by the label ``engine``, and
every replica's engine tells it.
"""

from __future__ import annotations

from typing import Any

from .vllm_names import PrometheusStatLogger


class ReplicaMetrics:
    """What the engines of the replicas tell; make it once for an engine host.

    Args:
        replicas: how many there are; more may come later.
    """

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._logger: PrometheusStatLogger | None = None

    def logger_for(self, replica: int) -> type[PrometheusStatLogger]:
        """What vLLM is to make for the engine of a replica; again when it is restarted."""
        metrics = self

        class ReplicaStatLogger(PrometheusStatLogger):
            """Passes on what an engine tells, as the replica's."""

            def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
                self.vllm_config = vllm_config
                self._all = metrics._all(vllm_config, replica)

            def record(
                self,
                scheduler_stats: Any,
                iteration_stats: Any,
                mm_cache_stats: Any = None,
                engine_idx: int = 0,
            ) -> None:
                logger = metrics._logger or self._all
                logger.record(scheduler_stats, iteration_stats, mm_cache_stats, replica)

            def record_admission_rejection(self, reason: str) -> None:
                self._all.record_admission_rejection(reason)

            def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
                """Nothing: replicas do not sleep."""

            def log_engine_initialized(self) -> None:
                """Nothing: the one logger has told it."""

        return ReplicaStatLogger

    def _all(self, vllm_config: Any, replica: int) -> PrometheusStatLogger:
        if self._logger is None or replica >= self._replicas:
            # A replica that has come later: counters start again at 0, which Prometheus allows.
            self._replicas = max(self._replicas, replica + 1)
            self._logger = PrometheusStatLogger(vllm_config, list(range(self._replicas)))
            self._logger.log_engine_initialized()
        return self._logger
