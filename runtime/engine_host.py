"""The engine of this process: its event loop, the replica and the chat front end over it."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from typing import TYPE_CHECKING

from .engine_loop import EngineLoop
from .engine_start import set_engine_environment
from .models import DEFAULT_MODEL, resolve_model
from .protocols import Engine
from .settings import Settings

if TYPE_CHECKING:
    from .chat_service import ChatService

_STOP_TIMEOUT_S = 30.0
_GIVE_UP_S = 0.5
ENGINE_PROCESS = "EngineCore"  # what vLLM calls the processes that it starts here


class EngineHost:
    """Started once, used by one session after the other, stopped once."""

    def __init__(self, loop: EngineLoop, engine: Engine, chat: ChatService) -> None:
        self.loop = loop
        self.engine = engine
        self.chat = chat
        self._stopped = False

    @classmethod
    def start(cls, settings: Settings) -> EngineHost:
        """Find the model, start the engine's processes and wait until they serve.

        Raises:
            ModelError, EngineStartError, SettingsError, VersionError: what they say.
        """
        served_name = settings.model or DEFAULT_MODEL
        model = resolve_model(settings.model, progress=not settings.quiet)
        loop = EngineLoop()
        try:
            engine, chat = loop.run(_start(settings, str(model), served_name))
        except BaseException:
            # Interrupted or failed half-way: what has been spawned so far ends here, and the rest
            # of the start, which may be in the middle of an import, is not waited for.
            for child in multiprocessing.active_children():
                if child.name.startswith(ENGINE_PROCESS):
                    child.kill()
            loop.close(timeout_s=_GIVE_UP_S)
            raise
        return cls(loop, engine, chat)

    def stop(self) -> None:
        """Stop the engine and leave no process behind; safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        with contextlib.suppress(TimeoutError):
            self.loop.submit(self.engine.stop()).result(timeout=_STOP_TIMEOUT_S)
        self.loop.close()


async def _start(settings: Settings, model: str, served_name: str) -> tuple[Engine, ChatService]:
    set_engine_environment(debug=settings.debug)
    from .chat_service import ChatService
    from .host_tier import with_host_tier
    from .vllm_replica import VllmReplica

    await asyncio.sleep(0)  # the imports took seconds: who has given up since gets no engine
    replica = await VllmReplica.start(
        model,
        with_host_tier(settings.engine_args, settings.kv_host_gib),
        settings.scheduler_config(),
        served_name=served_name,
        debug=settings.debug,
    )
    return replica, await ChatService.create(replica, replica.llm)
