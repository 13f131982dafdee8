"""One simulated replica: continuous batching in virtual time, driven by the scheduling core.

What the vLLM adapter is to vLLM, this is to a modelled engine. One step, in order:

1. Calls that came in meanwhile enter the core.
2. At every N-th step the policy runs; victims lose their seats and sit out this step.
3. Calls that generate write one token each. Where KV blocks are lacking for that, the worst-placed
   running call loses its seat, and nobody is admitted in this step.
4. What is left of the token budget goes to prompts, in chunks: first to one that was begun, then to
   waiting calls, best first, while there are seats and blocks for the whole prompt; the first that
   does not fit ends the step's admissions. One whose KV is to be loaded from host memory has its
   blocks and its seat from then on, and joins the first step after its load.
5. The step takes what the model says. Calls with their whole prompt computed generate a token.

Steps that are all alike are taken at once (a *stretch*): in between nobody comes, ends, changes
level or lacks a block. Its end is computed, its duration is the closed sum of its steps', which
grow by the KV they add. A call that comes in the middle of a stretch cuts it at the next step's
end; until then nothing has been changed, so cutting costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from .config import SchedulerConfig
from .core import Scheduler
from .engine_model import EngineModel
from .live_call import LiveCall
from .sim_call import Ended, Order, ReplicaCall
from .sim_generation import Generation, StepSeries
from .sim_host import HostMemory
from .sim_kv import ReplicaKv
from .sim_room import Room


class Replica:
    """A modelled engine.

    Args:
        model: step times and capacity.
        config: the scheduler's settings.
        prefix_cache: whether KV outlives its call.
        memory: the host tier for KV; None for none.
        order: replaces the core's rank; None for the core's.
        longest_stretch: most steps taken at once; 1 makes every step one by one, for comparison.

    Attributes:
        core: the scheduler.
        kv: its KV, and what was computed and moved.
        calls: those that have not ended, by key.
        running: those of them that are in the batch.
        loading: how many have a seat and wait for their KV.
        steps: taken so far.
        stretches: how many times a step or a stretch was planned.
        busy_s: time in steps.
    """

    def __init__(
        self,
        model: EngineModel,
        config: SchedulerConfig,
        *,
        prefix_cache: bool = True,
        memory: HostMemory | None = None,
        order: Order | None = None,
        longest_stretch: int = 1 << 40,
    ) -> None:
        self.model = model
        self.core = Scheduler(config)
        self.kv = ReplicaKv(model, prefix_cache=prefix_cache, memory=memory)
        self.steps = 0
        self.stretches = 0
        self.busy_s = 0.0
        self.ends_s = math.inf
        self._interval = config.policy_interval if self.core.policy.multilevel else 0
        self._order = order
        self._longest = longest_stretch
        # Blocks that may be taken before the policy runs again.
        self._soon_wanted = config.policy_interval * model.token_budget // model.block_tokens
        self._incoming: list[ReplicaCall] = []
        self.calls: dict[str, ReplicaCall] = {}
        self._waiting: list[tuple[float, int, ReplicaCall]] = []
        self._ties = count()
        self.running: dict[ReplicaCall, None] = {}
        self._loads: list[tuple[float, int, ReplicaCall]] = []
        self._generation = Generation(model.block_tokens)
        self._prefills: list[ReplicaCall] = []
        self._chunks: list[int] = []
        self._joining: list[LiveCall] = []
        self._dropping: list[LiveCall] = []
        # The step or stretch under way.
        self._start_s = 0.0
        self._series = StepSeries()
        self._planned = 0

    # What the simulator tells.

    @property
    def loading(self) -> int:  # noqa: D102
        return len(self._loads)

    @property
    def load(self) -> int:
        """Calls that have not ended."""
        return len(self.calls) + len(self._incoming)

    def submit(self, call: ReplicaCall) -> None:
        """A call comes in; it enters the core before the next step."""
        self._incoming.append(call)

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return self._planned > 0

    def wake(self, now: float) -> bool:
        """A call has come: the next plan is made with the end of the running step, or now.

        Returns:
            Whether :attr:`ends_s` is another one now.
        """
        if self._planned:
            return self._planned > 1 and self.cut(now)
        if self.ends_s == now:
            return False
        self.ends_s = now
        return True

    def reorder(self, call: ReplicaCall) -> None:
        """The place that the order gives to a call has changed."""
        if call.live is not None and not call.live.seated and not call.live.gone:
            self._wait(call)

    def plan(self, now: float) -> float:
        """Begin the next step or stretch; when it ends, infinite where there is nothing to do.

        Where all calls wait for their KV no step begins, and the end is that of the first load.
        """
        if self._incoming:
            for call in self._incoming:
                self._enter(call, now)
            self._incoming.clear()
        if not self.calls:
            self.kv.fetch(self.kv.cache.available, now)
            self.ends_s = math.inf
            return math.inf
        hidden: list[ReplicaCall] = []
        if self._interval and self.steps % self._interval == 0:
            hidden = self._run_policy(now)
        if self.kv.fetches is not None:
            self.kv.fetches.settle(now)
        short = self._room_to_generate(now)
        self._loaded(now)
        self._chunks = self._chunks_begun()
        if not short and self._admit(now):
            self.kv.fetch(self.kv.cache.available - self._soon_wanted, now)
        for call in hidden:
            self._wait(call)
        if not self.running:
            self.ends_s = self._loads[0][0]
            return self.ends_s
        self._measure_step()
        waiting = len(self.calls) > len(self.running) + len(self._loads)
        if self._joining or (waiting and (short or hidden)):
            self._planned = 1
        else:
            self._planned = self._stretch(now, waiting)
        self.core.dispatch(self._joining, self._dropping, now)
        if self._joining:
            self._joining = []
        if self._dropping:
            self._dropping = []
        self.stretches += 1
        self._start_s = now
        self.ends_s = now + self._series.lasts(self._planned)
        return self.ends_s

    def cut(self, now: float) -> bool:
        """End the stretch under way with the step that runs now; whether it ends sooner."""
        steps = self._series.until(now - self._start_s, self._planned)
        if steps >= self._planned:
            return False
        self._planned = steps
        self.ends_s = self._start_s + self._series.lasts(steps)
        return True

    def complete(self, now: float) -> list[Ended]:
        """The step or stretch is over; the calls that ended with it."""
        steps, generation = self._planned, self._generation
        self.ends_s = math.inf
        if not steps:
            return []
        self._planned = 0
        if steps > 1:
            self.kv.cache.take(generation.blocks(self.steps + 1, steps - 1))
        generation.advance(steps)
        self.steps += steps
        self.busy_s += now - self._start_s
        self.core.charge(now, steps, self._series.growth_s)
        ended = self._prefilled(steps, now) if self._prefills else []
        for call in generation.ended(self.steps):
            ended.append(self._end(call, now))
        return ended

    def check(self) -> None:
        """Assert what must hold between any two steps."""
        self.core.check()
        self.kv.cache.check()
        model = self.model
        assert len(self.running) + len(self._loads) <= model.seats
        if self.kv.host is not None:
            self.kv.host.check()
        assert self._generation.calls == sum(c.ends_at >= 0 for c in self.running)
        tokens = sum(self.computed(c) for c in self.running if c.ends_at >= 0)
        assert self._generation.kv_tokens == tokens, "the KV of generating calls was miscounted"
        if not self.calls:
            assert self.kv.cache.available == model.blocks, "blocks were lost"

    # Calls come, get seats, lose them, and end.

    def _enter(self, call: ReplicaCall, now: float) -> None:
        call.live = self.core.arrive(call.ticket, now)
        if self.core.tenants.several:
            self._interval = self.core.config.policy_interval
        self.calls[call.live.key] = call
        self._wait(call)

    def _place(self, call: ReplicaCall) -> float:
        if self._order is not None:
            return self._order(call)
        assert call.live is not None
        return call.live.rank

    def _wait(self, call: ReplicaCall) -> None:
        call.rank = rank = self._place(call)
        heappush(self._waiting, (rank, next(self._ties), call))

    def _run_policy(self, now: float) -> list[ReplicaCall]:
        """Move ranks and stop victims; the victims, which sit out the next step."""
        core = self.core
        for live in core.tick(now):
            if not live.seated:
                self._wait(self.calls[live.key])
        if len(self.calls) == len(self.running):
            return []
        victims = []
        for victim in core.victims(Room(self), now):
            call = self.calls[victim.call.key]
            self._stop(call, now, victim.reason)
            victims.append(call)
        return victims

    def _room_to_generate(self, now: float) -> bool:
        """Take the blocks that this step's tokens need; whether calls had to stop for them."""
        cache, generation = self.kv.cache, self._generation
        short = False
        while (due := generation.blocks_at(self.steps)) > cache.available:
            worst = max(self.running, key=self._place)
            self._stop(worst, now, "KV cache full")
            self._wait(worst)
            short = True
        if due:
            cache.take(due)
        return short

    def _chunks_begun(self) -> list[int]:
        budget = self.model.token_budget - self._generation.calls
        chunks = []
        for call in self._prefills:
            chunks.append(min(call.prefill_left, budget))
            budget -= chunks[-1]
        return chunks

    def _loaded(self, now: float) -> None:
        """The calls whose KV is there join the batch."""
        loads = self._loads
        while loads and loads[0][0] <= now:
            _, _, call = heappop(loads)
            call.loading = False
            self.kv.loaded(call)
            self._join(call)

    def _join(self, call: ReplicaCall) -> None:
        assert call.live is not None
        self._prefills.append(call)
        self.running[call] = None
        self._joining.append(call.live)

    def _admit(self, now: float) -> bool:
        """Seats for waiting calls, best first, until one does not fit.

        Returns:
            Whether none was refused for want of blocks.
        """
        seats = self.model.seats - len(self.running) - len(self._loads)
        waiting = self._waiting
        if seats < 1 or not waiting:
            return True
        budget = self.model.token_budget - self._generation.calls - sum(self._chunks)
        while waiting and seats > 0 and budget > 0:
            rank, _, call = waiting[0]
            live = call.live
            assert live is not None
            # An entry is dead when its call has got a seat, left or moved since.
            if call in self.running or call.loading or live.gone or call.rank != rank:
                heappop(waiting)
                continue
            if not self.kv.admit(call, now):
                return False
            heappop(waiting)
            seats -= 1
            if call.ready_s > now:
                call.loading = True
                heappush(self._loads, (call.ready_s, next(self._ties), call))
                continue
            chunk = min(call.prefill_left, budget)
            budget -= chunk
            self._chunks.append(chunk)
            self._join(call)
        return True

    def _stop(self, call: ReplicaCall, now: float, reason: str) -> None:
        """A running call loses its seat and its blocks."""
        assert call.live is not None
        self.core.preempt(call.live, now, reason)
        self._dropping.append(call.live)
        self.kv.stop(call, self._leave_batch(call), now)

    def _end(self, call: ReplicaCall, now: float) -> Ended:
        live = call.live
        assert live is not None
        self.kv.end(call, self._leave_batch(call), now)
        self._dropping.append(live)
        del self.calls[live.key]
        live.cached_tokens = call.cached_tokens
        receipt = self.core.leave(
            live,
            now,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
        )
        if call.loaded_tokens or call.recomputed_tokens:
            receipt = replace(
                receipt,
                swapped_in_tokens=call.loaded_tokens,
                recomputed_tokens=call.recomputed_tokens,
            )
        return Ended(call, receipt)

    def _leave_batch(self, call: ReplicaCall) -> int:
        """Take the call out of the batch; the tokens of it that have been computed."""
        computed = self.computed(call)
        del self.running[call]
        if call.ends_at >= 0:
            self._generation.drop(call, self.steps)
        elif call.prefill_left:
            self._prefills.remove(call)
        return computed

    def computed(self, call: ReplicaCall) -> int:
        """Tokens whose KV the call has now."""
        if call.ends_at < 0:
            return call.computed
        return call.computed + self.steps - call.began_at

    # Steps and stretches.

    def _prefilled(self, steps: int, now: float) -> list[Ended]:
        """Prompts have got on; those that are through have given their first token."""
        ended: list[Ended] = []
        begun: list[ReplicaCall] = []
        prefills, self._prefills = self._prefills, []
        for call, chunk in zip(prefills, self._chunks, strict=True):
            call.computed += chunk * steps
            call.prefill_left -= chunk * steps
            if call.prefill_left:
                begun.append(call)
                continue
            call.generated += 1
            if call.generated == call.output_tokens:
                ended.append(self._end(call, now))
            else:
                self._generation.begin(call, self.steps)
        self._prefills = begun
        return ended

    def _measure_step(self) -> None:
        """What the coming step takes, and by how much each further one like it takes longer."""
        step, generation = self.model.step, self._generation
        prefill = sum(self._chunks)
        kv_tokens = generation.kv_tokens
        reach = reach_growth = 0.0
        for call, chunk in zip(self._prefills, self._chunks, strict=True):
            kv_tokens += call.computed
            reach += chunk * (call.computed + chunk / 2)
            reach_growth += chunk * chunk
        sequences = generation.calls + len(self._prefills)
        series = self._series
        series.first_s = step.of(prefill, sequences, kv_tokens, reach)
        series.growth_s = step.d * (generation.calls + prefill) + step.e * reach_growth

    def _stretch(self, now: float, waiting: bool) -> int:
        """How many steps like the coming one follow each other before anything else happens."""
        most = self._longest
        if self._prefills:
            left = self._prefills[0].prefill_left
            if len(self._prefills) > 1 or left <= self._chunks[0]:
                return 1
            most = min(most, (left - 1) // self._chunks[0])
        end = self._generation.next_end()
        if end is not None:
            most = min(most, end - self.steps)
        if self._loads:
            most = self._series.until(self._loads[0][0] - now, most)
        fetches = self.kv.fetches
        if fetches is not None and fetches.next_end_s < math.inf:
            most = self._series.until(fetches.next_end_s - now, most)
        if most > 1:
            most = self._generation.steps_with_room(self.steps, most, self.kv.cache.available)
        if self._interval and most > 1:
            most = self._steps_without_policy(now, most, waiting)
        return most

    def _steps_without_policy(self, now: float, most: int, waiting: bool) -> int:
        """Steps up to the first run of the policy that may have something to do."""
        interval, done = self._interval, self.steps
        quiet = self.core.quiet(now)

        def next_run(steps: int) -> int:
            return min(most, steps + -(done + steps) % interval)

        if waiting and quiet.contested:
            most = next_run(1)
        if quiet.steps < most:
            most = next_run(int(quiet.steps))
        for seconds in (quiet.service_s, quiet.time_s):
            if seconds < self._series.lasts(most):
                most = next_run(self._series.until(seconds, most))
        return most
