"""The engine of this process: its event loop, the replicas and the chat front end over them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from ..scheduler.balancers import balancer_named
from .chat_front import ChatFront
from .engine_loop import EngineLoop
from .engine_start import EngineProcesses, check_memory, set_engine_environment
from .gated_replica import GatedReplica
from .host_tier import check_host_memory, with_host_tier
from .models import DEFAULT_MODEL, resolve_model
from .protocols import Engine
from .replica_pool import ReplicaPool, StateSink, nobody
from .replica_slot import Replica
from .restarts import Restarts
from .settings import Settings

if TYPE_CHECKING:
    from .chat_service import ChatService
    from .ray_cluster import RayCluster

    _Engine = tuple[ReplicaPool, ChatService, EngineProcesses | RayCluster]

_STOP_TIMEOUT_S = 30.0
_GIVE_UP_S = 0.5
ENGINE_PROCESS = "EngineCore"  # what vLLM calls the processes that it starts here


class EngineHost:
    """Started once, used by one session after the other, stopped once."""

    def __init__(
        self,
        loop: EngineLoop,
        engine: Engine,
        chat: ChatFront,
        processes: EngineProcesses | RayCluster | None = None,
    ) -> None:
        self.loop = loop
        self.engine = engine
        self.chat = chat
        self._processes = processes
        self._stopped = False

    @classmethod
    def start(
        cls, settings: Settings, *, metrics: bool = False, restarts: Restarts | None = None
    ) -> EngineHost:
        """Find the model, start the engine's processes and wait until they serve.

        Args:
            metrics: whether vLLM's own metrics are kept, in prometheus_client's registry.
            restarts: when lost replicas are started again.

        Raises:
            ModelError, EngineStartError, SettingsError, VersionError: what they say.
        """
        served_name = settings.model or DEFAULT_MODEL
        model = resolve_model(settings.model, progress=not settings.quiet)
        loop = EngineLoop()
        try:
            with ended_if_it_fails():
                engine, chat, processes = loop.run(
                    _start(settings, str(model), served_name, metrics, restarts)
                )
        except BaseException:
            # The rest of the start, which may be in the middle of an import, is not waited for.
            loop.close(timeout_s=_GIVE_UP_S)
            raise
        host = cls(loop, engine, chat, processes)
        # Before multiprocessing ends its children, which would look like the loss of a replica.
        atexit.register(host.stop)
        return host

    def send_states_to(self, sink: StateSink | None) -> None:
        """Have ``sink`` told, on the engine's loop, when a replica comes into another state."""
        if isinstance(self.engine, ReplicaPool):
            self.engine.on_state = sink or nobody

    def stop(self) -> None:
        """Stop the engine and leave no process behind; safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        with contextlib.suppress(TimeoutError):
            self.loop.submit(self.engine.stop()).result(timeout=_STOP_TIMEOUT_S)
        self.loop.close()
        if self._processes is not None:
            self._processes.close()


def engine_processes() -> set[BaseProcess]:
    """The engines' processes that this process has started and that run."""
    return {p for p in multiprocessing.active_children() if p.name.startswith(ENGINE_PROCESS)}


@contextlib.contextmanager
def ended_if_it_fails() -> Iterator[None]:
    """What engines are begun inside end where it is interrupted or fails; others run on."""
    others = engine_processes()
    try:
        yield
    except BaseException:
        for child in engine_processes() - others:
            child.kill()
        raise


def check_machine(settings: Settings) -> None:
    """Refuse at once what an engine of these settings would find no room for.

    Raises:
        EngineStartError, SettingsError: what is too much, and how much there is.
    """
    if settings.engine == "ray":
        return  # its machines are looked at when the cluster has been reached
    set_engine_environment(debug=settings.debug, replicas=settings.replicas)
    check_memory(settings.replicas)
    check_host_memory(settings.kv_host_gib)


async def _start(
    settings: Settings, model: str, served_name: str, metrics: bool, restarts: Restarts | None
) -> _Engine:
    if settings.engine == "ray":
        from .ray_start import start_on_ray

        return await start_on_ray(settings, served_name)
    set_engine_environment(debug=settings.debug, replicas=settings.replicas)
    from .chat_service import ChatService
    from .vllm_arguments import devices_of
    from .vllm_metrics import ReplicaMetrics
    from .vllm_replica import VllmReplica

    await asyncio.sleep(0)  # the imports took seconds: who has given up since gets no engine
    check_memory(settings.replicas)
    processes = EngineProcesses(debug=settings.debug)
    arguments = with_host_tier(settings.engine_args, settings.kv_host_gib, settings.replicas)

    kept = ReplicaMetrics(settings.replicas) if metrics else None

    async def start(index: int) -> Replica:
        config = replace(settings.scheduler_config(), replica=index)
        replica = await VllmReplica.start(
            model,
            arguments,
            config,
            served_name=served_name,
            processes=processes,
            devices=devices_of(index, max(settings.replicas, index + 1), settings.engine_args),
            stat_logger=kept and kept.logger_for(index),
        )
        return await GatedReplica.before(replica, config)

    try:
        pool = await ReplicaPool.start(
            start,
            settings.replicas,
            balancer_named(settings.balancer),
            kind=VllmReplica.kind,
            model=served_name,
            restarts=restarts,
        )
        first = pool.slots[0].replica
        if isinstance(first, GatedReplica):
            first = first.replica
        assert isinstance(first, VllmReplica)
        return pool, await ChatService.create(pool, first.llm), processes
    except BaseException:
        processes.close()
        raise
