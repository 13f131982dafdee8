"""What replicas need of a cluster's machines, and whether it is there: arithmetic, no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autellix.errors import SettingsError

_MOST_KV_GIB = 4
# Weights and processes of a small model on a CPU, beside its KV cache.
_PROCESSES_GIB = 2.0
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster.

    Attributes:
        name: its address.
        total: what it has, by Ray's names: CPU, GPU, memory (bytes).
        free: what of that is not taken.
    """

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one replica takes of a machine.

    Attributes:
        resources: by Ray's names; memory in bytes.
        environment: variables that make vLLM keep to that.
        neighbours: the most replicas that come to lie on one machine.
    """

    resources: Mapping[str, float]
    environment: Mapping[str, str]
    neighbours: int = 1


def need_on_gpus(engine_args: Mapping[str, object]) -> Need:
    """A replica with GPUs takes as many as its model is split over, all of one machine.

    Raises:
        SettingsError: it is to span machines, which is for vLLM's own Ray executor.
    """
    if engine_args.get("distributed_executor_backend") == "ray":
        raise SettingsError(
            "A replica of --engine ray lies on one machine. For one that spans several, use vLLM's "
            "own: --engine vllm --engine-arg distributed_executor_backend=ray."
        )
    size = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        size *= int(str(engine_args.get(name, 1)))
    return Need(resources={"CPU": 1.0, "GPU": float(size)}, environment={})


def need_on_cpus(nodes: Sequence[Node], replicas: int, kv_gib: float | None) -> Need:
    """Without GPUs, replicas share out cores and memory: as many cores each as all can have.

    Args:
        nodes: the machines.
        replicas: how many there are to be.
        kv_gib: KV cache of each, GiB; None for as much as fits, from 1 to 4.
    """
    cores = 1
    most = int(max((node.total.get("CPU", 0) for node in nodes), default=0))
    for tried in range(most, 1, -1):
        if sum(int(node.total.get("CPU", 0) // tried) for node in nodes) >= replicas:
            cores = tried
            break
    each = [min(replicas, int(node.total.get("CPU", 0) // cores)) for node in nodes]
    neighbours = max([1, *each])
    if kv_gib is None:
        shares = [
            node.total.get("memory", 0) / _GIB / count
            for node, count in zip(nodes, each, strict=True)
            if count
        ]
        kv_gib = max(1, min(_MOST_KV_GIB, int((min(shares, default=0) - _PROCESSES_GIB) / 2)))
    memory = (kv_gib + _PROCESSES_GIB) * _GIB
    return Need(
        resources={"CPU": float(cores), "memory": float(memory)},
        environment={"VLLM_CPU_KVCACHE_SPACE": f"{kv_gib:g}", "OMP_NUM_THREADS": str(cores)},
        neighbours=neighbours,
    )


def fitting(need: Need, nodes: Sequence[Node], *, free: bool = False) -> int:
    """How many replicas the machines can hold: altogether, or in what is free."""
    return sum(_on(node, need, free=free) for node in nodes)


def _on(node: Node, need: Need, *, free: bool) -> int:
    has = node.free if free else node.total
    return min(int(has.get(name, 0.0) // amount) for name, amount in need.resources.items())


def shortage(need: Need, nodes: Sequence[Node], replicas: int, *, held: int = 0) -> str:
    """In words, what is missing for so many replicas.

    Args:
        need: of each.
        nodes: the machines, with what is free on each.
        replicas: how many there are to be.
        held: how many of them have a place already, which is not free any more.
    """
    each = " and ".join(_amount(name, value) for name, value in need.resources.items())
    room = held + fitting(need, nodes, free=True)
    whole = fitting(need, nodes)
    reasons = []
    if whole >= replicas:
        reasons.append("the rest is taken by others")
    for name, value in need.resources.items() if whole < replicas else ():
        have = sum(node.total.get(name, 0.0) for node in nodes)
        most = max((node.total.get(name, 0.0) for node in nodes), default=0.0)
        if have < value * replicas:
            wanted = _amount(name, value * replicas)
            reasons.append(f"{wanted} are needed, the cluster has {_amount(name, have)}")
        elif most < value:
            reasons.append(f"no node has {_amount(name, value)}")
    machines = "; ".join(
        f"{node.name}: "
        + ", ".join(_amount(name, node.free.get(name, 0.0)) for name in need.resources)
        for node in nodes
    )
    return (
        f"{replicas} replicas of {each} each do not fit, there is room for {room}: "
        f"{'; '.join(reasons)}. Free on {machines or 'no node'}"
    )


def _amount(name: str, value: float) -> str:
    if name == "memory":
        return f"{value / _GIB:.1f} GiB"
    return f"{value:g} {name}" + ("s" if value != 1 else "")
