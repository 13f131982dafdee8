"""The host tier under our scheduler in vLLM: whose KV it is, how it comes back, what that costs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from autellix.scheduler.vllm_adapter import ProgramScheduler
from benchmarks.tiny_llama import write_tiny_llama
from tests.kernels.modelless import BLOCK, LAYERS, Engine
from tests.kernels.test_tier_fuzz import answer

PLAS = {"policy": "plas", "first_quantum_s": 1e9, "admission": False}


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Engine]:
    folder = Path(write_tiny_llama(tmp_path, layers=len(LAYERS)))

    def make(**options: Any) -> Engine:
        return Engine(folder, policy=PLAS, **options)

    return make


def prompt(of: int, tokens: int = 40) -> list[int]:
    return [1000 * of + i for i in range(tokens)]


def scheduler_of(engine: Engine) -> ProgramScheduler:
    assert isinstance(engine.scheduler, ProgramScheduler)
    return engine.scheduler


def fill(engine: Engine, of: int) -> None:
    """A call of another program that overwrites the device's cache."""
    engine.add(f"other{of}", prompt(of, 90), 2, program=f"other{of}")
    engine.run()


def test_a_preempted_call_goes_on_from_the_host(engine: Callable[..., Engine]) -> None:
    one = engine(host_blocks=80)
    one.add("a", prompt(1), 12, program="A")
    for _ in range(4):
        one.step()
    one.preempt()
    assert one.tier is not None and one.tier.stored("A").pinned
    fill(one, 2)
    assert one.finished["a"] == answer(prompt(1), 12)
    receipt = one.receipts["a"]
    assert receipt.preemptions == 1
    assert receipt.swapped_in_tokens == 40
    # The last, unfilled block; whole ones were stored.
    assert receipt.recomputed_tokens < BLOCK
    assert not one.tier.stored("A").pinned


def test_without_a_tier_the_receipt_tells_what_the_preemption_cost(
    engine: Callable[..., Engine],
) -> None:
    one = engine(host_blocks=0)
    one.add("a", prompt(1), 12, program="A")
    for _ in range(4):
        one.step()
    computed = one.scheduler.requests["a"].num_computed_tokens
    one.preempt()
    fill(one, 2)
    assert one.finished["a"] == answer(prompt(1), 12)
    receipt = one.receipts["a"]
    assert (receipt.swapped_in_tokens, receipt.recomputed_tokens) == (0, computed)


def test_a_preempted_call_that_finds_its_blocks_has_lost_nothing(
    engine: Callable[..., Engine],
) -> None:
    one = engine(host_blocks=0, blocks=60)
    one.add("a", prompt(1), 12, program="A")
    for _ in range(4):
        one.step()
    one.preempt()
    one.step()
    one.run()
    assert one.receipts["a"].preemptions == 1
    assert one.receipts["a"].recomputed_tokens < BLOCK


def test_the_next_call_of_a_program_is_told_what_the_host_gave(
    engine: Callable[..., Engine],
) -> None:
    one = engine(host_blocks=80)
    one.add("a", prompt(1), 4, program="A")
    one.run()
    fill(one, 2)
    one.add("b", [*prompt(1), 7, 8], 4, program="A")
    one.run()
    receipt = one.receipts["b"]
    assert receipt.cached_tokens == receipt.swapped_in_tokens == 40
    assert receipt.recomputed_tokens == 0  # it had not lost its seat


def test_computing_is_chosen_where_it_is_sooner_and_loading_is_measured_again_at_times(
    engine: Callable[..., Engine],
) -> None:
    one = engine(host_blocks=400)
    side = scheduler_of(one).tier
    assert side is not None
    one.add("a", prompt(1), 4, program="A")
    one.run()

    def loaded(of: int) -> int:
        fill(one, of)
        name = f"again{of}"
        one.add(name, prompt(1), 4, program="A")
        one.run()
        assert one.finished[name] == answer(prompt(1), 4)
        return one.receipts[name].swapped_in_tokens

    side._prefill_s = lambda: 0.0
    assert loaded(2) > 0, "nothing was measured: it is loaded, as vLLM would"
    side._prefill_s = lambda: 1e-12  # an engine that computes faster than any link moves
    assert side.rates.load_s > 1e-12
    assert [loaded(3 + i) > 0 for i in range(32)] == [False] * 31 + [True]
    side._prefill_s = lambda: 1.0
    assert loaded(50) > 0


def test_a_call_that_ends_while_it_waits_lets_its_kv_go(engine: Callable[..., Engine]) -> None:
    one = engine(host_blocks=80)
    one.add("a", prompt(1), 12, program="A")
    for _ in range(4):
        one.step()
    one.preempt()
    one.abort()
    one.run()
    side = scheduler_of(one).tier
    assert one.tier is not None and not one.tier.stored("A").pinned
    assert side is not None and not side._pins


def test_the_state_of_a_replica_tells_of_its_host_tier(engine: Callable[..., Engine]) -> None:
    assert "kv_host_tokens" not in scheduler_of(engine(host_blocks=0)).autellix_stats()
    one = engine(host_blocks=80)
    stats = scheduler_of(one).autellix_stats()
    assert (stats["kv_host_usage"], stats["swaps"]) == (0.0, 0)
    assert stats["kv_host_tokens"] >= 80 * BLOCK
    one.add("a", prompt(1), 4, program="A")
    one.run()
    fill(one, 2)
    one.add("b", prompt(1), 4, program="A")
    one.run()
    stats = scheduler_of(one).autellix_stats()
    assert 0.0 < stats["kv_host_usage"] <= 1.0 and stats["swaps"] == 1
