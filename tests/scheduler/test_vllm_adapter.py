"""The adapter in vLLM's own scheduler, without a model: tokens come from the test."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, VllmConfig
from vllm.config import SchedulerConfig as VllmSchedulerConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from autellix.errors import SettingsError, VersionError
from autellix.scheduler.tickets import Receipt, Ticket
from autellix.scheduler.vllm_adapter import ProgramScheduler
from autellix.scheduler.vllm_names import require_names
from benchmarks.tiny_llama import write_tiny_llama

BLOCK = 16
SETTINGS = {
    "policy": "plas",
    "first_quantum_s": 2.0,
    "quantum_ratio": 3.0,
    "levels": 4,
    "policy_interval": 1,
    "preempt_gap": 1,
    "min_run_steps": 0,
    "patience_steps": 0,
}


class Engine:
    """An engine core without a model: steps of one second, in a pipeline of a given depth."""

    def __init__(self, scheduler: ProgramScheduler, depth: int) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.time = 0.0
        scheduler.now = lambda: self.time
        self.receipts: dict[str, Receipt] = {}
        self.outputs: list[Any] = []
        self.ran: list[set[str]] = []
        self.in_flight: deque[tuple[Any, dict[str, bool]]] = deque()
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._prompts = 0

    def add(
        self,
        call: str,
        *,
        attained_s: float = 0.0,
        prompt: int | list[int] = 40,
        tokens: int = 12,
        request_id: str | None = None,
        ticket: bool = True,
        session: str | None = None,
        program_service_s: float = 0.0,
        program: str | None = None,
        to_come_s: float = 0.0,
    ) -> Request:
        if isinstance(prompt, int):
            self._prompts += 1
            prompt = [self._prompts * 1000 + i for i in range(prompt)]
        flat = Ticket(
            program=program or "P-" + call,
            call=call,
            attained_s=attained_s,
            program_service_s=program_service_s,
            program_number=0 if program else -1,
            to_come_s=to_come_s,
        ).to_flat()
        request = Request(
            request_id=request_id or f"{call}-0a1b2c3d",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(
                max_tokens=tokens, ignore_eos=True, extra_args=flat if ticket else None
            ),
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._hasher,
            session_id=session,
        )
        self.scheduler.add_request(request)
        return request

    def step(self) -> None:
        """Dispatch one step; take outputs once the pipeline is full or there is nothing to add."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            sampled = {
                key: not self.scheduler.requests[key].is_prefill_chunk
                for key in output.num_scheduled_tokens
            }
            self.ran.append(set(output.num_scheduled_tokens))
            assert self.scheduler._batch.keys() == self.ran[-1], "who is charged and who runs"
            self.in_flight.append((output, sampled))
            if len(self.in_flight) < self.depth and sampled:
                return
        self.take_output()

    def take_output(self) -> None:
        output, sampled = self.in_flight.popleft()
        self.time += 1.0
        keys = list(sampled)
        result = ModelRunnerOutput(
            req_ids=keys,
            req_id_to_index={key: i for i, key in enumerate(keys)},
            sampled_token_ids=[[7] if sampled[key] else [] for key in keys],
        )
        for batch in self.scheduler.update_from_output(output, result).values():
            for one in batch.outputs:
                self.outputs.append(one)
                if one.finish_reason is not None:
                    receipt = Receipt.from_wire(one.kv_transfer_params["autellix"])
                    self.receipts[receipt.call] = receipt
        self.scheduler.core.check()

    def finish(self) -> None:
        for _ in range(500):
            if not (self.scheduler.has_requests() or self.in_flight):
                return
            self.step()
        raise AssertionError("requests are left after 500 steps")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tiny-llama")
    return write_tiny_llama(folder)


@pytest.fixture
def engine(model_folder: str) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(
        *,
        seats: int = 2,
        blocks: int = 200,
        budget: int = 512,
        depth: int = 1,
        vllm_policy: Any = "priority",
        **settings: object,
    ) -> Engine:
        model = ModelConfig(
            model=model_folder, dtype="bfloat16", max_model_len=512, skip_tokenizer_init=True
        )
        scheduling = VllmSchedulerConfig(
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            max_model_len=512,
            is_encoder_decoder=False,
            policy=vllm_policy,
            enable_chunked_prefill=True,
            watermark=0.0,
        )
        cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
        config = VllmConfig(
            scheduler_config=scheduling,
            model_config=model,
            cache_config=cache,
            device_config=DeviceConfig("cpu"),
            additional_config={"autellix": {**SETTINGS, **settings}},
        )
        config.scheduler_config.async_scheduling = depth > 1
        cache.num_gpu_blocks = blocks
        attention = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
        )
        init_none_hash(sha256)
        scheduler = ProgramScheduler(
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
        made.append(Engine(scheduler, depth))
        return made[-1]

    yield make
    for one in made:
        one.scheduler.core.check()


@pytest.fixture(params=[1, 2], ids=["sync", "async"])
def depth(request: pytest.FixtureRequest) -> int:
    """How many steps are in flight."""
    return request.param


def free_blocks(one: Engine) -> int:
    return one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def test_a_finished_calls_receipt_comes_with_its_last_output(
    engine: Callable[..., Engine], depth: int
) -> None:
    one = engine(depth=depth, replica=3)
    one.add("a", tokens=5)
    one.finish()
    receipt = one.receipts["a"]
    assert receipt.program == "P-a" and receipt.replica == 3
    assert (receipt.prompt_tokens, receipt.cached_tokens, receipt.output_tokens) == (40, 0, 5)
    assert receipt.service_s == 5.0, "five steps of a second"
    assert receipt.wait_s == 0.0 and receipt.preemptions == 0
    assert all(o.kv_transfer_params is None for o in one.outputs if o.finish_reason is None)


def test_what_else_is_in_the_transfer_parameters_stays(
    engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine()
    monkeypatch.setattr(
        one.scheduler, "_connector_finished", lambda request: (False, {"remote": 1})
    )
    one.add("a", tokens=1)
    one.finish()
    assert one.outputs[-1].kv_transfer_params["remote"] == 1
    assert one.receipts["a"].output_tokens == 1


def test_cached_tokens_are_those_found_at_the_first_admission(
    engine: Callable[..., Engine],
) -> None:
    one = engine()
    prompt = list(range(40))
    one.add("a", prompt=prompt, tokens=2)
    one.finish()
    one.add("b", prompt=prompt, tokens=2)
    one.finish()
    assert one.receipts["a"].cached_tokens == 0
    assert one.receipts["b"].cached_tokens == 32, "two full blocks"


def test_the_best_placed_call_takes_the_free_seat(engine: Callable[..., Engine]) -> None:
    one = engine(seats=1)
    one.add("worse", attained_s=3.0, tokens=2)
    one.add("better", attained_s=1.0, tokens=2)
    one.finish()
    assert one.receipts["better"].wait_s == 0.0
    assert one.receipts["worse"].wait_s == 2.0


def test_of_one_programs_calls_the_critical_one_takes_the_free_seat(
    engine: Callable[..., Engine],
) -> None:
    e = engine(seats=1, program_ties=True)
    for call, to_come_s in (("slack", 1.0), ("critical", 9.0), ("some", 5.0)):
        e.add(call, program="P", to_come_s=to_come_s, tokens=1)
    e.finish()
    assert [*e.receipts] == ["critical", "some", "slack"]


def test_under_fcfs_the_older_call_takes_it(engine: Callable[..., Engine]) -> None:
    one = engine(seats=1, policy="fcfs")
    one.add("old", attained_s=3.0, tokens=2)
    one.add("new", attained_s=1.0, tokens=2)
    one.finish()
    assert (one.receipts["old"].wait_s, one.receipts["new"].wait_s) == (0.0, 2.0)
    assert one.receipts["old"].levels == (1,)


def test_a_running_call_gives_its_seat_to_a_better_one_and_resumes(
    engine: Callable[..., Engine], depth: int
) -> None:
    one = engine(seats=2, depth=depth)
    one.add("w1", attained_s=7.0, tokens=20)
    one.add("w2", attained_s=20.0, tokens=20)
    for _ in range(4):
        one.step()
    one.add("better", tokens=4)
    one.finish()
    assert one.receipts["w1"].preemptions == 0
    assert one.receipts["better"].wait_s <= 1.0
    stopped = one.receipts["w2"]
    assert stopped.preemptions == 1 and stopped.output_tokens == 20
    assert [d.reason for d in stopped.decisions if d.kind == "preemption"] == [
        "for call better at level 1: seats full"
    ]
    assert stopped.service_s + stopped.wait_s <= one.time
    assert free_blocks(one) == 199, "all blocks but vLLM's null block are free again"


def test_a_call_is_not_stopped_for_one_that_is_not_better_by_the_gap(
    engine: Callable[..., Engine],
) -> None:
    one = engine(seats=1, preempt_gap=2)
    one.add("running", attained_s=20.0, tokens=9)
    one.step()
    one.add("one level better", attained_s=7.0, tokens=2)
    one.finish()
    assert one.receipts["running"].preemptions == 0


def test_preemption_can_be_switched_off(engine: Callable[..., Engine]) -> None:
    one = engine(seats=1, preempt=False)
    one.add("running", attained_s=100.0, tokens=9)
    one.step()
    one.add("better", tokens=2)
    one.finish()
    assert one.receipts["running"].preemptions == 0
    assert one.receipts["better"].wait_s == 8.0


def test_a_running_call_gives_its_kv_blocks_to_a_better_one(
    engine: Callable[..., Engine], depth: int
) -> None:
    one = engine(seats=4, blocks=21, depth=depth)
    one.add("small", attained_s=7.0, prompt=30, tokens=15)
    one.add("large", attained_s=7.0, prompt=200, tokens=15)
    for _ in range(3):
        one.step()
    one.add("better", prompt=150, tokens=3)
    one.finish()
    assert one.receipts["large"].preemptions == 1
    assert one.receipts["small"].preemptions == 0, "stopping it would not have made room"
    assert [d.reason for d in one.receipts["large"].decisions if d.kind == "preemption"] == [
        "for call better at level 1: KV cache full"
    ]
    assert one.receipts["better"].wait_s <= 1.0


def test_nobody_is_stopped_when_even_all_of_them_would_not_make_room(
    engine: Callable[..., Engine],
) -> None:
    one = engine(seats=4, blocks=21)
    one.add("equal", prompt=200, tokens=9)
    one.add("worse", attained_s=7.0, prompt=30, tokens=9)
    one.step()
    one.add("better", prompt=250, tokens=3)
    one.step()
    one.finish()
    assert one.receipts["worse"].preemptions == 0


def test_a_shared_prefix_is_not_counted_as_need(engine: Callable[..., Engine]) -> None:
    one = engine(seats=4, blocks=16)
    prefix = list(range(160))
    one.add("holder", attained_s=7.0, prompt=[*prefix, 1, 2], tokens=20)
    one.step()
    one.add("sharer", prompt=[*prefix, 3, 4], tokens=3)
    one.finish()
    assert one.receipts["holder"].preemptions == 0
    assert one.receipts["sharer"].wait_s == 0.0


def test_vllms_own_preemption_for_want_of_blocks_is_booked(engine: Callable[..., Engine]) -> None:
    one = engine(seats=2, blocks=9, preempt=False)
    one.add("a", prompt=60, tokens=20)
    one.add("b", prompt=60, tokens=20)
    one.finish()
    assert one.receipts["a"].preemptions == 0
    stopped = one.receipts["b"]
    assert stopped.preemptions >= 1
    assert "KV cache full" in [d.reason for d in stopped.decisions]
    assert stopped.service_s + stopped.wait_s <= one.time


def test_a_call_is_demoted_while_it_runs_and_vllm_knows(engine: Callable[..., Engine]) -> None:
    one = engine(seats=1)
    a = one.add("a", tokens=10)
    for _ in range(4):
        one.step()
    b = one.add("b", attained_s=1.0, tokens=2)
    assert b.priority < a.priority
    one.finish()
    assert one.receipts["a"].levels == (1, 2, 3)


def test_a_waiting_call_that_is_promoted_gets_the_next_seat(engine: Callable[..., Engine]) -> None:
    one = engine(seats=1, preempt=False, beta=0.5)
    one.add("running", tokens=16)
    one.step()
    one.add("starved", attained_s=20.0, program_service_s=20.0, tokens=2)
    for _ in range(11):
        one.step()
    one.add("fresh", tokens=2)
    one.finish()
    promotions = [d for d in one.receipts["starved"].decisions if d.kind == "promotion"]
    assert [d.at_s for d in promotions] == [11.0], "after 0.5 * 20 seconds of wait"
    assert one.receipts["starved"].wait_s == 15.0, "the next seat: before the newer call"


def test_a_finished_calls_seat_is_taken_in_the_very_next_step(
    engine: Callable[..., Engine],
) -> None:
    one = engine(seats=1, policy_interval=50)
    one.add("first", tokens=3)
    one.add("second", tokens=3)
    one.finish()
    assert one.receipts["second"].wait_s == 3.0
    assert len(one.ran) <= 7


def test_chunked_prefill_is_charged_to_those_in_the_step_alone(
    engine: Callable[..., Engine], depth: int
) -> None:
    one = engine(seats=3, budget=64, depth=depth, preempt=False, policy_interval=8)
    one.add("p", prompt=200, tokens=2)
    one.add("q", prompt=200, tokens=2)
    one.add("r", prompt=20, tokens=30)
    one.finish()
    for call, receipt in one.receipts.items():
        steps = sum(any(key.startswith(call) for key in ran) for ran in one.ran)
        assert receipt.service_s == steps, call
        assert receipt.service_s + receipt.wait_s <= one.time


def test_an_aborted_calls_receipt_can_be_asked_for(
    engine: Callable[..., Engine], depth: int
) -> None:
    one = engine(depth=depth)
    a = one.add("a", tokens=50)
    for _ in range(5):
        one.step()
    assert one.scheduler.autellix_receipt("a") is None, "it has not ended"
    one.scheduler.finish_requests(a.request_id, RequestStatus.FINISHED_ABORTED)
    wire = one.scheduler.autellix_receipt("a")
    assert wire is not None
    receipt = Receipt.from_wire(wire)
    assert receipt.decisions[-1].reason == "abort"
    assert receipt.service_s == one.time and receipt.output_tokens > 0
    one.finish()
    assert "a" not in one.receipts
    assert one.scheduler.autellix_receipt("never seen") is None


def test_the_last_receipts_are_kept_and_older_ones_forgotten(
    engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autellix.scheduler.vllm_adapter._KEPT_RECEIPTS", 2)
    one = engine()
    for name in "abc":
        request = one.add(name)
        one.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    kept = [name for name in "abc" if one.scheduler.autellix_receipt(name)]
    assert kept == ["b", "c"]


def test_the_front_reaches_both_by_utility_calls(engine: Callable[..., Engine]) -> None:
    one = engine()
    core = object.__new__(EngineCore)
    core.scheduler = one.scheduler
    request = one.add("a")
    one.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    receipt = core.autellix_receipt("a")  # type: ignore[attr-defined]
    stats = core.autellix_stats()  # type: ignore[attr-defined]
    assert json.loads(json.dumps(receipt))["call"] == "a"
    assert json.loads(json.dumps(stats))["seats"] == 2


def test_stats_tell_where_everybody_is(engine: Callable[..., Engine]) -> None:
    one = engine(seats=1)
    one.add("a", tokens=30)
    one.step()
    one.add("b", attained_s=7.0)
    stats = one.scheduler.autellix_stats()
    assert (stats["running"], stats["waiting"]) == (1, 1)
    assert stats["running_by_level"] == [1, 0, 0, 0]
    assert stats["waiting_by_level"] == [0, 0, 1, 0]
    assert stats["call_levels"] == {"a": 1, "b": 3}
    assert (stats["waiting_calls"], stats["preempted_calls"]) == (["b"], [])
    assert stats["call_tokens"] == {"a": 1}
    one.add("c")
    assert one.scheduler.autellix_stats()["waiting_calls"] == ["c", "b"], "in the queue's order"
    assert 0 < stats["kv_usage"] < 1
    for _ in range(20):
        one.step()
    assert one.scheduler.autellix_stats()["step_s"] == 1.0
    assert one.scheduler.autellix_stats()["demotions"] > 0


def test_settings_change_only_while_no_call_is_live(engine: Callable[..., Engine]) -> None:
    one = engine()
    request = one.add("a")
    fcfs = {"policy": "fcfs", "levels": 3}
    assert not one.scheduler.autellix_configure(fcfs)
    one.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    assert one.scheduler.autellix_configure(fcfs)
    one.add("b", attained_s=7.0, tokens=2)
    one.finish()
    assert one.receipts["b"].levels == (1,)


def test_a_vllm_without_a_needed_name_is_refused_with_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autellix.scheduler.vllm_names._OFFERED", ((Request, ("no_such",)),))
    with pytest.raises(VersionError, match=r"Request.no_such.*0\.32"):
        require_names()


def test_a_request_without_a_ticket_is_a_program_of_its_own_or_of_its_session(
    engine: Callable[..., Engine],
) -> None:
    one = engine()
    one.add("a", request_id="alone", ticket=False, tokens=2)
    one.add("b", request_id="grouped", ticket=False, session="S", tokens=2)
    one.finish()
    assert one.receipts["alone"].program == "alone"
    assert one.receipts["grouped"].program == "S"


def test_requests_that_share_a_ticket_give_one_receipt(engine: Callable[..., Engine]) -> None:
    one = engine(seats=2)
    for i, tokens in enumerate((3, 6, 2)):
        one.add("n", request_id=f"{i}_n", tokens=tokens)
    one.finish()
    whole = one.receipts["n"]
    assert whole.output_tokens == 11
    assert whole.service_s == 6.0, "that of the request that took longest"
    assert one.scheduler.autellix_receipt("n") == whole.to_wire()


def test_a_request_id_may_come_back_at_once(engine: Callable[..., Engine]) -> None:
    one = engine()
    for _ in range(3):
        one.add("again", request_id="same", tokens=1)
        one.step()
        assert one.receipts.pop("again").service_s == 1.0
    one.finish()


@pytest.mark.parametrize("interval", [1, 8])
def test_every_call_ends_under_pressure_and_nothing_leaks(
    engine: Callable[..., Engine], depth: int, interval: int
) -> None:
    one = engine(seats=4, blocks=40, budget=96, depth=depth, beta=1.0, policy_interval=interval)
    for i in range(30):
        one.add(
            f"c{i:02}", attained_s=float(i * 7 % 23), prompt=20 + i * 13 % 90, tokens=4 + i % 11
        )
        one.step()
    one.finish()
    assert len(one.receipts) == 30
    for i in range(30):
        receipt = one.receipts[f"c{i:02}"]
        assert receipt.output_tokens == 4 + i % 11
        assert receipt.service_s + receipt.wait_s <= one.time
    assert free_blocks(one) == 39
    assert not one.scheduler.core.calls


def test_vllms_own_order_is_refused(engine: Callable[..., Engine]) -> None:
    with pytest.raises(SettingsError, match="scheduling_policy must be 'priority'"):
        engine(vllm_policy="fcfs")


def test_an_unknown_setting_is_refused(engine: Callable[..., Engine]) -> None:
    with pytest.raises(SettingsError, match="no setting 'quantum'"):
        engine(quantum=3)
