"""vLLM runs programs' calls in our order: the one file of this room that touches vLLM.

Given to vLLM as ``scheduler_cls="autellix.scheduler.vllm_adapter.ProgramScheduler"``, with
``scheduling_policy="priority"`` and the settings (``SchedulerConfig.to_dict()``) as "autellix" in
``additional_config``.

A request's life here:

1. ``add_request``: its ticket (in ``sampling_params.extra_args``) enters the core, and the core's
   rank becomes its priority, by which vLLM orders what waits.
2. ``schedule``: at every N-th step the policy moves ranks and stops victims, before vLLM looks at
   its queues and never while it does. Victims are hidden from vLLM for that step: it cannot stop
   and resume a request in one.
3. vLLM fills the seats from its waiting queue at every step, so a finished call's seat is taken at
   once. What is known to have changed is passed on to the core. Whether anything else has shows in
   how many run, and at every N-th step in who they are.
4. ``update_from_output``: the step's duration is charged before vLLM looks at the tokens, so that a
   receipt has the last step in it. The same holds with steps in flight (async scheduling): vLLM
   gives outputs in the order of dispatch.
5. ``_free_request``: however a request ends, it passes here. vLLM puts what this returns on the
   last output, so the receipt goes out as ``kv_transfer_params["autellix"]``. Where no output is
   delivered (an abort, an error), the front asks: ``call_utility_async("autellix_receipt", call)``.
6. Where the engine has the host tier for KV, its books are told what happens to calls and programs
   (:mod:`.vllm_host_tier`).

A request with ``n > 1`` reaches the scheduler as n requests with one ticket. Each has its own place
and meters; the receipt on each one's last output is that of the call so far, so the last one to
finish brings the whole: meters of the request that took longest, output tokens and preemptions of
all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import Any, cast

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from autellix.errors import SettingsError

from .config import SchedulerConfig
from .core import Scheduler
from .kv_costs import KvCosts, merged
from .live_call import LiveCall
from .prefill_rate import LEAST_PROMPT_TOKENS, PrefillRate
from .rank_queue import RankQueue
from .tickets import Ticket
from .victims import Victim
from .vllm_host_tier import TierSide
from .vllm_kv_home import KvHomes
from .vllm_names import require_names
from .vllm_room import VllmRoom
from .vllm_stats import TellingScheduler

RECEIPT_KEY = "autellix"
_KEPT_RECEIPTS = 1024
_ENDINGS = {status: str(RequestStatus.get_finished_reason(status)) for status in RequestStatus}

require_names()


class ProgramScheduler(TellingScheduler):
    """vLLM's scheduler with program-aware order and preemption.

    Attributes:
        core: the algorithm.
        prefill_rate: how long a prompt token takes here.
        tier: the host tier for KV; None where there is none.
        kv_homes: where the KV of programs stays that are away.
        now: the clock, seconds; a test may put its own here.

    Raises:
        SettingsError: vLLM's ``scheduling_policy`` is not "priority", or a setting is impossible.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.policy != SchedulingPolicy.PRIORITY:
            raise SettingsError(
                f"scheduling_policy must be 'priority' for program-aware scheduling, got "
                f"{self.policy.value!r}; start the engine with scheduling_policy='priority'"
            )
        extra = self.vllm_config.additional_config
        settings = extra.get(RECEIPT_KEY, {}) if isinstance(extra, dict) else {}
        self.now = time.monotonic
        self._room = VllmRoom(self)
        self._configure(SchedulerConfig.from_dict(settings))
        self._batch: dict[str, LiveCall] = {}
        self._dropped: list[LiveCall] = []
        self._costs = KvCosts()
        self.tier = TierSide.beside(
            self.connector, lambda: self.prefill_rate.token_s, self.requests
        )
        self.kv_homes = KvHomes(self)
        self._requests_of: dict[str, int] = {}
        # Receipts as plain types: of calls that are several requests so far, and of the last calls.
        self._parts: dict[str, dict[str, Any]] = {}
        self._receipts: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._queue: RankQueue[Request] = RankQueue()
        self.waiting = cast("RequestQueue", self._queue)

    def _configure(self, config: SchedulerConfig) -> None:
        self.core = Scheduler(config)
        self.prefill_rate = PrefillRate()
        tokens = config.policy_interval * self.max_num_scheduled_tokens
        self._blocks_until_next_run = tokens // self.block_size
        # First come, first served keeps itself in order.
        ordered = self.core.policy.multilevel or self.core.program_ties
        self._interval = config.policy_interval if ordered else 0

    # Hooks into vLLM.

    def add_request(self, request: Request) -> None:
        """A request arrives, or a streamed session goes on (then it is known already)."""
        request_id = request.request_id
        if request_id not in self.requests:
            call = self.core.arrive(_ticket_of(request), self.now(), key=request_id)
            request.priority = call.rank
            if self.core.tenants.several:
                self._interval = self.core.config.policy_interval
            call_id = call.ticket.call
            self._requests_of[call_id] = self._requests_of.get(call_id, 0) + 1
            if self.tier is not None:
                self.kv_homes.back(call.ticket.program)
                self.tier.comes(request_id, call.ticket.program)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Run the policy when its turn has come, then let vLLM make the step."""
        interval, fetches = self._interval, self.kv_homes.fetches
        turn = not interval or self.current_step % interval == 0
        hidden = self._run_policy(self.now()) if turn and interval else ()
        if fetches is not None:
            fetches.before_step(self.now())
        try:
            output = super().schedule(throttle_prefills)
        finally:
            for request in hidden:
                self.waiting.prepend_request(request)
        if fetches is not None:
            fetches.after_step()
        ran, batch = output.num_scheduled_tokens, self._batch
        same = not self._dropped and len(ran) == len(batch) == len(self.running)
        if same and (not turn or ran.keys() == batch.keys()):
            self.core.dispatch_same(self.now())
        else:
            self._dispatch_changed(output, turn)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Charge the step, then let vLLM take the tokens."""
        step_s = self.core.charge(self.now())
        tokens = scheduler_output.total_num_scheduled_tokens
        self.kv_homes.computed_tokens += tokens
        # Each call in the batch but those with a prompt to compute has one token.
        prompt_tokens = tokens - len(scheduler_output.num_scheduled_tokens)
        if prompt_tokens >= LEAST_PROMPT_TOKENS:
            self.prefill_rate.add(prompt_tokens, step_s, self.core.typical_step_s)
        if self.tier is not None:
            self.tier.observe(model_runner_output.kv_connector_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.kv_homes.fetches is not None:
            self.kv_homes.fetches.after_output()
        return outputs

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        """A request loses its seat: by us, or by vLLM when a running one finds no KV block."""
        call = self.core.calls[request.request_id]
        if call.seated:
            self.core.preempt(call, self.now(), "KV cache full")
        self._drop(call)
        self._costs.lost(call.key, min(request.num_computed_tokens, request.num_tokens))
        if self.tier is not None:
            self.tier.keep(call.ticket.program, call.key)
        super()._preempt_request(request, timestamp, drop_stale_output)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """A request has ended, one way or the other."""
        call = self.core.calls.get(request.request_id)
        if call is None:
            return super()._free_request(request, delay_free_blocks)
        receipt = self._leave(call, request)
        program = call.ticket.program
        # Of a call that was given up nothing is kept, and one without a ticket is a program of its
        # own, which nothing follows.
        if request.status != RequestStatus.FINISHED_ABORTED and program != call.key:
            self.kv_homes.call_ends(program, request.block_hashes)
        params, encoder_params = super()._free_request(request, delay_free_blocks)
        if params is None:
            return {RECEIPT_KEY: receipt}, encoder_params
        return {**params, RECEIPT_KEY: receipt}, encoder_params

    # What the front asks for.

    def autellix_receipt(self, call_id: str) -> dict[str, Any] | None:
        """The receipt, as plain types, of one of the last calls that ended; None for others."""
        return self._receipts.get(call_id)

    def autellix_stats(self) -> dict[str, Any]:
        """The replica's state now; the names are those of the runtime's ``EngineStats``."""
        core = self.core
        waiting = sorted((c for c in core.calls.values() if not c.seated), key=core.rank)
        tokens: dict[str, int] = {}
        for call in core.calls.values():
            if made := self.requests[call.key].num_output_tokens:
                tokens[call.ticket.call] = tokens.get(call.ticket.call, 0) + made
        return {
            "running": sum(core.running_by_level),
            "waiting": sum(core.waiting_by_level),
            "running_by_level": list(core.running_by_level),
            "waiting_by_level": list(core.waiting_by_level),
            "call_levels": {c.ticket.call: c.level + 1 for c in core.calls.values()},
            "waiting_calls": [c.ticket.call for c in waiting],
            "preempted_calls": [c.ticket.call for c in waiting if c.started],
            "call_tokens": tokens,
            "kv_usage": self.kv_cache_manager.usage,
            "seats": self.max_num_active_reqs,
            "step_s": core.measured_step_s,
            "preemptions": core.preemptions,
            "promotions": core.promotions,
            "demotions": core.demotions,
            "kv_tokens": self.kv_cache_manager.block_pool.num_gpu_blocks * self.block_size,
            "block_tokens": self.block_size,
            "token_budget": self.max_num_scheduled_tokens,
            **({} if self.tier is None else self.tier.stats()),
        }

    def autellix_tell(self, news: list[list[Any]]) -> list[Any]:
        """What has happened to programs, in order: each a word and what goes with it.

        The words are "away", "returns" and "forget"; what each has led to.
        """
        return [getattr(self, f"autellix_{what}")(*about) for what, *about in news]

    def autellix_away(self, program: str, absence_s: list[float]) -> str:
        """A program is in a tool or waits for a person: what becomes of its KV (:mod:`.kv_home`).

        Args:
            absence_s: quantiles of how long, ascending, seconds; empty where nothing is known.
        """
        return self.kv_homes.away(program, absence_s, self.now())

    def autellix_returns(self, program: str) -> None:
        """The tool of a program that was away has ended: its next call is a moment away."""
        if self.kv_homes.fetches is not None:
            self.kv_homes.fetches.at_once(program)

    def autellix_forget(self, program: str) -> None:
        """A program is over: what only it has of the caches is free at once."""
        self.kv_homes.forget(program)

    def autellix_configure(self, settings: dict[str, Any]) -> bool:
        """Start afresh with other settings (``to_dict()`` of them); False while calls run."""
        if self.requests:
            return False
        self._configure(SchedulerConfig.from_dict(settings))
        return True

    def add_fetch(self, request: Request) -> None:
        """A request that loads KV and never runs (:mod:`.vllm_fetch`); the core knows none."""
        super().add_request(request)

    # How it is done.

    def _run_policy(self, now: float) -> list[Request]:
        """Move ranks and stop victims; the victims, which vLLM must not see in this step."""
        requests, queue = self.requests, self._queue
        for call in self.core.tick(now):
            request = requests[call.key]
            request.priority = call.rank
            if not call.seated:
                # Not harmful to one that vLLM keeps in its other queue: it is skipped here.
                queue.moved(request)
        victims: list[Request] = []
        if queue and self.pause_state == PauseState.UNPAUSED:
            victims = [self._stop(v, now) for v in self.core.victims(self._room, now)]
            queue.remove_requests(victims)
        if self._room.free_blocks < self._blocks_until_next_run:
            self._sort_running()
        return victims

    def _stop(self, victim: Victim, now: float) -> Request:
        request = self.requests[victim.call.key]
        self.core.preempt(victim.call, now, victim.reason)
        self.running.remove(request)
        self._preempt_request(request, now, self.requires_kv_delivery)
        return request

    def _sort_running(self) -> None:
        """Best first, so that the one whom vLLM stops for want of KV blocks is the last.

        In any other place it would cost those behind it their step. It matters only when blocks may
        run out before the policy runs again.

        Prefills go behind all others, as vLLM has it: a long prompt in front would take the whole
        token budget, and the others would lose their step for nothing.
        """
        self.running.sort(key=attrgetter("priority"))
        if self._inflight_prefills:
            self.running.sort(key=attrgetter("is_prefill_chunk"))

    def _dispatch_changed(self, output: SchedulerOutput, turn: bool) -> None:
        """Tell the core who joins the batch of this step and who drops out of it."""
        batch, ran = self._batch, output.num_scheduled_tokens
        joining: list[LiveCall] = []
        for new in output.scheduled_new_reqs:
            joining.append(self._join(new.req_id, ran))
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        if resumed:
            joining += [self._join(key, ran) for key in ran if key in resumed]
        # As many in the batch as run are the same ones, unless the policy has just changed them.
        all_run = len(ran) == len(batch) == len(self.running)
        if (turn or not all_run) and ran.keys() != batch.keys():
            # Running requests without work in this step, or with work again.
            for key in [key for key in batch if key not in ran]:
                self._drop(batch[key])
            joining += [self._join(key, ran) for key in ran if key not in batch]
        dropping, self._dropped = self._dropped, []
        self.core.dispatch(joining, dropping, self.now())

    def _join(self, request_id: str, ran: dict[str, int]) -> LiveCall:
        self._batch[request_id] = call = self.core.calls[request_id]
        # vLLM has counted this step's tokens as computed by now.
        found = self.requests[request_id].num_computed_tokens - ran[request_id]
        new = not call.started
        if new:
            call.cached_tokens = found
        loaded = 0
        if self.tier is not None:
            loaded = self.tier.arrived(request_id)
            self.tier.let_go(call.ticket.program, request_id)
        if new and self.kv_homes.fetches is not None:
            loaded += self.kv_homes.fetches.found(call.ticket.program, found)
        if loaded or not new:
            self._costs.back(request_id, found, loaded)
        return call

    def _drop(self, call: LiveCall) -> None:
        if self._batch.pop(call.key, None) is not None:
            self._dropped.append(call)

    def _leave(self, call: LiveCall, request: Request) -> dict[str, Any]:
        """A call leaves the core; its receipt as plain types."""
        self._drop(call)
        core, key = self.core, call.key
        service_s, wait_s = core.end(call, self.now(), _ENDINGS[request.status])
        if self.tier is not None:
            self.tier.ends(key, call.ticket.program)
        swapped_in_tokens, recomputed_tokens = self._costs.ends(key)
        receipt = call.wire(
            service_s=service_s,
            wait_s=wait_s,
            replica=core.config.replica,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.num_output_tokens,
            swapped_in_tokens=swapped_in_tokens,
            recomputed_tokens=recomputed_tokens,
        )
        call_id = call.ticket.call
        others = self._requests_of.pop(call_id) - 1
        if others or call_id in self._parts:
            receipt = merged(self._parts.pop(call_id, None), receipt)
        if others:
            self._requests_of[call_id] = others
            self._parts[call_id] = receipt
        # Delivered ones are kept as well: the front may have gone away in the meantime.
        self._receipts[call_id] = receipt
        if len(self._receipts) > _KEPT_RECEIPTS:
            self._receipts.popitem(last=False)
        return receipt


def _ticket_of(request: Request) -> Ticket:
    """The request's ticket; a request without one is a program of its own, or of its session."""
    params = request.sampling_params
    ticket = Ticket.from_flat(params.extra_args) if params is not None else None
    if ticket is not None:
        return ticket
    return Ticket(
        program=request.session_id or request.request_id,
        call=request.request_id,
        prompt_tokens=request.num_prompt_tokens,
    )


def _utility(name: str) -> Callable[..., Any]:
    """A method of the engine core that passes a call on to the scheduler's method of that name."""
    method = getattr(ProgramScheduler, name)

    @wraps(method)
    def utility(engine: EngineCore, *args: Any) -> Any:
        return method(engine.scheduler, *args)

    return utility


# vLLM looks utility calls up by name on the engine core, in whose process this module is loaded.
for _name in ("receipt", "stats", "configure", "tell"):
    setattr(EngineCore, f"autellix_{_name}", _utility(f"autellix_{_name}"))
