"""VLLM's scheduler and offloading connector with real blocks and moves, but no model.

In place of keys and values a token leaves the fingerprint of all tokens up to it in its slot. So
before a token is computed, it can be checked that what lies in the request's blocks is what the
model would have to find there: a block that was lost, swapped back wrongly or overwritten is seen,
whatever the cause.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from autellix.kernels.dispatcher import Dispatcher
from autellix.kernels.host_tier import Direction
from autellix.kernels.offload import transfer_config
from autellix.kernels.offload_manager import ProgramManager
from autellix.kernels.offload_worker import PipelineWorker
from autellix.kernels.pipeline import Part, Pipeline
from autellix.kernels.streams import Path
from autellix.kernels.vllm_names import CanonicalKVCaches
from autellix.scheduler.tickets import Receipt, Ticket
from autellix.scheduler.vllm_adapter import RECEIPT_KEY, ProgramScheduler
from tests.kernels.adversary import Adversary

BLOCK, LENGTH = 4, 128
LAYERS = ("layer.0", "layer.1")
_PRIME = (1 << 61) - 1
# A page: BLOCK tokens of one head, keys and values of 8 bfloat16 numbers each, 32 bytes a token.
_ATTENTION = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
_WORDS = _ATTENTION.page_size_bytes // BLOCK // 8


class Engine:
    """An engine core and its worker in one thread.

    Args:
        folder: a model folder, of :func:`write_tiny_llama` with as many layers as ``LAYERS``.
        blocks: KV blocks on the device.
        host_blocks: KV blocks the host pool holds; 0 turns the tier off.
        seed: of what is left to chance.
        device: moves go through a pipeline on this device; None moves them at once.
        policy: settings of our own scheduler, which then stands in place of vLLM's.
    """

    def __init__(
        self,
        folder: FilePath,
        *,
        blocks: int = 24,
        host_blocks: int = 32,
        seats: int = 3,
        seed: int = 0,
        device: Adversary | None = None,
        policy: dict[str, Any] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.device = device
        page = _ATTENTION.page_size_bytes
        # vLLM takes whole memory pages a host block.
        host_bytes = host_blocks * max(4096, page * len(LAYERS))
        transfer = transfer_config(host_bytes) if host_blocks else None
        config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=seats,
                max_num_batched_tokens=48,
                max_model_len=LENGTH,
                is_encoder_decoder=False,
                policy="priority",
                enable_chunked_prefill=True,
                watermark=0.0,
            ),
            model_config=ModelConfig(
                model=str(folder), dtype="bfloat16", max_model_len=LENGTH, skip_tokenizer_init=True
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=transfer,
            additional_config={} if policy is None else {"autellix": policy},
        )
        config.cache_config.num_gpu_blocks = blocks
        size = blocks * page
        kv = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[
                KVCacheTensor(
                    size=size * len(LAYERS), layers=[name], layer_stride=size, block_stride=page
                )
                for name in LAYERS
            ],
            kv_cache_groups=[KVCacheGroupSpec(list(LAYERS), _ATTENTION)],
        )
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.scheduler = (Scheduler if policy is None else ProgramScheduler)(
            vllm_config=config,
            kv_cache_config=kv,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=True,
        )
        self.words = {
            name: torch.zeros((blocks, BLOCK, _WORDS), dtype=torch.int64) for name in LAYERS
        }
        self.worker: OffloadingConnector | None = None
        self.tier: ProgramManager | None = None
        if host_blocks:
            with set_current_vllm_config(config):
                self.worker = OffloadingConnector(config, KVConnectorRole.WORKER, kv)
            if device is not None:
                side: Any = self.worker.connector_worker
                side.spec.get_worker = lambda caches: _pipelined(device, caches, host_blocks)
            self.worker.register_kv_caches(
                {
                    name: words.view(torch.bfloat16).view(blocks, 1, BLOCK, _WORDS * 4)
                    for name, words in self.words.items()
                }
            )
            connector: Any = self.scheduler.connector
            self.tier = connector.connector_scheduler.manager
        self.live: dict[str, Request] = {}
        self.blocks_of: dict[str, list[int]] = {}
        self.hidden: list[Request] = []
        # vLLM keeps one block for itself, and refuses models whose longest request does not fit.
        self.longest = min(LENGTH, (blocks - 1) * BLOCK)
        self.loaded_tokens = 0
        self.computed_tokens = 0
        self.preemptions = 0
        self.finished: dict[str, list[int]] = {}
        self.receipts: dict[str, Receipt] = {}

    def add(
        self, name: str, prompt: list[int], tokens: int, *, program: str = "", priority: int = 0
    ) -> None:
        """A request arrives; under our own scheduler with a ticket."""
        ticket: dict[str, Any] | None = None
        if isinstance(self.scheduler, ProgramScheduler):
            ticket = Ticket(program=program or name, call=name, attained_s=priority).to_flat()
        elif self.tier is not None and program:
            self.tier.name_program(name, program)
        request = Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=ticket),
            pooling_params=None,
            priority=priority,
            arrival_time=float(len(self.live)),
            block_hasher=self.hasher,
        )
        self.live[name] = request
        self.scheduler.add_request(request)

    def preempt(self) -> None:
        """A running request loses its seat, in the next step; it cannot come back in that step."""
        running = [r for r in self.scheduler.running if r not in self.hidden]
        if not running:
            return
        victim = self.random.choice(running)
        self.scheduler.running.remove(victim)
        self.scheduler._preempt_request(victim, 0.0)
        self.scheduler.waiting.remove_request(victim)
        self.hidden.append(victim)
        self.preemptions += 1

    def abort(self) -> None:
        """A request ends before its time."""
        if self.live:
            name = self.random.choice(sorted(self.live))
            request = self.live.pop(name)
            if request in self.hidden:
                self.hidden.remove(request)
                self.scheduler.waiting.prepend_request(request)
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """One engine step."""
        try:
            output = self.scheduler.schedule()
        finally:
            for request in self.hidden:
                self.scheduler.waiting.prepend_request(request)
            self.hidden.clear()
        for new in output.scheduled_new_reqs:
            self.blocks_of[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if name in cached.resumed_req_ids:
                self.blocks_of[name] = []
            self.blocks_of[name] += [] if ids is None else list(ids[0])
        self._before_the_model(output)
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        tokens = {
            name: self._compute(name, starts[name], count)
            for name, count in output.num_scheduled_tokens.items()
        }
        self._take(output, tokens, self._after_the_model())

    def run(self, steps: int = 400) -> None:
        """Until all requests have ended."""
        for _ in range(steps):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError(f"requests do not end: {sorted(self.live)}")

    def check(self) -> None:
        """The books agree."""
        if self.tier is not None:
            self.tier.check()

    def _before_the_model(self, output: Any) -> None:
        if self.worker is None:
            return
        self.worker.handle_preemptions(output.kv_connector_metadata)
        self.worker.bind_connector_metadata(output.kv_connector_metadata)
        self.worker.start_load_kv(None)  # type: ignore[arg-type]

    def _compute(self, name: str, start: int, count: int) -> int | None:
        """The model's step for one request; the next token, if it has come to that."""
        values = fingerprints(self.live[name].all_token_ids)
        blocks = torch.tensor(self.blocks_of[name], dtype=torch.int64)
        end = start + count
        rows = blocks[torch.arange(end) // BLOCK] * BLOCK + torch.arange(end) % BLOCK
        wanted = torch.tensor(values[:end])[:, None]

        def forward() -> None:
            for words in self.words.values():
                slots = words.view(-1, _WORDS)
                found = slots[rows[:start]]
                assert (found == wanted[:start]).all(), f"{name} finds another's KV"
                slots[rows[start:]] = wanted[start:]

        if self.device is None:
            forward()
        else:
            self.device.run_model(forward)
        self.computed_tokens += count
        return None if end < len(values) else next_token(values[-1])

    def _after_the_model(self) -> KVConnectorOutput | None:
        if self.worker is None:
            return None
        if self.device is not None:
            self.device.run_some(self.random.randint(0, 12))
        self.worker.wait_for_save()
        _, arrived = self.worker.get_finished(set())
        meta = self.worker.build_connector_worker_meta()
        self.worker.clear_connector_metadata()
        if meta is not None and self.tier is not None:
            if not isinstance(self.scheduler, ProgramScheduler):
                self.tier.observe(meta)
            self.loaded_tokens += meta.transfer_stats.load.bytes // (_WORDS * 8) // len(LAYERS)
        return KVConnectorOutput(finished_recving=arrived or None, kv_connector_worker_meta=meta)

    def _take(self, output: Any, tokens: dict[str, int | None], moved: Any) -> None:
        names = list(tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[] if tokens[n] is None else [tokens[n]] for n in names],  # type: ignore[list-item]
            kv_connector_output=moved,
        )
        for batch in self.scheduler.update_from_output(output, result).values():
            for one in batch.outputs:
                last = one.kv_transfer_params or {}
                if one.finish_reason is not None and RECEIPT_KEY in last:
                    receipt = Receipt.from_wire(last[RECEIPT_KEY])
                    self.receipts[receipt.call] = receipt
                if one.finish_reason is not None and one.request_id in self.live:
                    request = self.live.pop(one.request_id)
                    self.finished[one.request_id] = list(request.output_token_ids)


def _pipelined(device: Adversary, caches: CanonicalKVCaches, host_blocks: int) -> PipelineWorker:
    row = sum(tensor.page_size_bytes for tensor in caches.tensors)
    host = torch.zeros((host_blocks, row), dtype=torch.uint8)
    pipeline = Pipeline(device, host, slots=2, slot_bytes=2 * row)
    return PipelineWorker(caches, pipeline, AnyWay(device.random, pipeline), 1)


class AnyWay(Dispatcher):
    """Chooses at random."""

    def __init__(self, draw: random.Random, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._draw = draw

    def choose(self, direction: Direction, parts: Sequence[Part]) -> Path:
        return self._draw.choice([Path.STAGED, Path.BATCH, Path.MAPPED])


def next_token(fingerprint: int) -> int:
    """The token that the model says after a context."""
    return 100 + fingerprint % 1000


def fingerprints(tokens: Any) -> list[int]:
    """Of each token with all before it."""
    value, found = 7, []
    for token in tokens:
        value = (value * 1000003 + token + 1) % _PRIME
        found.append(value)
    return found
