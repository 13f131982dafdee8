"""A Ray cluster: reached or started, its room looked at, places in it taken and given back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from autellix.errors import EngineStartError, SettingsError, VersionError

from .cluster_room import Need, Node, fitting, shortage
from .machine import cores
from .ray_actor import ReplicaActor
from .ray_head import watch_head
from .ray_names import (
    AuthenticationError,
    PlacementGroup,
    PlacementGroupSchedulingStrategy,
    RayError,
    available_resources_per_node,
    placement_group,
    quiet_ray,
    ray,
    remove_placement_group,
)

log = logging.getLogger("autellix")

ADDRESS_VARIABLE = "RAY_ADDRESS"
_AUTO = "auto"
_DEFAULT_PORT = 6379
_NAMESPACE = "autellix"
_REACHED_WITHIN_S = 5.0
_ANSWERED_WITHIN_S = 12.0
_CONNECTED_WITHIN_S = 12.0
_LOCAL_WITHIN_S = 120.0
_DISCONNECTED_WITHIN_S = 10.0
# Others may be about to free what they hold, or an autoscaler may add it.
_ROOM_WITHIN_S = 20.0
_REMIND_S = 60.0
_LOCAL_STORE = 100 * 2**20  # nothing large goes through Ray's object store
_CALLS_AT_ONCE = 100_000  # of an actor's methods; calls are limited elsewhere


@dataclass(slots=True)
class RayPlace:
    """A replica's place: what is reserved on one machine, and the process in it."""

    index: int
    group: PlacementGroup
    actor: Any = None
    granted: bool = False
    errors: tuple[type[Exception], ...] = field(default=(RayError,))
    _given_back: bool = False

    def why_it_died(self, cause: Exception) -> str:
        """See ``Place.why_it_died``."""
        text = " ".join(str(cause).split())
        if "No module named" in text:
            return (
                "Autellix, or what it needs, is not installed on the node that was to serve "
                f"replica {self.index}. Install the same there as here. Ray says: {text[-300:]}"
            )
        return f"the process of replica {self.index} ended. Ray says: {text[:600]}"

    async def give_back(self) -> None:
        """See ``Place.give_back``."""
        if self._given_back:
            return
        self._given_back = True
        with contextlib.suppress(RayError, ValueError):
            if self.actor is not None:
                ray.kill(self.actor, no_restart=True)
            remove_placement_group(self.group)


class Connection:
    """A thread that connects to a cluster and lives as long as the connection.

    A cluster that is started here consists of processes that Ray has end with the thread that
    started them.

    Args:
        options: of ``ray.init``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._closing = threading.Event()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._live, name="autellix-ray", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        try:
            ray.init(**self._options)
        except BaseException as cause:
            self._ready.set_exception(cause)
            return
        self._ready.set_result(None)
        self._closing.wait()
        ray.shutdown()

    async def ready(self) -> None:
        """Return when it is there; raises what ``ray.init`` raises."""
        await asyncio.shield(asyncio.wrap_future(self._ready))

    def close(self) -> None:
        """Disconnect; a cluster that was started here ends. Safe to call twice."""
        self._closing.set()
        self._thread.join(_DISCONNECTED_WITHIN_S)


class RayCluster:
    """The cluster that this process is connected to; make it with :meth:`connect`.

    Args:
        connection: closed at the end; None for that of the program that we run in.
    """

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection
        head = ray.get_runtime_context().gcs_address
        self._watch = asyncio.create_task(watch_head(head), name="the head of the cluster")

    @classmethod
    async def connect(cls, address: str | None, *, debug: bool) -> RayCluster:
        """Connect to a cluster, or start one of this machine alone.

        Args:
            address: HOST:PORT of the head; "auto" for the cluster of this machine; None for what
                ``RAY_ADDRESS`` says, and without that for a cluster of this run's own.
            debug: whether Ray is to tell what it does.

        Raises:
            EngineStartError: the head cannot be reached.
            SettingsError: the address is none.
            VersionError: the cluster runs another Ray or Python.
        """
        address = address or os.environ.get(ADDRESS_VARIABLE) or None
        quiet_ray(debug=debug)
        if ray.is_initialized():  # by the program that we run in
            return cls(None)
        if address not in (None, _AUTO):
            await _reach(address)
            await _ask_the_head(address)

        options: dict[str, Any] = {"address": address}
        if address is None:
            options = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
            options["object_store_memory"] = _LOCAL_STORE
        connection = Connection(
            {**options, "configure_logging": False, "log_to_driver": debug, "namespace": _NAMESPACE}
        )
        try:
            async with asyncio.timeout(_LOCAL_WITHIN_S if address is None else _CONNECTED_WITHIN_S):
                await connection.ready()
        except TimeoutError:
            raise EngineStartError(
                f"The Ray cluster at {address or 'this machine'} did not take the connection in "
                "time. `ray status` on its head tells more."
            ) from None
        except Exception as cause:
            raise _connect_error(address, cause) from cause
        return cls(connection)

    def nodes(self) -> list[Node]:
        """The machines that are there now, and what is free on each."""
        free = available_resources_per_node()
        return [
            Node(
                name=node["NodeManagerAddress"],
                total=node["Resources"],
                free=free.get(node["NodeID"], {}),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]

    async def reserve(
        self, need: Need, indices: Sequence[int], *, wait_s: float | None = None
    ) -> list[RayPlace]:
        """Places for replicas, each on one machine; none of them where not all can be had.

        Args:
            need: of each.
            indices: of the replicas.
            wait_s: how long to wait for room, seconds. None waits shortly for others to make room,
                and not at all where the whole cluster has too little.

        Raises:
            EngineStartError: there is not enough room; it says of what.
        """
        nodes = await asyncio.to_thread(self.nodes)
        if wait_s is None and fitting(need, nodes) < len(indices):
            raise _no_room(shortage(need, nodes, len(indices)))
        places = [await self._ask_for(need, index) for index in indices]
        try:
            async with asyncio.timeout(_ROOM_WITHIN_S if wait_s is None else wait_s):
                await asyncio.gather(*(_granted(place) for place in places))
        except TimeoutError:
            nodes = await asyncio.to_thread(self.nodes)
            held = sum(place.granted for place in places)
            await _give_back(places)
            raise _no_room(shortage(need, nodes, len(indices), held=held)) from None
        except BaseException:
            await _give_back(places)
            raise
        return places

    async def reserve_patiently(self, need: Need, index: int) -> RayPlace:
        """A place for a replica that has lost its own, however long it takes to come free."""
        place = await self._ask_for(need, index)
        waiting = asyncio.ensure_future(_granted(place))
        try:
            while not (await asyncio.wait([waiting], timeout=_REMIND_S))[0]:
                log.warning("Replica %d waits for room in the cluster.", index)
            waiting.result()
        except BaseException:
            waiting.cancel()
            await place.give_back()
            raise
        return place

    async def _ask_for(self, need: Need, index: int) -> RayPlace:
        bundles = [dict(need.resources)]
        group = await asyncio.to_thread(placement_group, bundles, strategy="STRICT_PACK")
        return RayPlace(index, group)

    def occupy(self, place: RayPlace, need: Need) -> None:
        """Start a replica's process in its place; it starts no engine yet."""
        resources = dict(need.resources)
        cpus, gpus = resources.pop("CPU", 0), resources.pop("GPU", 0)
        memory = resources.pop("memory", 0)
        place.actor = (
            ray.remote(_OnNode)
            .options(
                num_cpus=cpus,
                num_gpus=gpus,
                memory=memory or None,
                max_restarts=0,
                max_concurrency=_CALLS_AT_ONCE,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    place.group, placement_group_bundle_index=0
                ),
            )
            .remote()
        )

    def close(self) -> None:
        """Disconnect, where this process has connected; a cluster of this run's own ends."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the watch with it
            self._watch.get_loop().call_soon_threadsafe(self._watch.cancel)
        if self._connection is not None:
            self._connection.close()


class _OnNode(ReplicaActor):
    """The actor, told by Ray where it is."""

    def __init__(self) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        super().__init__(ray.util.get_node_ip_address(), node_id)


async def _give_back(places: Sequence[RayPlace]) -> None:
    for place in places:
        await place.give_back()


async def _granted(place: RayPlace) -> None:
    await place.group.ready()
    place.granted = True


async def _reach(address: str) -> None:
    """Find out at once whether anybody listens there; Ray itself takes a minute to."""
    if "://" in address:
        raise SettingsError(
            f"--ray-address is HOST:PORT of the cluster's head, got {address!r}. Start this on a "
            "machine of the cluster; programs elsewhere use `autellix.connect`."
        )
    host, _, port = address.partition(":")
    if not host or not (port or str(_DEFAULT_PORT)).isdigit():
        raise SettingsError(f"--ray-address is HOST:PORT of the cluster's head, got {address!r}.")
    try:
        async with asyncio.timeout(_REACHED_WITHIN_S):
            _, writer = await asyncio.open_connection(host, int(port or _DEFAULT_PORT))
        writer.close()
    except (OSError, TimeoutError) as cause:
        why = "no answer" if isinstance(cause, TimeoutError) else (cause.strerror or str(cause))
        raise EngineStartError(
            f"There is no Ray head at {address}: {why}. Start one there with `ray start --head`, "
            "or leave --ray-address out for a cluster of this machine alone."
        ) from cause


async def _ask_the_head(address: str) -> None:
    """Make sure, in a process of its own, that it is Ray that listens there.

    Where it is not, Ray tries for a minute and then ends the process that it tries in.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    asking = await asyncio.create_subprocess_exec(
        *command,
        "--skip-version-check",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_ANSWERED_WITHIN_S):
            _, said = await asking.communicate()
    except BaseException as cause:
        asking.kill()
        await asking.wait()
        if isinstance(cause, TimeoutError):
            raise EngineStartError(
                f"What listens at {address} does not answer as the head of a Ray cluster. The "
                "address is that of `ray start --head`, whose port is 6379 unless told otherwise."
            ) from None
        raise
    if asking.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise EngineStartError(f"The Ray cluster at {address} cannot be used: {last[:400]}")


def _no_room(what: str) -> EngineStartError:
    return EngineStartError(
        f"The cluster has too little room: {what}. Ask for fewer --replicas, add machines, or wait "
        "for an autoscaler with --ray-wait SECONDS."
    )


def _connect_error(address: str | None, cause: Exception) -> Exception:
    text = " ".join(str(cause).split())
    if "ersion mismatch" in text:
        return VersionError(
            f"The Ray cluster at {address} and this machine do not fit together. {text} Install "
            "the same version of Ray and of Python on both."
        )
    if isinstance(cause, AuthenticationError):
        return EngineStartError(
            f"The Ray cluster at {address} did not let this machine in: {text[:400]}"
        )
    what = f"The Ray cluster at {address}" if address else "A Ray cluster on this machine"
    return EngineStartError(f"{what} could not be used: {text[:600]}")
