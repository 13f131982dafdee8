"""The KV of a simulated replica's calls: who gets blocks, what is computed anew, what is moved.

A call that lost its seat computes its prompt and tokens again as far as the prefix cache does not
have them (``recompute``), or loads that part over the host link (``swap``; the host's memory is not
limited, and the link's time adds to the step's).
"""

from __future__ import annotations

import math
from typing import Literal

from autellix.errors import SettingsError

from .engine_model import EngineModel
from .prefix_cache import BlockCache
from .sim_call import ReplicaCall
from .way_back import KvRates, WayBack, way_back

Resume = Literal["recompute", "swap"]


class ReplicaKv:
    """Gives blocks to calls and takes them back.

    Args:
        model: how much there is.
        prefix_cache: whether KV outlives its call.
        resume: how calls that lost their seat get their KV back.

    Attributes:
        cache: the blocks.
        prompt_tokens, cached_tokens: of the calls admitted for the first time.
        prefilled_tokens, recomputed_tokens: prompt tokens computed; those of them that had been
            before, by the same call or an earlier one of its program.
        swapped_tokens: moved out or in over the host link.
        link_s: time of the moves since it was last set to 0, seconds.
        rates: how fast KV is made and moved.
    """

    def __init__(
        self, model: EngineModel, *, prefix_cache: bool = True, resume: Resume = "recompute"
    ) -> None:
        if resume not in ("recompute", "swap"):
            raise SettingsError(f"resume must be 'recompute' or 'swap', got {resume!r}")
        self.cache = BlockCache(model.blocks)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prefilled_tokens = 0
        self.recomputed_tokens = 0
        self.swapped_tokens = 0
        self.link_s = 0.0
        self._size = model.block_tokens
        self._move_s = model.kv_bytes_per_token / model.link_bytes_per_s
        swaps = resume == "swap"
        self.rates = KvRates(prefill_s=model.step.b, load_s=self._move_s if swaps else math.inf)
        self._prefix_cache = prefix_cache
        self._swap = resume == "swap"

    def admit(self, call: ReplicaCall) -> bool:
        """Reserve the blocks of the call's whole context if there are as many."""
        context = call.prompt_tokens + call.generated
        found = self._reserved(call, context)
        if found < 0:
            return False
        # The last token is computed in any case: it gives the next one.
        hit = min(found, (context - 1) // self._size) * self._size
        call.admitted_blocks = context // self._size
        call.computed = hit
        call.prefill_left = context - hit
        if call.cached_tokens < 0:
            call.cached_tokens = hit
            self.cached_tokens += hit
            self.prompt_tokens += context
        if call.swapped:
            self._load(call)
        else:
            self.recomputed_tokens += max(0, min(call.known_tokens, context) - hit)
        self.prefilled_tokens += call.prefill_left
        return True

    def _reserved(self, call: ReplicaCall, context: int) -> int:
        """Blocks of the context that are in the cache; -1 where there is no room for the others."""
        cache = self.cache
        whole, full = -(-context // self._size), context // self._size
        found = 0
        if self._prefix_cache:
            found = cache.found(call.tail, full)
            if whole - found > cache.available:
                return -1
            cache.lock(call.tail)
            if whole - found > cache.available:
                cache.unlock_unused(call.tail)
                return -1
            cache.take(whole - found)
            cache.fill(call.tail, full)
        elif whole > cache.available:
            return -1
        else:
            cache.take(whole)
        return found

    def stop(self, call: ReplicaCall, computed: int) -> None:
        """A running call loses its blocks; ``computed`` tokens of it had been computed."""
        call.known_tokens = max(call.known_tokens, computed)
        self.leave(call, computed)
        if self._swap:
            call.swapped = True
            self._move(max(computed - call.cached_tokens, 0))

    def leave(self, call: ReplicaCall, computed: int) -> None:
        """Take the call's blocks back; what other calls may use stays in the cache."""
        self.prefilled_tokens -= call.prefill_left
        cache, size = self.cache, self._size
        if call.prefill_left:
            held = -(-(call.prompt_tokens + call.generated) // size)
        else:
            held = -(-computed // size)
        if not self._prefix_cache:
            cache.give(held)
        else:
            spare = held - call.admitted_blocks
            if call.prefill_left:
                spare += cache.cut(call.tail, computed // size)
            else:
                spare -= cache.fill(call.tail, computed // size)
            cache.give(spare)
            cache.unlock(call.tail)
        call.prefill_left = 0

    def blocks_needed(self, call: ReplicaCall) -> int:
        """Blocks that a waiting call would take."""
        context = call.prompt_tokens + call.generated
        found = 0
        if self._prefix_cache:
            found = self.cache.found(call.tail, context // self._size)
        return -(-context // self._size) - found

    def way_back(self, computed: int) -> WayBack:
        """How a running call with so many computed tokens would get its KV back.

        Blocks of a call that stops are evicted after all that lay free before. Where there are as
        many of those, it is taken to find its own again.
        """
        kept = computed if self.cache.available * self._size >= computed else 0
        return way_back(computed, kept, computed if self._swap else 0, self.rates)

    def _load(self, call: ReplicaCall) -> None:
        """The missing part of a swapped call's KV comes from host memory."""
        call.swapped = False
        loaded = min(call.known_tokens - call.computed, call.prefill_left - 1)
        if loaded > 0:
            call.computed += loaded
            call.prefill_left -= loaded
            self._move(loaded)

    def _move(self, tokens: int) -> None:
        self.swapped_tokens += tokens
        self.link_s += tokens * self._move_s
