"""One engine with stock vLLM's scheduler and a small KV cache, whose evicted blocks the host keeps.

Prints one line of JSON: what test_tier_on_engine.py compares.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
}

BLOCK, BLOCKS = 32, 24


def prices(seed: int) -> str:
    """A prompt whose answer lies at its beginning: it needs the first blocks' keys and values."""
    draw = random.Random(seed)
    words = "apple bread candle drum egg flute glass hammer iron jar kettle lamp mirror needle oven"
    lines = [f"One {word} costs {draw.randint(100, 999)} coins." for word in words.split()]
    return "\n".join([*lines, *lines, *lines[1:8], "One apple"])


class Observer:
    """What the connector was asked, and what moved."""

    def __init__(self, scheduler: Any) -> None:
        self.connector = scheduler.connector
        self.tier = self.connector.connector_scheduler.manager
        self.loaded = 0
        self.bytes = {"store": 0, "load": 0}
        self._update = self.connector.update_connector_output
        self.connector.update_connector_output = self.update

    def update(self, output: Any) -> None:
        if (meta := output.kv_connector_worker_meta) is not None:
            self.tier.observe(meta)
            self.bytes["store"] += meta.transfer_stats.store.bytes
            self.bytes["load"] += meta.transfer_stats.load.bytes
        self._update(output)


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from autellix.kernels.offload import transfer_config
    from autellix.runtime.models import resolve_model

    llm = LLM(
        model=str(resolve_model(None)),
        dtype="bfloat16",
        max_model_len=704,
        enforce_eager=True,
        max_num_seqs=2,
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor",
        kv_transfer_config=transfer_config(256 * 2**20),
    )
    sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    core: Any = llm.llm_engine.engine_core
    seen = Observer(core.engine_core.scheduler)

    def say(seed: int, program: str) -> dict[str, Any]:
        params = sampling.clone()
        params.extra_args = {"kv_transfer_params": {"program": program}}
        (output,) = llm.generate(prices(seed), params, use_tqdm=False)
        return {
            "tokens": list(output.outputs[0].token_ids),
            "text": output.outputs[0].text,
            "cached": output.num_cached_tokens or 0,
            "prompt": len(output.prompt_token_ids or ()),
        }

    report: dict[str, Any] = {"cold": say(0, "a"), "device hit": say(0, "a")}
    others = [say(1, "b"), say(2, "c")]  # together larger than the cache: "a" is overwritten
    stored = seen.tier.stored("a")
    before = seen.bytes["load"]
    report["host load"] = say(0, "a")
    report["loaded bytes"] = seen.bytes["load"] - before
    others += [say(1, "b"), say(2, "c")]
    worker: Any = get_kv_transfer_group()
    worker.connector_worker.worker.rows.fill_(0)
    report["spoilt"] = say(0, "a")
    seen.tier.check()
    report |= {
        "stored": {"tokens": stored.tokens, "bytes": stored.size_bytes},
        "moved": seen.bytes,
        "bytes/s": {way: seen.tier.bandwidth.bytes_per_s(way) for way in ("store", "load")},
        "dropped bytes": seen.tier.drop("a"),
        "left": seen.tier.stored("a").chunks,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
