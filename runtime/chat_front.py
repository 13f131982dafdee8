"""The seam between a run and whatever answers its chat requests: vLLM's front end, or a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from ..scheduler.tickets import Receipt, Ticket


class ChatFront(Protocol):
    """Answers chat requests in the OpenAI form over an engine; belongs to the engine's loop."""

    def complete(
        self, body: Mapping[str, Any], ticket: Ticket
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """Answer at once."""
        ...

    def stream(
        self, body: Mapping[str, Any], ticket: Ticket
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answer in chunks; the last one carries the usage."""
        ...

    def application(self) -> Any:
        """The same as an HTTP application (ASGI)."""
        ...

    def send_receipts_to(self, sink: Callable[[Receipt], None]) -> None:
        """From now on every call's receipt goes to ``sink``."""
        ...

    def send_prompts_to(self, sink: Callable[[Ticket, int], Ticket]) -> None:
        """From now on ``sink`` completes every call's ticket by its prompt's length in tokens."""
        ...

    def send_contents_to(self, sink: Callable[[str, str, str], None] | None) -> None:
        """From now on every call's id, prompt and answer go to ``sink``; None for nowhere."""
        ...

    async def settled(self) -> None:
        """Return when the receipts of all calls that were given up are in."""
        ...
