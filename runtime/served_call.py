"""A request that reaches the engine's front end through its own HTTP routes, and whose it is."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from ..scheduler.tickets import Ticket


class ServedCall:
    """Hands out tickets to a request's calls: most have one, a list of prompts has several.

    Args:
        first: the ticket of the request's own call.
        further: makes the ticket of one more.
        answered: told of each call whose last token is there.
    """

    def __init__(
        self, first: Ticket, further: Callable[[], Ticket], answered: Callable[[str], None]
    ) -> None:
        self._first: Ticket | None = first
        self._further = further
        self.answered = answered

    def ticket(self) -> Ticket:
        """The ticket of the next call."""
        first, self._first = self._first, None
        return self._further() if first is None else first


# Set around the front end's application: whatever it calls inside belongs to the request.
served_call: ContextVar[ServedCall | None] = ContextVar("autellix_served_call", default=None)
