"""KV that a simulated replica loads before the program's next call comes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler.prefix_cache import BlockCache, CacheNode
from autellix.scheduler.sim_fetch import Fetches
from autellix.scheduler.sim_host import HostKv
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import Simulation
from tests.scheduler.test_sim_host import MODEL, chat, memory, serve

TURNS, TOOL_S = 8, 40.0


def crowd() -> list[tuple[float, SimProgram]]:
    """Programs that overwrite the cache all the while, and stay."""
    calls = chat("other", turns=2, prompt=78, output=4, tool_s=2000.0).calls
    return [(5.0 + 17.0 * i, SimProgram(f"other{i}", calls, kind="other")) for i in range(20)]


def overwritten(tool_s: float = TOOL_S) -> list[tuple[float, SimProgram]]:
    """A program in a tool after every call, beside that crowd."""
    return [(0.0, chat("a", turns=TURNS, prompt=16, output=1, tool_s=tool_s)), *crowd()]


def test_a_load_ahead_spares_the_call_its_wait() -> None:
    tier = memory(2000)
    late, before, _ = serve(*overwritten(), tier=replace(tier, fetches_ahead=False))
    ahead, after, simulation = serve(*overwritten(), tier=tier)
    fetches = simulation.replicas[0].kv.fetches
    assert fetches is not None and fetches.used > 0
    assert ahead.load_wait_s < late.load_wait_s
    spared_s = [before[n].receipt.wait_s - after[n].receipt.wait_s for n in after if n[0] == "a"]
    assert max(spared_s) == pytest.approx(1 / 4 + 17 * 4 / 1024)  # 17 blocks
    # What its calls found is said of them, however it came; none found less.
    for name, record in after.items():
        assert record.receipt.swapped_in_tokens >= before[name].receipt.swapped_in_tokens, name
        assert record.receipt.cached_tokens >= before[name].receipt.cached_tokens, name
    assert sum(r.receipt.swapped_in_tokens for r in after.values()) <= ahead.loaded_tokens


def test_a_program_that_is_back_before_its_time_finds_no_load_in_its_way() -> None:
    program = chat("a", turns=TURNS, prompt=16, output=1, tool_s=TOOL_S)
    short = [
        replace(call, tool_s=1.0 if i == TURNS - 1 else call.tool_s)
        for i, call in enumerate(program.calls)
    ]
    result, records, simulation = serve((0.0, SimProgram("a", short)), *crowd(), tier=memory(2000))
    assert len(result.programs) == 21 and f"a/{TURNS - 1}" in records
    simulation.replicas[0].check()


def test_what_calls_want_is_not_taken_for_loads_ahead() -> None:
    cache, host = BlockCache(10), HostKv(10)
    node = CacheNode(cache._root, 0, 8)
    host.store("a", node, 8)
    fetches = Fetches(cache, host)
    assert fetches.begin("a", node, spare=7) == 0
    assert cache.free == 10 and not fetches.begun
    assert fetches.begin("a", node, spare=8) == 8
    assert cache.available == 2, "until it has ended its blocks are nobody else's"
    fetches.ends("a", node, 3.0, now=1.0)
    assert fetches.next_end_s == 3.0
    fetches.settle(2.9)
    assert cache.available == 2
    fetches.settle(3.0)
    assert cache.available == 10 and fetches.next_end_s == math.inf
    assert fetches.found("a", 5) == 5 and fetches.used == 1
    assert fetches.found("a", 5) == 0, "one call alone found it"


def test_of_an_ended_program_nothing_is_remembered() -> None:
    cache, host = BlockCache(10), HostKv(10)
    node = CacheNode(cache._root, 0, 8)
    host.store("a", node, 8)
    fetches = Fetches(cache, host)
    fetches.ask("a", node)
    assert fetches.begin("a", node, spare=10) == 8
    fetches.forget("a")
    assert not fetches.take_asked() and fetches.found("a", 8) == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 80)), max_size=12),
    st.sampled_from([3.0, 20.0, 40.0]),
    st.integers(20, 400),
)
def test_long_stretches_give_what_steps_one_by_one_give(
    calls: list[tuple[int, int]], tool_s: float, blocks: int
) -> None:
    arrivals: list[tuple[float, SimProgram]] = [
        (float(at), SimProgram(f"c{i}", [SimCall(prompt_tokens=tokens, output_tokens=8)]))
        for i, (at, tokens) in enumerate(sorted(calls))
    ]
    arrivals = sorted([*arrivals, *overwritten(tool_s)], key=lambda one: one[0])
    counts, ended_s = [], []
    for longest in (1, 1 << 40):
        simulation = Simulation(
            MODEL, sim_policy("default"), memory=memory(blocks), longest_stretch=longest
        )
        result = simulation.run(arrivals)
        fetches = simulation.replicas[0].kv.fetches
        assert fetches is not None
        counts.append((result.loads, result.recomputed_tokens, fetches.begun, fetches.used))
        ended_s.append([program.ended_s for program in result.programs])
        simulation.replicas[0].check()
    assert counts[0] == counts[1]
    assert ended_s[0] == pytest.approx(ended_s[1])
