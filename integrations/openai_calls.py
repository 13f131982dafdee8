"""Calls made with the ``openai`` package: each gets an identity that travels with the request.

1. A call that LangChain announced (``ChatOpenAI`` and whatever builds on the package) keeps the id
   of its callback run.
2. Any other is announced to the recorder here, in the context of the code that makes it, so it
   lands in that code's program, behind the calls that code made before.

Only the call's id goes over the wire: the rest is known where it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ..runtime.protocols import CallEnd
from .recorder import Recorder

CALL_HEADER = "x-autellix-call"
SESSION_HEADER, PARENTS_HEADER = "x-session-id", "x-autellix-parents"
NAME_HEADER, NODE_HEADER = "x-autellix-name", "x-autellix-node"
CALL_PATHS = ("/chat/completions", "/completions", "/responses")
_GIVEN_UP = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


class OpenAICalls:
    """Satisfies ``RequestWatch``.

    Args:
        recorder: knows what calls there are.
        base_url: address of the endpoint; requests to others are left alone.
        prepare: sees that the endpoint serves; may block, and what it raises reaches the caller.
        is_serving: whether it does, so that nobody waits for it in vain.
    """

    def __init__(
        self,
        recorder: Recorder,
        base_url: str,
        *,
        prepare: Callable[[], Any],
        is_serving: Callable[[], bool],
    ) -> None:
        self._recorder = recorder
        self._base_url = base_url.rstrip("/")
        self._prepare = prepare
        self._is_serving = is_serving

    def is_ours(self, base_url: str) -> bool:
        """Whether a client with this address talks to our endpoint."""
        return base_url.rstrip("/") == self._base_url

    def prepare(self) -> None:
        """See that the endpoint serves."""
        if not self._is_serving():
            self._prepare()

    async def aprepare(self) -> None:
        """See that the endpoint serves; the caller's event loop goes on meanwhile."""
        if not self._is_serving():
            await asyncio.to_thread(self._prepare)

    def begins(self, path: str, model: str) -> OpenAICall | None:
        """A request begins in the running context; None for one that is no call."""
        if not path.endswith(CALL_PATHS):
            return None
        claimed = self._recorder.claim_call()
        if claimed is not None:
            # LangChain asks for the usage of streams only where it knows the server.
            usage = path.endswith(("/chat/completions", "/completions"))
            return OpenAICall(claimed, wants_usage=usage)
        announced = self._recorder.begin_call(model or "openai")
        return OpenAICall(announced, recorder=self._recorder) if announced else None


class OpenAICall:
    """One request. Satisfies ``SdkCall``.

    Args:
        recorder: where the call's end is told; None for one whose end LangChain tells.
    """

    def __init__(
        self, call: str, *, recorder: Recorder | None = None, wants_usage: bool = False
    ) -> None:
        self.call = call
        self.model = ""  # the endpoint of this run answers to any name
        self.wants_usage = wants_usage
        self._recorder = recorder

    @property
    def headers(self) -> Mapping[str, str]:
        """The call's identity."""
        return {CALL_HEADER: self.call}

    def ended(self, error: BaseException | None, *, complete: bool = True) -> None:
        """The caller has the answer, an error, or has closed the stream.

        A stream that was read to its end is over already: the endpoint ends a call with its last
        token.
        """
        if self._recorder is None:
            return
        status: CallEnd = "done" if complete else "aborted"
        text = None
        if error is not None:
            status = "aborted" if isinstance(error, _GIVEN_UP) else "failed"
            text = f"{type(error).__name__}: {error}" if status == "failed" else None
        self._recorder.end_call(self.call, status, text)
