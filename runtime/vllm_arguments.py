"""What vLLM is started with: arguments for a replica of ours, and the GPUs that are its own."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from autellix.errors import SettingsError

from ..scheduler.config import SchedulerConfig
from .engine_start import threads_are_bound
from .vllm_names import AsyncEngineArgs, current_platform, device_count

SCHEDULER = "autellix.scheduler.vllm_adapter.ProgramScheduler"
# The model runs in the engine core's own process: one process less to start, and no two that wait
# for each other by spinning. vLLM's short name for it, "uni", is refused on CPUs for the sake of
# thread binding; this is for where threads are not bound.
_IN_ENGINE_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
_OURS = {"scheduler_cls", "scheduling_policy", "additional_config", "model"}


def engine_args(
    model: str,
    given: Mapping[str, Any],
    scheduler: SchedulerConfig,
    *,
    served_name: str,
    scheduler_class: str = SCHEDULER,
) -> AsyncEngineArgs:
    """Arguments of vLLM for a replica: what was given, our scheduler, and defaults for a CPU.

    Args:
        scheduler_class: dotted name of :class:`ProgramScheduler` or a kind of it.

    Raises:
        SettingsError: an argument that vLLM does not have, or that is ours to set.
    """
    known = {f.name for f in dataclasses.fields(AsyncEngineArgs)}
    for name in given:
        if name in _OURS:
            raise SettingsError(f"--engine-arg {name} is set by Autellix itself; leave it out.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SettingsError(
                f"vLLM has no engine argument {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else ".")
            )
    defaults: dict[str, Any] = {"served_model_name": [served_name], "disable_log_stats": True}
    if current_platform.is_cpu():
        defaults |= {"dtype": "bfloat16", "enforce_eager": True, "block_size": 32}
        defaults |= {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
        if given.get("tensor_parallel_size", 1) == 1 and not threads_are_bound():
            defaults["distributed_executor_backend"] = _IN_ENGINE_CORE
    values = defaults | dict(given)
    return AsyncEngineArgs(
        model=model,
        scheduler_cls=scheduler_class,
        scheduling_policy="priority",
        additional_config={"autellix": scheduler.to_dict()},
        **values,
    )


def compiles(args: AsyncEngineArgs) -> bool:
    """Whether the engine is to compile its model, rather than to run it as it is."""
    return not (args.enforce_eager and current_platform.is_cpu())


def devices_of(index: int, replicas: int, given: Mapping[str, Any]) -> list[int] | None:
    """GPUs of a replica: as many as one needs, beginning where the one before it ends.

    Args:
        index: of the replica.
        replicas: how many there are.
        given: arguments of vLLM's engine.

    Returns:
        None where vLLM is to choose: one replica, a CPU, or devices that were given by hand. With
        fewer GPUs than the replicas need, they share them in turns.
    """
    if replicas == 1 or current_platform.is_cpu() or "device_ids" in given:
        return None
    size = int(given.get("tensor_parallel_size", 1)) * int(given.get("pipeline_parallel_size", 1))
    count = device_count()
    return [(index * size + rank) % count for rank in range(size)]
