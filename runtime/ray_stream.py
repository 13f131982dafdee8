"""The reading end of a call that runs on another machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from autellix.errors import AutellixError

from ..scheduler.tickets import Receipt
from .protocols import EngineCall, EngineChunk
from .ray_wire import Chunk, End, output_of
from .vllm_names import RequestOutput


class CallStream:
    """Holds what has come of a call's answer until its caller reads it.

    What a slow caller has not read yet is added up, as vLLM's own front end does, so a call takes
    no more memory than its answer.

    Args:
        call: as it was sent.
    """

    def __init__(self, call: EngineCall) -> None:
        self._call = call
        self._is_delta = call.sampling.output_kind.name == "DELTA"
        self._output: RequestOutput | None = None
        self._receipt: Receipt | None = None
        self._error: AutellixError | None = None
        self._some = asyncio.Event()
        self.has_ended = False

    def take(self, item: Chunk | End) -> None:
        """Something has come."""
        if isinstance(item, End):
            self.end(item.error)
            return
        output = output_of(item, self._call)
        if self._output is None:
            self._output = output
        else:
            self._output.add(output, aggregate=self._is_delta)
        if item.receipt is not None:
            self._receipt = Receipt.from_wire(item.receipt)
        self.has_ended = item.finished
        self._some.set()

    def end(self, error: AutellixError | None) -> None:
        """Nothing more comes, for a reason or without one."""
        self._error = error
        self.has_ended = True
        self._some.set()

    async def chunks(self) -> AsyncGenerator[EngineChunk, None]:
        """What comes, as it comes.

        Raises:
            AutellixError: what the call ended by.
        """
        while True:
            await self._some.wait()
            self._some.clear()
            if self._output is not None:
                chunk = EngineChunk(output=self._output, receipt=self._receipt)
                self._output = self._receipt = None
                yield chunk
            if self.has_ended and self._output is None:
                break
        if self._error is not None:
            raise self._error
