"""How many KV tokens programs may have in use together, by how much is computed twice.

*Thrashing* is measured in windows of so many computed prompt tokens: the share of them that an
earlier call of the program had computed, where the program had kept its room since (who gave it
back, or came back from a long tool call, pays for that and counts for nothing here).

1. Without thrashing there is no limit.
2. The first window that thrashes sets the limit to a share of the capacity.
3. Every further window that thrashes lowers it by a tenth, down to a floor; every window without
   raises it by a two-hundredth of the capacity. Above the limit nobody comes in; programs that are
   in have to go only where they outgrow the cache.
4. When nobody was held during a whole window without thrashing, the limit goes.
"""

from __future__ import annotations

import math

_WINDOW = 1 / 8
_FIRST = 0.8
_FLOOR = 0.5
_THRASHES = 0.05
_CALM = 0.02
_LOWER = 0.9
_RAISE = 0.005


class RoomLimit:
    """The limit of one replica.

    Args:
        capacity_tokens: what the replica's cache holds.

    Attributes:
        tokens: programs come in up to here; infinite for no limit.
        most_tokens: programs that are in have to go beyond; infinite for no limit.
        lost_tokens, computed_tokens: totals since the start.
    """

    __slots__ = (
        "_capacity",
        "_computed",
        "_held",
        "_lost",
        "computed_tokens",
        "lost_tokens",
        "tokens",
    )

    def __init__(self, capacity_tokens: int) -> None:
        self.tokens = math.inf
        self.lost_tokens = 0
        self.computed_tokens = 0
        self._capacity = capacity_tokens
        self._lost = 0
        self._computed = 0
        self._held = False

    @property
    def most_tokens(self) -> float:  # noqa: D102
        return math.inf if self.tokens == math.inf else max(self.tokens, self._capacity)

    def held(self) -> None:
        """A call was held."""
        self._held = True

    def measured(self, lost_tokens: int, computed_tokens: int, *, holding: bool) -> None:
        """A call has ended.

        Args:
            lost_tokens: prompt tokens that it computed although its program had them before.
            computed_tokens: all prompt tokens that it computed.
            holding: whether calls are held now.
        """
        self.lost_tokens += lost_tokens
        self.computed_tokens += computed_tokens
        self._lost += lost_tokens
        self._computed += computed_tokens
        self._held = self._held or holding
        if self._computed < _WINDOW * self._capacity:
            return
        thrashing = self._lost / self._computed
        self._lost = self._computed = 0
        self._follow(thrashing)
        self._held = False

    def _follow(self, thrashing: float) -> None:
        capacity = self._capacity
        if thrashing > _THRASHES:
            if self.tokens == math.inf:
                self.tokens = _FIRST * capacity
            else:
                self.tokens = max(_LOWER * self.tokens, _FLOOR * capacity)
        elif thrashing < _CALM and self.tokens < math.inf:
            self.tokens = self.tokens + _RAISE * capacity if self._held else math.inf
