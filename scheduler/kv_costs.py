"""What bringing calls' KV back has cost, for their receipts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .tickets import Receipt


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

    def on_receipt(self, request_id: str, receipt: Receipt) -> Receipt:
        """The receipt with what the request has cost, which is forgotten."""
        cost = self._costs.pop(request_id, None)
        if cost is None:
            return receipt
        return replace(
            receipt,
            swapped_in_tokens=cost.swapped_in_tokens,
            recomputed_tokens=cost.recomputed_tokens,
        )


def merged(first: Receipt | None, second: Receipt) -> Receipt:
    """The receipt of a call that was several requests."""
    if first is None:
        return second
    longest = max(first, second, key=lambda receipt: receipt.service_s + receipt.wait_s)
    return replace(
        longest,
        preemptions=first.preemptions + second.preemptions,
        output_tokens=first.output_tokens + second.output_tokens,
        swapped_in_tokens=first.swapped_in_tokens + second.swapped_in_tokens,
        recomputed_tokens=first.recomputed_tokens + second.recomputed_tokens,
    )
