"""How long the longest chain is that begins with a call of a node, by what ended programs took.

Of calls of one program that wait beside each other, the one with the longest chain to come is on
the critical path: the program ends no sooner than that chain. The others have slack. Which one it
is, nobody knows before the program has ended; programs of one name are expected to be alike.

1. When a program has ended, every call of it tells how long its chain was: its own service, and the
   longest chain among the calls that followed it. Tools count with the time they took.
2. What is expected of a node is the mean over the calls of that node in programs of that name.
3. Nothing is expected of a call outside of a node, nor of a node that no ended program has had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

# Places are a matter of ratios; beyond these bounds nothing is told apart.
_LEAST_S, _MOST_S = 1e-4, 1e12
_PER_E_FOLD, PLACE_BITS = 1500, 16
_MOST_NODES = 64
_LEAST_CALLS, _MOST_CALLS = 1e-6, 1e9


class ChainsToCome:
    """Means by node, of programs of one name. Mergeable: sums are kept."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def told(self, node: str, chain_s: float) -> None:
        """A call of that node began a chain that took so long, seconds."""
        self._sum(node, 1.0, chain_s)

    def expected_s(self, node: str) -> float:
        """The chain that a call of that node begins, seconds; 0 where nothing is known."""
        calls, sum_s = self._nodes.get(node, (0.0, 0.0))
        return sum_s / calls if calls > 0 else 0.0

    def add(self, other: ChainsToCome) -> None:
        """Add what another one holds; the order of additions does not matter."""
        for node, (calls, sum_s) in other._nodes.items():
            self._sum(node, calls, sum_s)

    def since(self, earlier: ChainsToCome) -> ChainsToCome:
        """What it has been told since it held what ``earlier`` holds."""
        late = ChainsToCome()
        for node, (calls, sum_s) in self._nodes.items():
            had, had_s = earlier._nodes.get(node, (0.0, 0.0))
            if calls > had:
                late._nodes[node] = calls - had, max(sum_s - had_s, 0.0)
        return late

    def fade(self, most_calls: float) -> None:
        """Let each node count for at most so many calls."""
        for node, (calls, sum_s) in self._nodes.items():
            if calls > most_calls:
                self._nodes[node] = most_calls, sum_s * most_calls / calls

    def to_wire(self) -> dict[str, list[float]]:
        """The sums as plain types."""
        return {node: list(sums) for node, sums in self._nodes.items()}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_wire`.

        Raises:
            ValueError: it is none.
        """
        chains = cls()
        for node, sums in wire.items():
            numbers = [n for n in sums if isinstance(n, int | float) and not isinstance(n, bool)]
            if not isinstance(sums, list) or len(numbers) != len(sums) or len(sums) != 2:
                raise ValueError(f"not the sums of a node's chains: {sums!r}")
            calls, sum_s = map(float, numbers)
            if not (_LEAST_CALLS <= calls <= _MOST_CALLS and 0.0 <= sum_s <= _MOST_S):
                raise ValueError(f"not the sums of a node's chains: {sums!r}")
            chains._sum(node, calls, sum_s)
        return chains

    def _sum(self, node: str, calls: float, sum_s: float) -> None:
        had = self._nodes.get(node)
        if had is not None:
            self._nodes[node] = had[0] + calls, had[1] + sum_s
        elif len(self._nodes) < _MOST_NODES:
            self._nodes[node] = calls, sum_s


def place_among_siblings(to_come_s: float) -> int:
    """Place of a call among those of its program, from 0: smaller runs first.

    The longer its chain to come, the sooner. A call that nothing is known of comes first.
    """
    if not to_come_s > 0.0:
        return 0
    longer = int(_PER_E_FOLD * math.log(min(max(to_come_s, _LEAST_S), _MOST_S) / _LEAST_S))
    return (1 << PLACE_BITS) - 1 - longer
