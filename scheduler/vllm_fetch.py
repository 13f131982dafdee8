"""KV that vLLM loads from the host tier before a program's next call comes.

:mod:`.fetch_ahead` decides when; this does it, with what vLLM has for calls. A *fetch* is a request
for the program's last context that never runs:

1. It stands first in the waiting queue for one step. vLLM finds what the tier has of its context
   beyond the device's, takes blocks and begins the load, as it would for a call.
2. If that does not come about, since the device has everything, or the tier nothing, or there is no
   room, it ends with that step. So it never waits, and never computes.
3. When the load has arrived the blocks are entered into the prefix cache, and it ends. They are
   then like those of a call that has ended: the next call finds them, or they go in their turn.

It takes only blocks that no call wants. While it lasts, a call of the same context waits for it, as
it would for a sibling's load: vLLM sees to that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from .vllm_adapter import ProgramScheduler
    from .vllm_host_tier import TierSide

# Before all calls: their ranks are not negative.
_FIRST = -1
_MOST_PROGRAMS = 4096


class Fetches:
    """Of one replica with a host tier.

    Args:
        scheduler: the adapter.
        tier: its side of the tier.

    Attributes:
        begun: loads since the start.
        used: those whose program's next call found them.
    """

    def __init__(self, scheduler: ProgramScheduler, tier: TierSide) -> None:
        self.begun = 0
        self.used = 0
        self._scheduler = scheduler
        self._tier = tier
        # Hashes of the blocks of each program's last context.
        self._contexts: dict[str, Sequence[BlockHash]] = {}
        self._due: list[tuple[float, int, str]] = []
        self._wanted: dict[str, int] = {}
        self._ties = count()
        # Fetches that vLLM has, by request id.
        self._under_way: dict[str, str] = {}
        self._brought: dict[str, int] = {}

    # What happens to programs.

    def note(self, program: str, hashes: Sequence[BlockHash]) -> None:
        """A call has ended: its context is what the program's next one most likely needs."""
        self._contexts.pop(program, None)
        self._contexts[program] = hashes
        if len(self._contexts) > _MOST_PROGRAMS:
            # Of programs that nobody says are over.
            del self._contexts[next(iter(self._contexts))]

    def at(self, program: str, due_s: float) -> None:
        """The program's KV is to be loaded at that time, if it is not back by then."""
        if due_s == math.inf:
            return
        tie = self._wanted[program] = next(self._ties)
        heappush(self._due, (due_s, tie, program))

    def at_once(self, program: str) -> None:
        """The program's call is a moment away: load its KV with the next step."""
        self._wanted.pop(program, None)
        self._add(program)

    def back(self, program: str) -> None:
        """A call of the program has come."""
        self._wanted.pop(program, None)

    def forget(self, program: str) -> None:
        """The program is over."""
        self._wanted.pop(program, None)
        self._contexts.pop(program, None)
        self._brought.pop(program, None)
        self._end([one for one, whose in self._under_way.items() if whose == program])

    def found(self, program: str, found_tokens: int) -> int:
        """Of the tokens that a program's call finds, those that a fetch has brought."""
        brought = min(self._brought.pop(program, 0), found_tokens)
        self.used += bool(brought)
        return brought

    # Around vLLM's steps.

    def before_step(self, now: float) -> None:
        """Fetches that are due join the waiting queue, unless calls' own loads are under way."""
        due = self._due
        while due and due[0][0] <= now:
            _, tie, program = heappop(due)
            if self._wanted.get(program) == tie:
                del self._wanted[program]
                if not self._tier.loading_tokens:
                    self._add(program)

    def after_step(self) -> None:
        """Those whose load has not begun are given up (rule 2)."""
        requests = self._scheduler.requests
        for request_id, program in list(self._under_way.items()):
            request = requests[request_id]
            if request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
                self._end([request_id])
            elif program not in self._brought:
                self.begun += 1
                self._brought[program] = self._tier.coming(request_id)

    def after_output(self) -> None:
        """Those whose load has arrived leave their blocks to the cache (rule 3)."""
        scheduler = self._scheduler
        for request_id, program in list(self._under_way.items()):
            if request_id not in scheduler.finished_recving_kv_req_ids:
                continue
            if request_id not in scheduler.failed_recving_kv_req_ids:
                request = scheduler.requests[request_id]
                scheduler.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
                scheduler.kv_homes.holds(program, request.block_hashes)
                self._tier.arrived(request_id)
            self._end([request_id])

    # How it is done.

    def _add(self, program: str) -> None:
        size = self._scheduler.kv_cache_manager.block_pool.hash_block_size
        most = (self._scheduler.max_model_len - 1) // size
        hashes = self._contexts.get(program, ())[:most]
        if program in self._under_way.values() or not self._has_room(program, len(hashes) * size):
            return
        request = Request(
            request_id=f"fetch-{next(self._ties)} of {program}",
            # The hashes alone say what the context is. The last token is never looked up.
            prompt_token_ids=[0] * (len(hashes) * size + 1),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            priority=_FIRST,
        )
        request.block_hashes = list(hashes)
        self._under_way[request.request_id] = program
        self._brought.pop(program, None)
        self._tier.fetches(request.request_id, program)
        self._scheduler.add_fetch(request)

    def _has_room(self, program: str, context_tokens: int) -> bool:
        """Whether the device lacks some of it, and has as many blocks that no call wants."""
        scheduler = self._scheduler
        lacking = context_tokens - scheduler.kv_homes.tokens(program)
        wanted = len(scheduler.running) + sum(
            scheduler._request_remaining_blocks(request)
            for request in scheduler.requests.values()
            if not request.is_finished()
        )
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return 0 < lacking <= (free - wanted) * scheduler.block_size

    def _end(self, request_ids: Sequence[str]) -> None:
        """They end; blocks of a load that is under way are free when it has arrived."""
        for request_id in request_ids:
            self._under_way.pop(request_id, None)
            self._tier.fetch_ends(request_id)
            self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
