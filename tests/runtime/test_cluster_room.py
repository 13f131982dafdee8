"""What replicas take of machines, and what is said where there is too little."""

from __future__ import annotations

import pytest

from autellix.errors import SettingsError
from autellix.runtime.cluster_room import Need, Node, fitting, need_on_cpus, need_on_gpus, shortage

GIB = 2**30


def node(name: str, free: dict[str, float] | None = None, **total: float) -> Node:
    return Node(name=name, total=total, free=total if free is None else free)


def test_a_replica_takes_the_gpus_its_model_is_split_over() -> None:
    assert need_on_gpus({}).resources == {"CPU": 1, "GPU": 1}
    split = need_on_gpus({"tensor_parallel_size": 4, "pipeline_parallel_size": 2})
    assert split.resources["GPU"] == 8


def test_a_replica_that_spans_machines_is_left_to_vllm() -> None:
    with pytest.raises(SettingsError, match="--engine vllm --engine-arg distributed_exec"):
        need_on_gpus({"distributed_executor_backend": "ray"})


@pytest.mark.parametrize(
    ("cores", "replicas", "each"),
    [
        ([8, 8], 2, 8),
        ([8, 8], 3, 4),
        ([8, 8], 4, 4),
        ([8, 4], 3, 4),
        ([2, 2, 2], 3, 2),
        ([4], 1, 4),
    ],
)
def test_on_cpus_replicas_get_as_many_cores_as_all_can_have(
    cores: list[int], replicas: int, each: int
) -> None:
    nodes = [node(str(i), CPU=n, memory=64 * GIB) for i, n in enumerate(cores)]
    need = need_on_cpus(nodes, replicas, None)
    assert need.resources["CPU"] == each
    assert need.environment["OMP_NUM_THREADS"] == str(each)
    assert fitting(need, nodes) >= replicas


def test_on_cpus_memory_is_shared_by_the_replicas_of_a_machine() -> None:
    nodes = [node("a", CPU=8, memory=12 * GIB)]
    need = need_on_cpus(nodes, 2, None)
    assert need.neighbours == 2
    assert need.environment["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert need.resources["memory"] == 4 * GIB
    assert need_on_cpus(nodes, 2, 1).resources["memory"] == 3 * GIB


def test_what_does_not_fit_is_named_with_what_there_is() -> None:
    need = Need(resources={"CPU": 1.0, "GPU": 2.0}, environment={})
    nodes = [node("10.0.0.1", CPU=8, GPU=2), node("10.0.0.2", CPU=8, GPU=2)]
    said = shortage(need, nodes, 4)
    assert "4 replicas of 1 CPU and 2 GPUs each do not fit, there is room for 2" in said
    assert "8 GPUs are needed, the cluster has 4 GPUs" in said
    assert "CPUs are needed" not in said
    assert "10.0.0.2: 8 CPUs, 2 GPUs" in said


def test_a_replica_larger_than_any_machine_is_told_so() -> None:
    need = Need(resources={"GPU": 4.0}, environment={})
    said = shortage(need, [node("a", GPU=2), node("b", GPU=2)], 1)
    assert "no node has 4 GPUs" in said


def test_what_others_hold_is_told_so() -> None:
    need = Need(resources={"memory": 6.0 * GIB}, environment={})
    nodes = [node("a", {"memory": 2.0 * GIB}, memory=8 * GIB)]
    said = shortage(need, nodes, 1)
    assert "there is room for 0: the rest is taken by others" in said
    assert "a: 2.0 GiB" in said


def test_a_cluster_without_machines_is_told_so() -> None:
    assert "no node" in shortage(Need(resources={"CPU": 1.0}, environment={}), [], 1)
    assert need_on_cpus([], 2, None).resources["CPU"] == 1
