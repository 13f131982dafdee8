"""The replicas of a pool on a Ray cluster: prepared together, started, placed again when lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from .cluster_room import Need
from .gated_replica import GatedReplica
from .ray_cluster import RayCluster, RayPlace
from .ray_replica import RayReplica
from .replica_slot import Replica
from .replica_spec import ReplicaSpec, versions
from .settings import Settings


class RayReplicas:
    """Starts the replicas of a pool, the first time and again.

    Args:
        cluster: where they lie.
        settings: of the run.
        served_name: what requests call the model.
        need: what each takes of a machine.

    Attributes:
        nodes: each replica's machine, by index; empty until it is known.
        first: the last replica that has come up.
    """

    def __init__(
        self, cluster: RayCluster, settings: Settings, served_name: str, need: Need
    ) -> None:
        self.nodes: list[str] = []
        self.first: RayReplica | None = None
        self._cluster = cluster
        self._settings = settings
        self._served_name = served_name
        self._need = need
        self._prepared: dict[int, RayReplica] = {}

    async def prepare(self) -> None:
        """Places and processes for all replicas, before the first engine starts.

        Raises:
            AutellixError: there is no room for them, or a machine cannot serve; nothing is left.
        """
        indices = range(self._settings.replicas)
        wait_s = self._settings.ray_wait
        places = await self._cluster.reserve(self._need, indices, wait_s=wait_s)
        made = [self._occupied(place) for place in places]
        try:
            await asyncio.gather(*(replica.prepare() for replica in made))
        except BaseException:
            await asyncio.gather(*(replica.kill() for replica in made))
            raise
        self._prepared = dict(zip(indices, made, strict=True))

    async def start(self, index: int) -> Replica:
        """A ``StartReplica`` of the pool.

        Raises:
            AutellixError: it does not come up.
        """
        replica = self._prepared.pop(index, None)
        if replica is None:
            replica = await self._again(index)
        try:
            await replica.start()
        except BaseException:
            await replica.kill()
            raise
        self.nodes += [""] * (index + 1 - len(self.nodes))
        self.nodes[index] = replica.started.node_id
        self.first = replica
        return await GatedReplica.before(replica, self._settings.scheduler_config())

    async def _again(self, index: int) -> RayReplica:
        """One that was lost, or one more."""
        if index < len(self.nodes):
            place = await self._cluster.reserve_patiently(self._need, index)
        else:
            wait_s = self._settings.ray_wait
            (place,) = await self._cluster.reserve(self._need, [index], wait_s=wait_s)
        replica = self._occupied(place)
        try:
            await replica.prepare()
        except BaseException:
            await replica.kill()
            raise
        return replica

    def _occupied(self, place: RayPlace) -> RayReplica:
        self._cluster.occupy(place, self._need)
        config = replace(self._settings.scheduler_config(), replica=place.index)
        spec = ReplicaSpec(
            model=self._settings.model,
            served_name=self._served_name,
            engine_args=self._engine_args(),
            scheduler=config.to_dict(),
            versions=versions(),
            environment=self._need.environment,
            kv_host_gib=self._settings.kv_host_gib,
            neighbours=self._need.neighbours,
            debug=self._settings.debug,
        )
        return RayReplica(place.actor, place, spec, place.index)

    def _engine_args(self) -> dict[str, object]:
        given = dict(self._settings.engine_args)
        if self._need.resources.get("GPU", 0) > 1:
            # Inside a placement group vLLM would take its Ray executor, which is for several nodes.
            given.setdefault("distributed_executor_backend", "mp")
        return given

    async def give_up(self) -> None:
        """End the processes that were prepared and not used."""
        left, self._prepared = list(self._prepared.values()), {}
        await asyncio.gather(*(replica.kill() for replica in left))
