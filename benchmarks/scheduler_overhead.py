"""What program-aware scheduling costs per engine step, against vLLM's own ``schedule()``.

No model runs: vLLM's scheduler makes the steps, tokens come from here, and both sides are timed in
the same steps. "Ours" is all time in the methods of :class:`ProgramScheduler` that is not in the
methods of vLLM they extend: arrival, policy, choice of victims, changes of the batch, charging,
receipts. What vLLM does to stop our victims is given beside it, and so is what it takes when a
program is told to be over, which happens once a program, not at a step. The stopwatches' own time
is measured under the same load, where it is more than in a loop, and taken off. Every call that
finishes is replaced by a new one at once, so that arrivals, prefills, endings and preemptions are
part of the measurement.

Steps are summed up in blocks that hold many runs of the policy, and a repeat's figures are those of
its median block: on a shared machine other processes' turns would else be counted as ours.

    python -m benchmarks.scheduler_overhead --json benchmarks/results/scheduler_overhead.json
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, VllmConfig
from vllm.config import SchedulerConfig as VllmSchedulerConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.service_history import ServiceHistory
from autellix.scheduler.tickets import Ticket
from autellix.scheduler.vllm_adapter import ProgramScheduler
from benchmarks.result_file import result_document, write_result
from benchmarks.tiny_llama import write_tiny_llama

BLOCK = 16
SEATS = 256
PROMPT_TOKENS = 256
LEAST_OUTPUT, MOST_OUTPUT = 64, 256
MEAN_ATTAINED_STEPS = 500
STEP_S = 0.015
GOAL = 0.05
COST_BLOCKS = 9
BLOCK_STEPS = {16: 200, 256: 40, 1000: 40}
TIMED = ("add_request", "schedule", "update_from_output", "_free_request", "_preempt_request")


@dataclass
class Stopwatch:
    """Seconds spent in a method, calls of it."""

    total_s: float = 0.0
    calls: int = 0


@dataclass(frozen=True, kw_only=True)
class Block:
    """Means over the steps of one block, microseconds; of ``forget_us``, over ended programs."""

    ours_us: float
    vllm_schedule_us: float
    vllm_preempt_us: float
    by_method_us: dict[str, float]
    forget_us: float

    @property
    def share(self) -> float:
        """Ours as a part of vLLM's."""
        return self.ours_us / self.vllm_schedule_us


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The median block of one repeat, and what happened in all of them."""

    live_calls: int
    policy: str
    steps: int
    ours_us: float
    vllm_schedule_us: float
    vllm_preempt_us: float
    share: float
    ours_by_method_us: dict[str, float]
    forget_us: float
    finished: int
    preemptions: int
    promotions: int
    demotions: int


def timed(method: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    """The method, with its time added to the watch."""
    clock = time.perf_counter

    def run(*args: Any, **kwargs: Any) -> Any:
        began = clock()
        try:
            return method(*args, **kwargs)
        finally:
            watch.total_s += clock() - began
            watch.calls += 1

    return run


def watched_scheduler(
    *, ours: bool = True
) -> tuple[type, dict[str, Stopwatch], dict[str, Stopwatch]]:
    """A ProgramScheduler whose methods are timed, and so are those of vLLM that they extend.

    Args:
        ours: whether our part lies between the two stopwatches; else there is nothing in between.
    """
    inner = {name: Stopwatch() for name in TIMED}
    outer = {name: Stopwatch() for name in TIMED}
    vllms = {name: timed(getattr(AsyncScheduler, name), inner[name]) for name in TIMED}
    if not ours:
        vllms = {name: timed(vllms[name], outer[name]) for name in TIMED}
    below = type("TimedAsyncScheduler", (AsyncScheduler,), vllms)
    # With both as bases, super() in ProgramScheduler finds the timed methods.
    both = type("TimedProgramScheduler", (ProgramScheduler, below), {})
    for name in TIMED if ours else ():
        setattr(both, name, timed(getattr(ProgramScheduler, name), outer[name]))
    return both, outer, inner


def stopwatch_costs_s(folder: str, policy: str, live: int) -> dict[str, float]:
    """What one stopwatch inside another adds to a call of each method under that load, seconds."""
    cls, outer, inner = watched_scheduler(ours=False)
    load = warm_load(make_scheduler(cls, folder, policy), live, seed=0)
    costs: dict[str, list[float]] = {name: [] for name in TIMED}
    for _ in range(COST_BLOCKS):
        for watch in (*outer.values(), *inner.values()):
            watch.total_s, watch.calls = 0.0, 0
        for _ in range(BLOCK_STEPS[live]):
            load.step()
        for name in TIMED:
            if calls := inner[name].calls:
                costs[name].append((outer[name].total_s - inner[name].total_s) / calls)
    gc.unfreeze()
    return {name: median(some) if some else 0.0 for name, some in costs.items()}


class Load:
    """Keeps a number of calls alive in a scheduler without a model."""

    def __init__(self, scheduler: Any, live: int, seed: int) -> None:
        self.scheduler = scheduler
        self.live = live
        self.random = random.Random(seed)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.made = 0
        self.time = 0.0
        # A step takes as long as on a real engine, or waiting would count for far too much.
        scheduler.now = lambda: self.time
        self.finished = 0
        self.history = ServiceHistory() if scheduler.core.policy.learns else None
        self.forgetting = Stopwatch()
        self.forget = timed(scheduler.autellix_forget, self.forgetting)

    def add(self) -> None:
        """One more call, of a program that has had some service and some wait."""
        number = self.made
        self.made += 1
        attained_steps = self.random.expovariate(1 / MEAN_ATTAINED_STEPS)
        attained_s = attained_steps * STEP_S
        history = self.history
        ticket = Ticket(
            program=f"p{number}",
            call=f"c{number}",
            attained_s=attained_s,
            program_service_s=attained_s,
            program_wait_s=attained_s * self.random.random(),
            prompt_tokens=PROMPT_TOKENS,
            program_number=number,
            course=() if history is None else history.course("", attained_steps, None),
        )
        prompt = [self.random.randrange(32000) for _ in range(PROMPT_TOKENS)]
        self.scheduler.add_request(
            Request(
                request_id=f"c{number}-0a1b2c3d",
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(
                    max_tokens=self.random.randint(LEAST_OUTPUT, MOST_OUTPUT),
                    ignore_eos=True,
                    extra_args=ticket.to_flat(),
                ),
                pooling_params=None,
                block_hasher=self.hasher,
            )
        )

    def step(self) -> None:
        """One engine step; a new call for each that ended."""
        scheduler = self.scheduler
        output = scheduler.schedule()
        self.time += STEP_S
        keys = list(output.num_scheduled_tokens)
        requests = scheduler.requests
        result = ModelRunnerOutput(
            req_ids=keys,
            req_id_to_index={key: i for i, key in enumerate(keys)},
            sampled_token_ids=[[] if requests[key].is_prefill_chunk else [7] for key in keys],
        )
        for batch in scheduler.update_from_output(output, result).values():
            for one in batch.outputs:
                if one.finish_reason is not None:
                    self.forget(one.kv_transfer_params["autellix"]["program"])
                    self.finished += 1
                    self.add()


def make_scheduler(cls: type, folder: str, policy: str) -> Any:
    """A scheduler of that class with room for all calls that can be seated."""
    model = ModelConfig(
        model=folder, dtype="bfloat16", max_model_len=1024, skip_tokenizer_init=True
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    config = VllmConfig(
        scheduler_config=VllmSchedulerConfig(
            max_num_seqs=SEATS,
            max_num_batched_tokens=2048,
            max_model_len=1024,
            is_encoder_decoder=False,
            policy="priority",
            enable_chunked_prefill=True,
        ),
        model_config=model,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        additional_config={"autellix": SchedulerConfig(policy=policy).to_dict()},
    )
    cache.num_gpu_blocks = blocks = SEATS * 40
    attention = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    )
    init_none_hash(sha256)
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )


def warm_load(scheduler: Any, live: int, seed: int) -> Load:
    """So many calls in a scheduler, run until every seat has been taken anew."""
    load = Load(scheduler, live, seed)
    for _ in range(live):
        load.add()
    for _ in range(MOST_OUTPUT + 50):
        load.step()
    gc.collect()
    gc.freeze()
    return load


def measure(
    folder: str, policy: str, live: int, blocks: int, seed: int, costs_s: dict[str, float]
) -> Measurement:
    """One repeat: time the blocks under a load that has warmed up."""
    cls, outer, inner = watched_scheduler()
    load = warm_load(make_scheduler(cls, folder, policy), live, seed)
    before = counters(load)
    steps = BLOCK_STEPS[live]
    timed_blocks = [time_block(load, outer, inner, steps, costs_s) for _ in range(blocks)]
    middle = sorted(timed_blocks, key=lambda block: block.share)[blocks // 2]
    finished, preemptions, promotions, demotions = (
        now - then for now, then in zip(counters(load), before, strict=True)
    )
    gc.unfreeze()
    return Measurement(
        live_calls=live,
        policy=policy,
        steps=steps * blocks,
        ours_us=round(middle.ours_us, 2),
        vllm_schedule_us=round(middle.vllm_schedule_us, 2),
        vllm_preempt_us=round(middle.vllm_preempt_us, 2),
        share=round(middle.share, 4),
        ours_by_method_us={name: round(us, 2) for name, us in middle.by_method_us.items()},
        forget_us=round(median(block.forget_us for block in timed_blocks), 2),
        finished=finished,
        preemptions=preemptions,
        promotions=promotions,
        demotions=demotions,
    )


def counters(load: Load) -> tuple[int, int, int, int]:
    """Calls finished; preemptions, promotions and demotions, all since the start."""
    core = load.scheduler.core
    return load.finished, core.preemptions, core.promotions, core.demotions


def time_block(
    load: Load,
    outer: dict[str, Stopwatch],
    inner: dict[str, Stopwatch],
    steps: int,
    costs_s: dict[str, float],
) -> Block:
    """Run some steps and read the stopwatches."""
    for watch in (*outer.values(), *inner.values(), load.forgetting):
        watch.total_s, watch.calls = 0.0, 0
    for _ in range(steps):
        load.step()
    by_method = {
        name: outer[name].total_s - inner[name].total_s - costs_s[name] * inner[name].calls
        for name in TIMED
    }
    # Victims are stopped from our schedule(), before vLLM's begins.
    by_method["schedule"] -= outer["_preempt_request"].total_s
    scale = 1e6 / steps
    return Block(
        ours_us=sum(by_method.values()) * scale,
        vllm_schedule_us=inner["schedule"].total_s * scale,
        vllm_preempt_us=inner["_preempt_request"].total_s * scale,
        by_method_us={name: value * scale for name, value in by_method.items()},
        forget_us=1e6 * load.forgetting.total_s / max(load.forgetting.calls, 1),
    )


def main() -> None:
    """Measure, print a table and write the raw figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, help="file for the raw figures")
    parser.add_argument("--policies", nargs="+", default=["plas", "default"])
    parser.add_argument("--live", nargs="+", type=int, default=[*BLOCK_STEPS])
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    runs: list[Measurement] = []
    summary = []
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_llama(Path(folder))
        for policy in args.policies:
            for live in args.live:
                costs_s = stopwatch_costs_s(folder, policy, live)
                repeats = [
                    measure(folder, policy, live, args.blocks, seed, costs_s)
                    for seed in range(args.repeats)
                ]
                runs += repeats
                row = {
                    "policy": policy,
                    "live_calls": live,
                    "ours_us": median(r.ours_us for r in repeats),
                    "vllm_schedule_us": median(r.vllm_schedule_us for r in repeats),
                    "vllm_preempt_us": median(r.vllm_preempt_us for r in repeats),
                    "share": median(r.share for r in repeats),
                    "forget_us": median(r.forget_us for r in repeats),
                    "stopwatch_us": {n: round(1e6 * cost, 3) for n, cost in costs_s.items()},
                }
                row["goal_met"] = row["share"] <= GOAL
                summary.append(row)
                print(
                    f"{policy:8} {live:5} live: ours {row['ours_us']:7.2f} us, vLLM schedule() "
                    f"{row['vllm_schedule_us']:8.2f} us, {row['share']:.1%}; "
                    f"a program's end {row['forget_us']:.1f} us",
                    flush=True,
                )
    if args.json:
        measured = [asdict(run) for run in runs]
        write_result(args.json, result_document(goal=GOAL, summary=summary, runs=measured))


if __name__ == "__main__":
    main()
