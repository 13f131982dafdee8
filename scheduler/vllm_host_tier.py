"""The host tier of the KV cache as the scheduler in vLLM uses it.

The tier itself is a plug-in of vLLM (``autellix.kernels.offload``), whose books lie in the engine
core beside this scheduler. vLLM stores blocks as they fill and asks the tier when a call comes or
comes back. What is added here:

1. The tier learns whose each call is, and how fast moves are.
2. What it has is loaded only where that is the sooner way (:mod:`.way_back`). While a rate has not
   been measured, and at times after that, it is loaded as vLLM would: so it is measured.
3. A call that has lost its seat keeps its KV in the tier until it has got it back.
4. What is fetched before a call comes (:mod:`.vllm_fetch`) is loaded or let be, never computed.

Where the engine has another connector, or none, nothing of this happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from .way_back import KvRates, way_back

# After so many times that the computing way was taken, one load measures the other.
_LOOK_AGAIN = 32


class _Bandwidth(Protocol):
    def seconds_for(self, direction: Literal["store", "load"], moved_bytes: int) -> float | None:
        """How long a move would take, seconds; None while nothing was measured."""
        ...


class HostTier(Protocol):
    """What is used of the plug-in's books."""

    @property
    def bandwidth(self) -> _Bandwidth: ...  # noqa: D102
    @property
    def token_bytes(self) -> int: ...  # noqa: D102
    @property
    def capacity_tokens(self) -> int: ...  # noqa: D102
    @property
    def used_share(self) -> float: ...  # noqa: D102
    @property
    def stays_s(self) -> float: ...  # noqa: D102
    def name_program(self, request_id: str, program: str) -> None: ...  # noqa: D102
    def observe(self, finished: Any) -> None: ...  # noqa: D102
    def pin(self, program: str) -> None: ...  # noqa: D102
    def unpin(self, program: str) -> None: ...  # noqa: D102
    def age(self, program: str) -> None: ...  # noqa: D102
    def drop(self, program: str) -> int: ...  # noqa: D102


class TierSide:
    """The scheduler's side of the tier.

    Args:
        tier: the books.
        prefill_s: what computing a prompt token takes as measured so far, seconds; 0 for unknown.
        requests: vLLM's, by id.

    Attributes:
        loads: how many calls had KV loaded since the start.
    """

    def __init__(
        self, tier: HostTier, prefill_s: Callable[[], float], requests: dict[str, Request]
    ) -> None:
        self.tier = tier
        self.loads = 0
        self._prefill_s = prefill_s
        self._requests = requests
        self._pins: dict[str, set[str]] = {}
        # Tokens that a call was told to load, until it runs with them.
        self._coming: dict[str, int] = {}
        self._fetching: set[str] = set()
        self._computed_instead = 0

    @classmethod
    def beside(
        cls, connector: Any, prefill_s: Callable[[], float], requests: dict[str, Request]
    ) -> TierSide | None:
        """The side of a connector's tier, and its say in what is loaded; None without our tier."""
        side = getattr(connector, "connector_scheduler", None)
        tier: Any = getattr(side, "manager", None)
        if not hasattr(tier, "name_program"):
            return None
        made = cls(tier, prefill_s, requests)
        ask = connector.get_num_new_matched_tokens

        def matched(request: Request, local_tokens: int, *more: Any) -> tuple[int | None, bool]:
            tokens, loads = ask(request, local_tokens, *more)
            return made.decide(request, local_tokens, tokens, loads)

        connector.get_num_new_matched_tokens = matched
        return made

    @property
    def rates(self) -> KvRates:
        """As measured so far; a load rate that is not known is infinite."""
        load_s = self.tier.bandwidth.seconds_for("load", self.tier.token_bytes)
        return KvRates(prefill_s=self._prefill_s(), load_s=math.inf if load_s is None else load_s)

    def decide(
        self, request: Request, local_tokens: int, tokens: int | None, loads: bool
    ) -> tuple[int | None, bool]:
        """What vLLM is told of the tokens that the tier has beyond the device's (rule 2)."""
        request_id = request.request_id
        self._coming.pop(request_id, None)
        fetches = request_id in self._fetching
        # To vLLM "not known yet" means that the request waits: see rule 4.
        nothing = (None, False) if fetches else (0, False)
        if not tokens:
            return nothing if fetches else (tokens, loads)
        rates = self.rates
        if rates.prefill_s and rates.load_s < math.inf:
            wait_s = rates.load_s * self.loading_tokens
            back = way_back(
                request.num_tokens, local_tokens, local_tokens + tokens, rates, link_wait_s=wait_s
            )
            if not back.loaded_tokens:
                self._computed_instead += not fetches
                if fetches or self._computed_instead % _LOOK_AGAIN:
                    return nothing
        self._coming[request_id] = tokens
        return tokens, loads

    @property
    def loading_tokens(self) -> int:
        """Tokens that are being loaded now."""
        return sum(
            coming
            for request_id, coming in self._coming.items()
            if self._requests[request_id].status == RequestStatus.WAITING_FOR_REMOTE_KVS
        )

    def fetches(self, request_id: str, program: str) -> None:
        """A fetch comes; before vLLM is told of it."""
        self.tier.name_program(request_id, program)
        self._fetching.add(request_id)

    def coming(self, request_id: str) -> int:
        """Tokens that are being loaded for a request, or were and it has no seat yet."""
        return self._coming.get(request_id, 0)

    def fetch_ends(self, request_id: str) -> None:
        """A fetch has ended, one way or the other."""
        self._coming.pop(request_id, None)
        self._fetching.discard(request_id)

    def comes(self, request_id: str, program: str) -> None:
        """A call of a program comes; before vLLM is told of it."""
        self.tier.name_program(request_id, program)

    def observe(self, moved: KVConnectorOutput | None) -> None:
        """A step's output tells of moves that have ended."""
        finished = None if moved is None else moved.kv_connector_worker_meta
        if finished is not None:
            self.tier.observe(finished)

    def arrived(self, request_id: str) -> int:
        """The call has a seat: tokens that were loaded for it."""
        tokens = self._coming.pop(request_id, 0)
        self.loads += bool(tokens)
        return tokens

    def ends(self, request_id: str, program: str) -> None:
        """The call has ended, one way or the other."""
        self._coming.pop(request_id, None)
        self.let_go(program, request_id)

    def stats(self) -> dict[str, Any]:
        """For ``EngineStats``."""
        return {
            "kv_host_usage": self.tier.used_share,
            "kv_host_tokens": self.tier.capacity_tokens,
            "swaps": self.loads,
        }

    # Pins: a program's KV stays while there is a reason.

    def keep(self, program: str, reason: str) -> None:
        """Keep what the program has."""
        reasons = self._pins.setdefault(program, set())
        if not reasons:
            self.tier.pin(program)
        reasons.add(reason)

    def let_go(self, program: str, reason: str) -> None:
        """That reason is gone."""
        reasons = self._pins.get(program)
        if reasons is None or reason not in reasons:
            return
        reasons.discard(reason)
        if not reasons:
            del self._pins[program]
            self.tier.unpin(program)

    @property
    def stays_s(self) -> float:
        """How long what is not used stays, seconds; infinite while there is room."""
        return self.tier.stays_s

    def age(self, program: str) -> None:
        """What the program has goes first."""
        self.tier.age(program)

    def forget(self, program: str) -> None:
        """The program is over: what only it has is free at once."""
        self._pins.pop(program, None)
        self.tier.drop(program)
