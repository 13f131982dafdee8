"""Where a program's replica is gone, its next best place is another replica of the same machine.

What a machine's replicas have in common is nearer there than anywhere else: a cache of KV in host
memory or on disk, and the way to the program's own process. Pure, as the balancer that it is put
before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .balancers import Balancer
from .tickets import Receipt, Ticket

# A machine is preferred as long as the least used of its replicas has at most so many more calls
# under way than the least used of all.
_MOST_EXTRA_CALLS = 4.0


class NodeAffinity:
    """A balancer that knows machines; satisfies ``Balancer``.

    1. While the program's last replica takes calls, the other balancer decides alone.
    2. Where it does not, the other balancer chooses among the replicas of the same machine,
    3. unless there is none, or they have much more to do than others: then among all.

    Args:
        inner: decides among replicas.
        nodes: gives the machine of each replica, by index; empty where it is not known.
        most_extra_calls: how many more the machine's replicas may have under way.
    """

    def __init__(
        self,
        inner: Balancer,
        nodes: Callable[[], Sequence[str]],
        most_extra_calls: float = _MOST_EXTRA_CALLS,
    ) -> None:
        self._inner = inner
        self._nodes = nodes
        self._most_extra_calls = most_extra_calls
        self._last: dict[str, tuple[int, str]] = {}

    def place(self, ticket: Ticket, loads: Sequence[float]) -> int:
        """See ``Balancer.place``."""
        nodes = self._nodes()
        replica, node = self._last.get(ticket.program, (-1, ""))
        if node and not _takes_calls(replica, node, loads, nodes):
            loads = self._of_node(node, loads, nodes)
        chosen = self._inner.place(ticket, loads)
        if chosen < len(nodes) and nodes[chosen]:
            self._last[ticket.program] = (chosen, nodes[chosen])
        return chosen

    def _of_node(self, node: str, loads: Sequence[float], nodes: Sequence[str]) -> Sequence[float]:
        there = [
            load if index < len(nodes) and nodes[index] == node else math.inf
            for index, load in enumerate(loads)
        ]
        least = min(loads, default=math.inf)
        return loads if min(there, default=math.inf) > least + self._most_extra_calls else there

    def call_ended(self, call: str, receipt: Receipt | None) -> None:
        """See ``Balancer.call_ended``."""
        self._inner.call_ended(call, receipt)

    def replica_serves(self, replica: int, *, seats: int, kv_tokens: int) -> None:
        """See ``Balancer.replica_serves``."""
        self._inner.replica_serves(replica, seats=seats, kv_tokens=kv_tokens)

    def program_ended(self, program: str) -> None:
        """See ``Balancer.program_ended``."""
        self._last.pop(program, None)
        self._inner.program_ended(program)


def _takes_calls(replica: int, node: str, loads: Sequence[float], nodes: Sequence[str]) -> bool:
    """Whether the replica is still there, on the machine it was on."""
    return (
        replica < min(len(loads), len(nodes))
        and loads[replica] != math.inf
        and nodes[replica] == node
    )
