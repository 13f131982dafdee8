"""The start of an engine whose replicas lie on the machines of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autellix.errors import SettingsError

from ..scheduler.balancers import balancer_named
from ..scheduler.node_affinity import NodeAffinity
from .cluster_room import Need, Node, need_on_cpus, need_on_gpus
from .engine_start import is_cpu_build, set_engine_environment
from .models import resolve_model
from .replica_pool import ReplicaPool
from .settings import Settings

if TYPE_CHECKING:
    from .chat_service import ChatService
    from .ray_cluster import RayCluster
    from .ray_replicas import RayReplicas

_KV_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"


async def start_on_ray(
    settings: Settings, served_name: str
) -> tuple[ReplicaPool, ChatService, RayCluster]:
    """Replicas on a Ray cluster, and the chat front end over them.

    Args:
        settings: of the run.
        served_name: what requests call the model.

    Raises:
        AutellixError: the cluster cannot be reached or used; nothing is left running.
    """
    from .ray_cluster import RayCluster

    kv_gib = _kv_gib()
    cluster = await RayCluster.connect(settings.ray_address, debug=settings.debug)
    try:
        need = _need(settings, await asyncio.to_thread(cluster.nodes), kv_gib)
        # Not before: what is set for this process is not for a cluster that it starts.
        set_engine_environment(debug=settings.debug)
        if kv_gib is None:  # no engine runs here, and the next start is to count for itself
            os.environ.pop(_KV_VARIABLE, None)
        from .ray_replicas import RayReplicas

        replicas = RayReplicas(cluster, settings, served_name, need)
        await replicas.prepare()
        try:
            pool = await ReplicaPool.start(
                replicas.start,
                settings.replicas,
                NodeAffinity(balancer_named(settings.balancer), lambda: replicas.nodes),
                kind="ray",
                model=served_name,
            )
        finally:
            await replicas.give_up()
        try:
            return pool, await _chat(pool, replicas, settings), cluster
        except BaseException:
            await pool.stop()
            raise
    except BaseException:
        cluster.close()
        raise


def _kv_gib() -> float | None:
    raw = os.environ.get(_KV_VARIABLE)
    try:
        return None if raw is None else float(raw)
    except ValueError:
        raise SettingsError(f"{_KV_VARIABLE} is a number of GiB, got {raw!r}.") from None


def _need(settings: Settings, nodes: Sequence[Node], kv_gib: float | None) -> Need:
    if is_cpu_build():
        return need_on_cpus(nodes, settings.replicas, kv_gib)
    return need_on_gpus(settings.engine_args)


async def _chat(pool: ReplicaPool, replicas: RayReplicas, settings: Settings) -> ChatService:
    from .chat_service import ChatService
    from .model_front import ModelFront

    assert replicas.first is not None, "the pool has come up"
    started = replicas.first.started
    model = await asyncio.to_thread(resolve_model, settings.model, progress=not settings.quiet)
    front = ModelFront(
        str(model),
        settings.engine_args,
        served_name=pool.model,
        context_tokens=started.context_tokens,
        tasks=started.tasks,
    )
    return await ChatService.create(pool, front)
