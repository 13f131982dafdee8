"""The capacity of a simulated replica, as the core asks for it when it looks for victims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .live_call import LiveCall

if TYPE_CHECKING:
    from .sim_replica import Replica


class Room:
    """Satisfies ``Capacity``."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    @property
    def free_seats(self) -> int:
        """Seats that nobody has."""
        replica = self._replica
        return replica.model.seats - len(replica.running) - replica.loading

    @property
    def free_blocks(self) -> int:
        """Blocks that could be had now."""
        return self._replica.kv.cache.available

    def may_start(self, call: LiveCall) -> bool:
        """Any waiting call may start, but one that waits for its KV has its seat already."""
        return not self._replica.calls[call.key].loading

    def may_stop(self, call: LiveCall) -> bool:
        """Any running call may stop."""
        return True

    def blocks_needed(self, call: LiveCall) -> int:
        """Blocks that the rest of a waiting call's context takes."""
        replica = self._replica
        return replica.kv.blocks_needed(replica.calls[call.key])

    def blocks_freed(self, call: LiveCall) -> int:
        """Blocks of the context that a running call has."""
        replica = self._replica
        held = replica.calls[call.key]
        return -(-replica.computed(held) // replica.model.block_tokens)

    def seconds_back(self, call: LiveCall) -> float:
        """Until a running call that stops now would have its KV back, seconds."""
        replica = self._replica
        return replica.kv.way_back(replica.computed(replica.calls[call.key])).seconds
