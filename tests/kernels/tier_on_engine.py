"""One engine with stock vLLM's scheduler and a small KV cache, whose evicted blocks the host keeps.

Prints one line of JSON: what test_tier_on_engine.py compares.
"""

from __future__ import annotations

import json
import os

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
}

BLOCK, BLOCKS, PROMPT = 32, 24, 500


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    from autellix.kernels.offload import transfer_config
    from autellix.runtime.models import resolve_model

    llm = LLM(
        model=str(resolve_model(None)),
        dtype="bfloat16",
        max_model_len=640,
        enforce_eager=True,
        max_num_seqs=2,
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        seed=0,
        kv_transfer_config=KVTransferConfig(**transfer_config(256 * 2**20)),
    )
    prompts = [[1000 + (i * 7919 + j * 104729) % 40000 for j in range(PROMPT)] for i in range(3)]
    sampling = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    core = llm.llm_engine.engine_core.engine_core
    connector = core.scheduler.connector
    tier = connector.connector_scheduler.manager
    loaded: list[int] = []
    matched = connector.get_num_new_matched_tokens

    def spy(request, computed):
        found = matched(request, computed)
        loaded.append(found[0] or 0)
        return found

    connector.get_num_new_matched_tokens = spy
    moved = {"store": 0, "load": 0}
    update = connector.update_connector_output

    def observe(output):
        if (meta := output.kv_connector_worker_meta) is not None:
            tier.observe(meta)
            moved["store"] += meta.transfer_stats.store.bytes
            moved["load"] += meta.transfer_stats.load.bytes
        update(output)

    connector.update_connector_output = observe

    def say(i: int) -> tuple[list[int], int]:
        (output,) = llm.generate({"prompt_token_ids": prompts[i]}, sampling, use_tqdm=False)
        return list(output.outputs[0].token_ids), output.num_cached_tokens or 0

    _, cold = say(0)
    hit, hit_cached = say(0)
    for i in (1, 2):  # 17 blocks each in a cache of 23: the first prompt's are overwritten
        say(i)
    loaded.clear()
    again, again_cached = say(0)
    tier.check()
    print(
        json.dumps(
            {
                "device hit": hit,
                "after eviction": again,
                "cold hits": cold,
                "cached on device": hit_cached,
                "cached after eviction": again_cached,
                "full blocks": PROMPT // BLOCK * BLOCK,
                "loaded": max(loaded),
                "moved": moved,
                "load bytes/s": tier.bandwidth.bytes_per_s("load"),
            }
        )
    )


if __name__ == "__main__":
    main()
