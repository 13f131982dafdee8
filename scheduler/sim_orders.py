"""Policies by name as the simulator knows them: the core's, the baselines', and two of its own.

| name | order | prefix cache |
|---|---|---|
| ``vllm`` | first come, first served, by call | no |
| ``vllm-opt``, also ``fcfs`` | the same | yes |
| ``mlfq``, ``plas``, ``atlas`` | the core's levels | yes |
| ``adaptive``, ``gittins`` | what is still to be expected of the program | yes |
| ``program-fcfs`` | the call whose program came first | yes |
| ``srpt`` | least remaining work x tokens of the program; knows the future | yes |
| ``default`` | what ``autellix run`` uses | yes |

All of them chunk prompts, as vLLM does: ``vllm`` to ``vllm-opt`` is what caching gives, the rest is
scheduling. ``program-fcfs`` and ``srpt`` order the waiting calls and choose who gives way when KV
blocks run out; they take no seat away for a better-placed call. ``mlfq``, ``plas`` and ``atlas``
are the paper's: inside a level the call that entered first goes first.

``srpt``: the mean of response / tokens over programs is least, on a single server, when the program
with the smallest remaining work x tokens goes first (weighted shortest remaining processing time
with weight 1 / tokens). Work is what :meth:`EngineModel.work_s` says of the calls that have not
ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autellix.errors import SettingsError

from .config import SchedulerConfig

OrderName = Literal["core", "siblings", "srpt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimPolicy:
    """A policy of the table above.

    Attributes:
        name: as given.
        config: settings of the core.
        order: who orders the calls; "siblings" is the core's order but for calls of one program,
            see :mod:`.sim_siblings`.
        prefix_cache: whether KV outlives its call.
    """

    name: str
    config: SchedulerConfig
    order: OrderName = "core"
    prefix_cache: bool = True


SIM_POLICIES = (
    "vllm",
    "vllm-opt",
    "mlfq",
    "plas",
    "atlas",
    "adaptive",
    "gittins",
    "program-fcfs",
    "srpt",
    "default",
)


def sim_policy(name: str, **settings: object) -> SimPolicy:
    """The policy of that name.

    Args:
        settings: of :class:`SchedulerConfig`, beside the policy.

    Raises:
        SettingsError: there is none of that name, or a setting is impossible.
    """
    if name not in (*SIM_POLICIES, "fcfs"):
        raise SettingsError(
            f"there is no policy {name!r}; choose one of: {', '.join(SIM_POLICIES)}"
        )

    def config(**policy: object) -> SchedulerConfig:
        return SchedulerConfig.from_dict({**settings, **policy})

    if name in ("vllm", "vllm-opt", "fcfs"):
        return SimPolicy(name=name, config=config(policy="fcfs"), prefix_cache=name != "vllm")
    if name == "srpt":
        ours = {"program_ties": True, "admission": True, **settings, "policy": "fcfs"}
        return SimPolicy(name=name, config=config(**ours), order=name)
    return SimPolicy(name=name, config=config(policy=name))
