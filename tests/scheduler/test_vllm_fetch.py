"""KV in vLLM that is loaded before a program's next call comes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from autellix.scheduler.vllm_fetch import Fetches
from benchmarks.tiny_llama import write_tiny_llama
from tests.kernels.adversary import Adversary
from tests.kernels.modelless import LAYERS
from tests.kernels.test_tier_fuzz import answer
from tests.scheduler.test_vllm_host_tier import prompt
from tests.scheduler.test_vllm_kv_home import World

# Of the 40 tokens of the program's context the device has lost so many.
LACKING = 32


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """An engine whose device cache others have overwritten since the call of program ``a``."""
    folder = Path(write_tiny_llama(tmp_path, layers=len(LAYERS)))

    def make(**options: Any) -> World:
        one = World(folder, **{"host_blocks": 400, "blocks": 34, **options})
        one.run("a", prompt(1))
        one.run("other", prompt(2, 120))
        assert one.scheduler.kv_homes.tokens("a") == 40 - LACKING
        return one

    return make


def fetches_of(one: World) -> Fetches:
    found = one.scheduler.kv_homes.fetches
    assert found is not None
    return found


def call(one: World, name: str = "next") -> Any:
    """The next call of the program; its receipt."""
    one.engine.add(name, [*prompt(1), 1], 3, program="a")
    one.engine.run()
    assert one.engine.finished[name] == answer([*prompt(1), 1], 3)
    return one.engine.receipts[name]


def settle(one: World) -> None:
    for _ in range(40):
        if not one.scheduler.has_requests():
            return
        one.engine.step()
        one.engine.check()
    raise AssertionError("a fetch does not end")


@pytest.mark.parametrize("pipelined", [False, True], ids=["at once", "pipelined"])
def test_when_the_tool_has_ended_the_kv_is_on_the_device_before_the_call(
    world: Callable[..., World], pipelined: bool
) -> None:
    one = world(device=Adversary(1) if pipelined else None)
    one.scheduler.autellix_returns("a")
    assert one.scheduler.has_requests(), "an idle engine wakes for it"
    settle(one)
    assert one.engine.loaded_tokens == LACKING
    receipt = call(one)
    assert (receipt.cached_tokens, receipt.swapped_in_tokens) == (40, LACKING)
    assert one.engine.loaded_tokens == LACKING, "the call had nothing to load"
    assert (fetches_of(one).begun, fetches_of(one).used) == (1, 1)


@pytest.mark.parametrize("steps", range(4))
def test_a_call_that_comes_while_its_kv_is_fetched_finds_all_of_it(
    world: Callable[..., World], steps: int
) -> None:
    one = world(device=Adversary(steps))
    one.scheduler.autellix_returns("a")
    for _ in range(steps):
        one.engine.step()
    receipt = call(one)
    assert receipt.cached_tokens == 40
    assert one.engine.loaded_tokens == LACKING, "nothing is loaded twice"


def test_the_fetch_of_a_tool_that_is_expected_back_begins_at_its_time(
    world: Callable[..., World],
) -> None:
    one = world()
    one.scheduler.prefill_rate = SimpleNamespace(token_s=1.0, add=lambda *step: None)  # type: ignore[assignment]
    call(one)  # its load is the first that is measured
    for i in range(6):
        one.run(f"more{i}", prompt(10 + i, 60), seconds=3.0)
    one.run("a", prompt(1))
    assert one.away("a", (60.0,) * 9) == "keep"
    left_s = one.time
    one.run("early", prompt(30, 120), seconds=58.0)
    assert fetches_of(one).begun == 0 and one.scheduler.kv_homes.tokens("a") < 40
    one.time = left_s + 60.0
    one.run("late", prompt(31, 4), seconds=0.0)
    assert fetches_of(one).begun == 1
    assert one.scheduler.kv_homes.tokens("a") == 40


def test_who_is_back_by_then_is_not_fetched_for(world: Callable[..., World]) -> None:
    one = world()
    fetches_of(one).at("a", 5.0)
    one.time = 3.0
    call(one)
    one.run("other2", prompt(3, 120))
    one.time = 6.0
    one.run("third", prompt(4, 4))
    assert fetches_of(one).begun == 0


def test_blocks_that_a_call_wants_are_not_taken(world: Callable[..., World]) -> None:
    one = world()
    one.engine.add("large", prompt(5, 110), 6, program="large")
    one.engine.step()
    one.scheduler.autellix_returns("a")
    one.engine.run()
    assert fetches_of(one).begun == 0
    assert one.engine.receipts["large"].preemptions == 0
    assert call(one).swapped_in_tokens >= LACKING


def test_what_the_device_has_or_the_tier_has_not_is_not_fetched(
    world: Callable[..., World],
) -> None:
    one = world()
    one.scheduler.autellix_returns("other")  # the device has it
    one.scheduler.autellix_returns("nobody")
    assert not one.scheduler.has_requests()
    assert one.engine.tier is not None
    one.engine.tier.drop("a")
    one.scheduler.autellix_returns("a")
    settle(one)
    assert fetches_of(one).begun == 0
    assert one.engine.computed_tokens == sum((41, 121)), "a fetch computes nothing"


def test_where_computing_is_sooner_nothing_is_fetched(world: Callable[..., World]) -> None:
    one = world()
    one.scheduler.tier._prefill_s = lambda: 1e-12  # type: ignore[union-attr]
    one.engine.tier.bandwidth.observe("load", 1000, 1.0)  # type: ignore[union-attr]
    one.scheduler.autellix_returns("a")
    settle(one)
    assert fetches_of(one).begun == 0


def test_a_program_that_ends_while_it_is_fetched_for_leaves_nothing(
    world: Callable[..., World],
) -> None:
    one = world(device=Adversary(3))
    free = one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    one.scheduler.autellix_returns("a")
    one.engine.step()
    one.scheduler.autellix_forget("a")
    one.scheduler.autellix_returns("a")
    settle(one)
    assert one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    assert one.engine.tier is not None and not one.engine.tier.stored("a").chunks
    fetches = fetches_of(one)
    assert not (fetches._contexts.keys() & {"a"} or fetches._under_way or fetches._brought)
    assert not one.scheduler.tier._coming and not one.scheduler.tier._fetching  # type: ignore[union-attr]


def test_without_a_tier_a_tools_end_changes_nothing(world: Callable[..., World]) -> None:
    one = world(host_blocks=0)
    one.scheduler.autellix_returns("a")
    assert one.scheduler.kv_homes.fetches is None and not one.scheduler.has_requests()
