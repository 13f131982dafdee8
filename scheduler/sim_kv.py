"""The KV of a simulated replica's calls: who gets blocks, what is computed anew, what is loaded.

What the prefix cache does not have of a call's context is computed, unless host memory has it
(:mod:`.sim_host`): then it is loaded where that is the sooner way. Loads follow each other on the
link; the call waits for its own without a seat, and steps go on meanwhile. Stores run beside the
steps in the link's other direction and hold nobody up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from .engine_model import EngineModel
from .fetch_ahead import fetch_after_s
from .kv_home import Home, Pressure, ReturnCost, Turnover, home
from .prefix_cache import BlockCache, CacheNode
from .sim_call import ReplicaCall
from .sim_fetch import Fetches
from .sim_host import HostKv, HostMemory
from .sim_live import LiveProgram
from .way_back import KvRates, WayBack, way_back


class ReplicaKv:
    """Gives blocks to calls and takes them back.

    Args:
        model: how much there is.
        prefix_cache: whether KV outlives its call.
        memory: the host tier; None for none.

    Attributes:
        cache: the blocks.
        host: those in host memory; None for none.
        prompt_tokens, cached_tokens: of the calls admitted for the first time.
        prefilled_tokens: computed as parts of prompts.
        known_tokens: of calls' contexts, those whose KV had been made before, by the same call or
            an earlier one of its program. ``lost_tokens`` of them the device had no more, and
            ``recomputed_tokens`` of these were computed again.
        loads, loaded_tokens, load_wait_s: from host memory; how many, and how long they took from
            decision to end, seconds.
        rates: how fast KV is made and moved.
        homes: how many programs had their KV kept, moved and dropped while they were away.
        fetches: loads before a program's next call; None without the tier of ours.
    """

    def __init__(
        self, model: EngineModel, *, prefix_cache: bool = True, memory: HostMemory | None = None
    ) -> None:
        self.cache = BlockCache(model.blocks)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prefilled_tokens = 0
        self.known_tokens = 0
        self.lost_tokens = 0
        self.recomputed_tokens = 0
        self.loads = 0
        self.loaded_tokens = 0
        self.load_wait_s = 0.0
        self._size = model.block_tokens
        self._prefix_cache = prefix_cache
        self._tier = memory.tier if memory is not None and prefix_cache else None
        self.host: HostKv | None = None
        self.fetches: Fetches | None = None
        load_s, start_s = math.inf, 0.0
        if memory is not None and prefix_cache:
            self.host = HostKv(memory.blocks(model))
            if memory.tier == "programs" and memory.fetches_ahead:
                self.fetches = Fetches(self.cache, self.host)
            load_s = model.kv_bytes_per_token / model.link_bytes_per_s
            start_s = memory.load_start_s
        self.rates = KvRates(prefill_s=model.step.b, load_s=load_s, load_start_s=start_s)
        self.homes: Counter[Home] = Counter()
        self._turnover = Turnover()
        self._link_free_s = 0.0
        self._held: dict[ReplicaCall, CacheNode] = {}

    def admit(self, call: ReplicaCall, now: float) -> bool:
        """Reserve the blocks of the call's whole context if there are as many.

        Its ``ready_s`` says when it may run: now, or when its load ends.
        """
        context = call.prompt_tokens + call.generated
        found = self._reserved(call, context)
        if found < 0:
            return False
        # The last token is computed in any case: it gives the next one.
        most = (context - 1) // self._size
        hit = min(found, most)
        call.ready_s = now
        loaded = 0
        if self.host is not None:
            loaded = self._load(self.host, call, hit, most, context, now)
        hit_tokens = (hit + loaded) * self._size
        call.admitted_blocks = context // self._size
        call.computed = hit_tokens
        call.prefill_left = context - hit_tokens
        known = min(call.known_tokens, context)
        lost, again = max(0, known - hit * self._size), max(0, known - hit_tokens)
        if call.cached_tokens < 0:
            if self.fetches is not None:
                brought = self.fetches.found(call.program.spec.name, hit) * self._size
                call.loaded_tokens += brought
                lost += brought
            call.cached_tokens = hit_tokens
            self.cached_tokens += hit_tokens
            self.prompt_tokens += context
        else:
            call.recomputed_tokens += again
        self.known_tokens += known
        self.lost_tokens += lost
        self.recomputed_tokens += again
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

    def _load(
        self, host: HostKv, call: ReplicaCall, hit: int, most: int, context: int, now: float
    ) -> int:
        """Begin to load what the host has beyond the device's part; blocks that come so."""
        size, program = self._size, call.program.spec.name
        if self._tier == "programs":
            host.unpin(program)
        hosted = host.found(call.tail, most)
        if hosted <= hit:
            # Siblings may still be loading what the device is said to have.
            call.ready_s = max(now, host.ready_s(call.tail)) if hosted else now
            return 0
        wait_s = max(self._link_free_s - now, 0.0)
        back = way_back(context, hit * size, hosted * size, self.rates, link_wait_s=wait_s)
        if not back.loaded_tokens and self._tier != "vllm":
            return 0
        blocks = hosted - hit
        call.ready_s = self._on_link(blocks, now)
        held = host.hold(program, call.tail, call.ready_s, now)
        if held is not None:
            self._held[call] = held
        self.load_wait_s += call.ready_s - now
        call.loaded_tokens += blocks * size
        return blocks

    def _on_link(self, blocks: int, now: float) -> float:
        """A load of so many blocks, behind those under way; when it ends."""
        link_s = self.rates.load_start_s + blocks * self._size * self.rates.load_s
        self._link_free_s = max(now, self._link_free_s) + link_s
        self.loads += 1
        self.loaded_tokens += blocks * self._size
        return self._link_free_s

    def fetch(self, spare: int, now: float) -> None:
        """Begin the loads ahead that were asked for, with blocks that nobody wants soon."""
        if self.fetches is None:
            return
        self.fetches.settle(now)
        for program, tail in self.fetches.take_asked().items():
            if self._link_free_s > now:
                return  # a call's own load goes first
            blocks = self.fetches.begin(program, tail, spare)
            if blocks:
                spare -= blocks
                self.fetches.ends(program, tail, self._on_link(blocks, now), now)

    def loaded(self, call: ReplicaCall) -> None:
        """The call's load has ended."""
        held = self._held.pop(call, None)
        if held is not None and self.host is not None:
            self.host.release(held)

    def stop(self, call: ReplicaCall, computed: int, now: float) -> None:
        """A running call loses its blocks; ``computed`` tokens of it had been computed."""
        call.known_tokens = max(call.known_tokens, computed)
        self._leave(call, computed)
        if self.host is None:
            return
        program = call.program.spec.name
        self.host.store(program, call.tail, computed // self._size, now)
        if self._tier == "programs":
            self.host.pin(program)

    def end(self, call: ReplicaCall, computed: int, now: float) -> None:
        """A call has ended; what other calls may use of its context is kept."""
        self._leave(call, computed)
        if self.host is not None and self._tier != "calls":
            self.host.store(call.program.spec.name, call.tail, computed // self._size, now)

    def away(
        self,
        program: LiveProgram,
        where: int,
        absence_s: Sequence[float],
        context: int,
        now: float,
    ) -> float:
        """A program is in a tool; its KV stays where that is cheapest, under the tier of ours.

        Args:
            where: index of this replica.
            absence_s: quantiles of how long such tools take, seconds.
            context: tokens that its next call needs again.

        Returns:
            After how long its KV is to be loaded if it is still away, seconds; infinite for never.
        """
        if self.host is None or self._tier != "programs":
            return math.inf
        load_s = self.rates.load_start_s + context * self.rates.load_s
        cost = ReturnCost(load_s=load_s, compute_s=context * self.rates.prefill_s)
        cache = self.cache
        device_s = self._turnover.lasts_s(cache.available, cache.evicted, now)
        pressure = Pressure(device_s=device_s, host_s=self.host.stays_s)
        name = program.spec.name
        chosen = home(absence_s, pressure, cost)
        self.homes[chosen] += 1
        if chosen == "move":
            self.host.pin(name)
        elif chosen == "drop":
            self.host.age(name)
            self.cache.age(program.nodes[where])
        if self.fetches is None or chosen == "drop":
            return math.inf
        return fetch_after_s(absence_s, min(cost.load_s, cost.compute_s), device_s)

    def back(self, program: LiveProgram) -> None:
        """The program is back: its KV goes in its turn again."""
        if self.host is not None and self._tier == "programs" and not program.outstanding:
            self.host.unpin(program.spec.name)
            if self.fetches is not None:
                self.fetches.back(program.spec.name)

    def program_ended(self, program: LiveProgram, where: int) -> None:
        """A program is over: with the tier of ours its KV is free at once."""
        if self.host is None or self._tier == "vllm":
            return
        self.host.drop(program.spec.name)
        if self._tier == "programs":
            self.cache.drop(program.nodes[where])
            if self.fetches is not None:
                self.fetches.forget(program.spec.name)

    def _leave(self, call: ReplicaCall, computed: int) -> None:
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
        return way_back(computed, kept, computed if self.host is not None else 0, self.rates)
