"""Random lives of programs on the real engine with a small model: what every call said.

    python lives_on_engine.py play LIVES OUT.json       the lives, with the tier
    python lives_on_engine.py spoil LIVES OUT.json      the same, but what the tier keeps is spoilt
    python lives_on_engine.py alone OUT.json SAID.json  their calls again, with nothing kept at all

A life is as in ``test_tier_fuzz``: calls, preemptions, calls given up, tools that begin and end,
programs that end and caches that are reset, between any two steps.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tiny_llama import write_tiny_llama

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
}

BLOCK, BLOCKS, LONGEST, WORDS = 32, 18, 384, 1000
ACTS = {
    "step": 16.0,
    "call": 5.0,
    "preempt": 2.0,
    "abort": 0.5,
    "away": 1.0,
    "returns": 3.0,
    "forget": 0.3,
    "reset": 0.5,
}


def write_model(folder: Path, *, hidden: int = 64, layers: int = 2) -> str:
    """A small Llama with weights so large that what it says depends on all of its context."""
    import torch
    from safetensors.torch import save_file

    write_tiny_llama(folder, layers=layers)
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": WORDS, "torch_dtype": "float32", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    noise = torch.Generator().manual_seed(7)

    def weight(rows: int, columns: int = hidden) -> torch.Tensor:
        return torch.randn((rows, columns), generator=noise) * (2.0 / columns**0.5)

    weights = {
        "model.embed_tokens.weight": weight(WORDS),
        "lm_head.weight": weight(WORDS),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for part in "qkvo":
            weights[f"{name}.self_attn.{part}_proj.weight"] = weight(hidden)
        for part in ("gate", "up"):
            weights[f"{name}.mlp.{part}_proj.weight"] = weight(2 * hidden)
        weights[f"{name}.mlp.down_proj.weight"] = weight(hidden, 2 * hidden)
        for part in ("input", "post_attention"):
            weights[f"{name}.{part}_layernorm.weight"] = torch.ones(hidden)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def engine(folder: str, **options: Any) -> Any:
    from vllm import LLM

    return LLM(
        model=write_model(Path(folder)),
        skip_tokenizer_init=True,
        # Of single precision, so that chunks of other sizes do not flip near-ties.
        dtype="float32",
        max_model_len=LONGEST,
        enforce_eager=True,
        max_num_seqs=3,
        block_size=BLOCK,
        distributed_executor_backend="vllm.v1.executor.uniproc_executor.UniProcExecutor",
        **options,
    )


def sampling(tokens: int, **extra: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False, **extra
    )


class Lives:
    """All lives, one after the other on one engine, whose caches are not emptied between them."""

    def __init__(self, llm: Any) -> None:
        self.engine = llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.spoil: Callable[[], Any] = lambda: None
        self.hidden: list[Any] = []
        self.under_way: dict[str, tuple[str, list[int], int]] = {}
        self.said: list[dict[str, Any]] = []
        self.happened = {"preempted": 0, "swapped in tokens": 0}

    def play(self, seed: int, acts: int = 60) -> None:
        self.draw = random.Random(seed)
        shared = [self.draw.randrange(WORDS) for _ in range(self.draw.randint(0, 4) * BLOCK)]
        self.contexts = {
            f"{seed}.{i}": [*shared, *(self.draw.randrange(WORDS) for _ in range(20))]
            for i in range(self.draw.randint(1, 4))
        }
        for _ in range(acts):
            self.act(self.draw.choice(sorted(self.contexts)))
        while self.engine.has_unfinished_requests() or self.hidden:
            self.step()
        for program in self.contexts:
            self.scheduler.autellix_forget(program)
        self.scheduler.tier.tier.check()

    def act(self, program: str) -> None:
        match self.draw.choices(list(ACTS), list(ACTS.values()))[0]:
            case "step":
                self.step()
            case "call":
                self.call(program)
            case "preempt":
                self.preempt()
            case "abort":
                if self.under_way:
                    call = self.draw.choice(sorted(self.under_way))
                    self.show_hidden()
                    self.engine.abort_request([call])
                    del self.under_way[call]
            case "away":
                self.scheduler.autellix_away(program, sorted(self.draw.random() for _ in range(9)))
            case "returns":
                self.scheduler.autellix_returns(program)
            case "forget":
                self.scheduler.autellix_forget(program)
            case "reset":
                self.scheduler.kv_cache_manager.reset_prefix_cache()
                self.spoil()

    def call(self, program: str) -> None:
        if any(owner == program for owner, _, _ in self.under_way.values()):
            return
        from autellix.scheduler.tickets import Ticket

        context = self.contexts[program]
        context += [self.draw.randrange(WORDS) for _ in range(self.draw.randint(1, 40))]
        tokens = self.draw.randint(1, 16)
        if len(context) + tokens >= LONGEST - 1:
            del context[30:]
        call = f"{program}/{self.draw.getrandbits(40)}"
        ticket = Ticket(program=program, call=call, attained_s=self.draw.random())
        self.engine.add_request(
            call,
            {"prompt_token_ids": list(context)},
            sampling(tokens, extra_args=ticket.to_flat()),
        )
        self.under_way[call] = (program, list(context), tokens)

    def preempt(self) -> None:
        """A running call loses its seat with the next step, and cannot have it back in that one."""
        running = [request for request in self.scheduler.running if request not in self.hidden]
        if running:
            victim = self.draw.choice(running)
            self.scheduler.running.remove(victim)
            self.scheduler._preempt_request(victim, self.scheduler.now())
            self.scheduler.waiting.remove_request(victim)
            self.hidden.append(victim)
            self.happened["preempted"] += 1

    def show_hidden(self) -> None:
        for request in self.hidden:
            self.scheduler.waiting.prepend_request(request)
        self.hidden.clear()

    def step(self) -> None:
        outputs = self.engine.step()
        self.show_hidden()
        for output in outputs:
            if not output.finished or output.request_id not in self.under_way:
                continue
            program, prompt, tokens = self.under_way.pop(output.request_id)
            said = list(output.outputs[0].token_ids)
            assert len(said) == tokens
            receipt = (output.kv_transfer_params or {})["autellix"]
            self.happened["swapped in tokens"] += receipt["swapped_in_tokens"]
            self.contexts[program] = [*prompt, *said]
            self.said.append({"prompt": prompt, "said": said})


def play(lives: int, out: Path, *, spoil: bool = False) -> None:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from autellix.kernels.offload import transfer_config

    with tempfile.TemporaryDirectory() as folder:
        played = Lives(
            engine(
                folder,
                num_gpu_blocks_override=BLOCKS,
                kv_transfer_config=transfer_config(64 * 2**20),
                scheduler_cls="autellix.scheduler.vllm_adapter.ProgramScheduler",
                scheduling_policy="priority",
                async_scheduling=False,
                additional_config={
                    "autellix": {"policy": "plas", "first_quantum_s": 1e9, "admission": False}
                },
            )
        )
        worker: Any = get_kv_transfer_group()
        if spoil:
            played.spoil = lambda: worker.connector_worker.worker.rows.random_(256)
        for seed in range(lives):
            played.play(seed)
    fetches = played.scheduler.kv_homes.fetches
    happened = {**played.happened, "fetched": fetches.begun, "fetches found": fetches.used}
    out.write_text(json.dumps({"happened": happened, "calls": played.said}))


def alone(calls: Path, out: Path) -> None:
    asked = json.loads(calls.read_text())["calls"]
    with tempfile.TemporaryDirectory() as folder:
        llm = engine(folder, enable_prefix_caching=False)
        outputs = llm.generate(
            [{"prompt_token_ids": call["prompt"]} for call in asked],
            [sampling(len(call["said"])) for call in asked],
            use_tqdm=False,
        )
    out.write_text(json.dumps([list(output.outputs[0].token_ids) for output in outputs]))


if __name__ == "__main__":
    if sys.argv[1] in ("play", "spoil"):
        play(int(sys.argv[2]), Path(sys.argv[3]), spoil=sys.argv[1] == "spoil")
    else:
        alone(Path(sys.argv[2]), Path(sys.argv[3]))
