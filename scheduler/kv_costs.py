"""What bringing calls' KV back has cost, for their receipts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Cost:
    """``lost_tokens`` are those that the call had when it lost its seat, until it is back."""

    swapped_in_tokens: int = 0
    recomputed_tokens: int = 0
    lost_tokens: int = 0


class KvCosts:
    """By request; those that never lost or loaded anything take no room."""

    def __init__(self) -> None:
        self._costs: dict[str, _Cost] = {}

    def lost(self, request_id: str, tokens: int) -> None:
        """A request loses its seat with the KV of so many tokens."""
        self._costs.setdefault(request_id, _Cost()).lost_tokens = tokens

    def back(self, request_id: str, found_tokens: int, loaded_tokens: int) -> None:
        """A request has a seat.

        Args:
            found_tokens: whose KV it has, the loaded ones included.
            loaded_tokens: that came from host memory.
        """
        cost = self._costs.get(request_id)
        if cost is None:
            if not loaded_tokens:
                return
            cost = self._costs[request_id] = _Cost()
        cost.swapped_in_tokens += loaded_tokens
        cost.recomputed_tokens += max(cost.lost_tokens - found_tokens, 0)
        cost.lost_tokens = 0

    def ends(self, request_id: str) -> tuple[int, int]:
        """Tokens that the request loaded and that it computed again; they are forgotten."""
        cost = self._costs.pop(request_id, None)
        return (0, 0) if cost is None else (cost.swapped_in_tokens, cost.recomputed_tokens)


def merged(first: dict[str, Any] | None, second: dict[str, Any]) -> dict[str, Any]:
    """The receipt of a call that was several requests; receipts as plain types."""
    if first is None:
        return second
    longest = max(first, second, key=lambda receipt: receipt["service_s"] + receipt["wait_s"])
    return longest | {name: first[name] + second[name] for name in _SUMMED}


_SUMMED = ("preemptions", "output_tokens", "swapped_in_tokens", "recomputed_tokens")
