"""Where programs' KV stays in vLLM while they are away, and that it goes when they are over.

:mod:`.kv_home` decides; this measures what it asks for and does what it says. Without the host tier
only the device is left to decide about: there KV of a program that is to be dropped goes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import BlockHash

from .fetch_ahead import fetch_after_s
from .kv_home import Home, Pressure, ReturnCost, Turnover, home
from .vllm_blocks import ProgramBlocks
from .vllm_fetch import Fetches

if TYPE_CHECKING:
    from .vllm_adapter import ProgramScheduler

_AWAY = "away"


class KvHomes:
    """Of one replica.

    Args:
        scheduler: the adapter.

    Attributes:
        computed_tokens: that all steps have computed; their KV takes room. The adapter counts.
    """

    def __init__(self, scheduler: ProgramScheduler) -> None:
        self._scheduler = scheduler
        self._blocks = ProgramBlocks(scheduler.kv_cache_manager)
        self._turnover = Turnover()
        self.computed_tokens = 0
        self._away: set[str] = set()
        self.fetches = None if scheduler.tier is None else Fetches(scheduler, scheduler.tier)

    def call_ends(self, program: str, hashes: Sequence[BlockHash]) -> None:
        """A call has ended; ``hashes`` are those of the blocks that its tokens fill."""
        self._blocks.note(program, hashes)
        if self.fetches is not None:
            self.fetches.note(program, hashes)

    def holds(self, program: str, hashes: Sequence[BlockHash]) -> None:
        """The device has these blocks of a program, as far as it has not lost them again."""
        self._blocks.note(program, hashes)

    def tokens(self, program: str) -> int:
        """Tokens whose KV the device has of a program."""
        return self._blocks.tokens(program)

    def away(self, program: str, absence_s: Sequence[float], now: float) -> Home:
        """The program is away: decide, and do it."""
        scheduler, tier = self._scheduler, self._scheduler.tier
        tokens = self.tokens(program)
        prefill_s = scheduler.prefill_rate.token_s
        load_s = math.inf if tier is None else tier.rates.load_s
        pool = scheduler.kv_cache_manager.block_pool
        free_tokens = pool.get_num_free_blocks() * scheduler.block_size
        device_s = self._turnover.lasts_s(free_tokens, self.computed_tokens, now)
        # Without a host tier what the device loses is lost: the price of room is the device's.
        host_s = device_s if tier is None else tier.stays_s
        chosen = home(
            absence_s,
            Pressure(device_s=device_s, host_s=host_s),
            ReturnCost(load_s=tokens * load_s, compute_s=tokens * prefill_s),
        )
        self.back(program)
        if self.fetches is not None and chosen != "drop":
            fetch_s = tokens * min(load_s, prefill_s)
            self.fetches.at(program, now + fetch_after_s(absence_s, fetch_s, device_s))
        if chosen == "move" and tier is not None:
            tier.keep(program, _AWAY)
            self._away.add(program)
        elif chosen == "drop":
            self._blocks.age(program)
            if tier is not None:
                tier.age(program)
        return chosen

    def back(self, program: str) -> None:
        """The program is back: its KV goes in its turn again."""
        if self.fetches is not None:
            self.fetches.back(program)
        if program in self._away:
            self._away.discard(program)
            if self._scheduler.tier is not None:
                self._scheduler.tier.let_go(program, _AWAY)

    def forget(self, program: str) -> None:
        """The program is over: what only it has is free at once."""
        self._away.discard(program)
        if self.fetches is not None:
            self.fetches.forget(program)
        self._blocks.forget(program)
        if self._scheduler.tier is not None:
            self._scheduler.tier.forget(program)
