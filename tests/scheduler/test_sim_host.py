"""KV in a simulated replica's host memory: what comes back from there, and what has to go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.errors import SettingsError
from autellix.scheduler.content_tree import ContentTree
from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.prefix_cache import BlockCache, CacheNode
from autellix.scheduler.sim_host import TIERS, HostKv, HostMemory, TierName
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.sim_records import CallRecord, SimResult
from autellix.scheduler.simulator import Simulation

# A block is 4 MiB: 256 of them are a GiB. A token is loaded in 1/1024 s and computed in 1/8 s.
MODEL = EngineModel(
    name="test",
    step=StepTime(a=1.0, b=1 / 8),
    kv_tokens=96,
    block_tokens=4,
    seats=2,
    token_budget=64,
    kv_bytes_per_token=2**20,
    link_bytes_per_s=2.0**30,
)


def memory(blocks: int, tier: TierName = "programs") -> HostMemory:
    return HostMemory(gib=blocks / 256, tier=tier, load_start_s=1 / 4)


def chat(name: str, *, turns: int, prompt: int = 40, output: int = 8, tool_s: float = 0.0):
    """A program whose every prompt is the context before and ``prompt`` tokens more."""
    calls: list[SimCall] = []
    for turn in range(turns):
        shared = calls[-1].prompt_tokens + output if turn else 0
        calls.append(
            SimCall(
                parents=(turn - 1,) if turn else (),
                prompt_tokens=shared + (prompt if not turn else 8),
                output_tokens=output,
                shared_prefix_tokens=shared,
                tool_s=tool_s if turn else 0.0,
            )
        )
    return SimProgram(name, calls)


def serve(
    *arrivals: tuple[float, SimProgram],
    tier: HostMemory | None,
    policy: str = "vllm-opt",
    **settings: object,
) -> tuple[SimResult, dict[str, CallRecord], Simulation]:
    records: dict[str, CallRecord] = {}

    def ended(record: CallRecord) -> None:
        records[record.receipt.call] = record

    simulation = Simulation(MODEL, sim_policy(policy, **settings), memory=tier, on_call=ended)
    return simulation.run(arrivals), records, simulation


def others(between: tuple[float, ...]) -> list[tuple[float, SimProgram]]:
    """Programs of one call that overwrite the whole cache."""
    call = SimCall(prompt_tokens=90, output_tokens=4)
    return [(at, SimProgram(f"other{at}", [call])) for at in between]


def test_a_context_that_others_have_overwritten_is_loaded() -> None:
    arrivals = [(0.0, chat("a", turns=2, tool_s=40.0)), *others((15.0,))]
    without, before, _ = serve(*arrivals, tier=None)
    with_tier, after, _ = serve(*arrivals, tier=memory(200))
    assert without.recomputed_tokens == 44 and without.loaded_tokens == 0
    assert with_tier.recomputed_tokens == 0 and with_tier.loaded_tokens == 44
    assert after["a/1"].receipt.cached_tokens == after["a/1"].receipt.swapped_in_tokens == 44
    assert before["a/1"].receipt.cached_tokens == 0
    # 44 tokens: 44 / 8 s of a step, or 1/4 s and 44 / 1024 s on the link before the first step.
    saved_s = before["a/1"].ended_s - after["a/1"].ended_s
    assert saved_s == pytest.approx(44 / 8 - 1 / 4 - 44 / 1024)


def test_steps_go_on_while_kv_is_loaded() -> None:
    beside = SimProgram("beside", [SimCall(prompt_tokens=4, output_tokens=20)])
    tier = HostMemory(gib=1.0, load_start_s=4.0)
    _, alone, _ = serve((45.0, beside), tier=tier)
    arrivals = [(0.0, chat("a", turns=2, tool_s=40.0)), *others((15.0,)), (45.0, beside)]
    _, together, _ = serve(*arrivals, tier=tier)
    loaded = together["a/1"].receipt
    assert loaded.swapped_in_tokens == 44 and loaded.wait_s > 4.0
    # The one step longer is that in which the rest of the prompt is computed.
    later_s = together["beside/0"].ended_s - alone["beside/0"].ended_s
    assert later_s == pytest.approx((loaded.prompt_tokens - 44) / 8)


def test_a_preempted_call_is_loaded_where_it_was_computed_again() -> None:
    pair = [(0.0, SimProgram(n, [SimCall(prompt_tokens=20, output_tokens=60)])) for n in "ab"]
    recompute = serve(*pair, tier=None)[0]
    assert recompute.preemptions == 1 and recompute.recomputed_tokens > 0 == recompute.loads
    for tier in TIERS:
        swap = serve(*pair, tier=memory(200, tier))[0]
        assert (swap.preemptions, swap.loads) == (1, 1), tier
        assert swap.recomputed_tokens < MODEL.block_tokens + 1, tier
        assert swap.ended_s < recompute.ended_s, tier


def test_receipts_tell_what_a_preemption_cost() -> None:
    pair = [(0.0, SimProgram(n, [SimCall(prompt_tokens=20, output_tokens=60)])) for n in "ab"]
    for tier in (None, memory(200)):
        result, records, _ = serve(*pair, tier=tier)
        receipts = [record.receipt for record in records.values()]
        assert sum(r.recomputed_tokens for r in receipts) == result.recomputed_tokens
        assert sum(r.swapped_in_tokens for r in receipts) == result.loaded_tokens


def test_where_the_host_is_full_tokens_are_computed_again_and_nothing_fails() -> None:
    arrivals = [(0.0, chat("a", turns=2, tool_s=40.0)), *others((15.0, 25.0))]
    result, records, simulation = serve(*arrivals, tier=memory(5))
    assert records["a/1"].receipt.cached_tokens < 44
    assert result.recomputed_tokens > 0 and len(result.programs) == 3
    host = simulation.replicas[0].kv.host
    assert host is not None and host.evicted > 0


def test_computing_is_chosen_where_it_is_sooner_but_vllm_loads_all_the_same() -> None:
    arrivals = [(0.0, chat("a", turns=2, tool_s=40.0)), *others((15.0,))]
    slow = {t: HostMemory(gib=1.0, tier=t, load_start_s=60.0) for t in TIERS}
    assert serve(*arrivals, tier=slow["programs"])[0].loads == 0
    assert serve(*arrivals, tier=slow["vllm"])[0].loads == 1


def test_an_ended_program_frees_its_kv_at_once_but_not_under_vllm() -> None:
    for tier, left in (("programs", False), ("vllm", True)):
        _, _, simulation = serve((0.0, chat("a", turns=2)), tier=memory(200, tier))
        replica = simulation.replicas[0]
        assert replica.kv.host is not None
        assert (replica.kv.host.free < 200) is left
        assert (replica.kv.cache.free < MODEL.blocks) is left


def test_the_host_is_room_for_admission() -> None:
    def room(tier: HostMemory | None) -> int:
        simulation = Simulation(MODEL, sim_policy("default"), memory=tier)
        gate = simulation.gates[0]
        assert gate is not None
        gate.limit.measured(10**6, 10**6, holding=False)
        return round(gate.limit.tokens / 0.8)  # the share that the first thrashing window leaves

    assert room(None) == room(memory(10)) == room(memory(200, "vllm")) == 96
    assert room(memory(200)) == 800


@pytest.mark.parametrize("values", [{"gib": 0}, {"gib": -1}, {"gib": 1, "tier": "disk"}])
def test_an_impossible_tier_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="host tier"):
        HostMemory(**values)  # type: ignore[arg-type]


# The host's books by themselves.


def chains(lengths: dict[str, int]) -> dict[str, list[CacheNode]]:
    """A context of as many nodes of 4 blocks for each program."""
    cache = BlockCache(1000)
    made: dict[str, list[CacheNode]] = {}
    for name, count in lengths.items():
        tree = ContentTree(
            starts=[4 * i for i in range(count)],
            ends=[4 * i + 4 for i in range(count)],
            parents=list(range(-1, count - 1)),
            tails=[],
            shared_blocks=[],
        )
        nodes: list[CacheNode | None] = [None] * count
        cache.node(nodes, tree, count - 1)
        made[name] = [node for node in nodes if node is not None]
    return made


def test_what_was_used_longest_ago_loses_the_end_of_its_context() -> None:
    nodes, host = chains({"a": 3, "b": 3, "c": 2}), HostKv(20)
    assert host.store("a", nodes["a"][-1], 12) == 12
    assert host.store("b", nodes["b"][-1], 12) == 12
    assert [host.found(nodes[n][-1], 12) for n in "ab"] == [8, 12]
    assert host.store("a", nodes["a"][-1], 8) == 0  # used again: b is the older one now
    host.store("c", nodes["c"][-1], 8)
    assert [host.found(nodes[n][-1], 12) for n in "abc"] == [8, 4, 8]
    host.check()


def test_what_a_program_has_left_behind_goes_before_what_another_goes_on_with() -> None:
    cache, host = BlockCache(1000), HostKv(24)
    # One context begins with four blocks and goes on in two ways: node 1 is the first, node 2 the
    # way taken since.
    tree = ContentTree([0, 4, 4], [4, 12, 12], [-1, 0, 0], [], [])
    branching: list[CacheNode | None] = [None] * 3
    left_behind = cache.node(branching, tree, 1)
    taken = cache.node(branching, tree, 2)
    other, new = chains({"b": 1})["b"][-1], chains({"c": 2})["c"][-1]
    host.store("a", left_behind, 12)
    host.store("b", other, 4)
    host.store("a", taken, 12)
    host.store("c", new, 8)
    assert [host.found(tail, 12) for tail in (left_behind, taken, other, new)] == [4, 12, 4, 8]
    host.check()


def test_pinned_programs_and_loads_under_way_stay() -> None:
    nodes, host = chains({"a": 2, "b": 2, "c": 4}), HostKv(16)
    for name in "ab":
        host.store(name, nodes[name][-1], 8)
    host.pin("a")
    load = host.hold("b", nodes["b"][-1], 1.0)
    assert load is not None
    assert host.store("c", nodes["c"][-1], 16) == 0
    host.release(load)
    assert host.store("c", nodes["c"][-1], 16) == 8
    assert [host.found(nodes[n][-1], 16) for n in "abc"] == [8, 0, 8]
    host.unpin("a")
    assert host.store("c", nodes["c"][-1], 16) == 8
    host.check()


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["store", "hold", "release", "pin", "unpin", "drop"]),
        st.sampled_from("abcd"),
        st.integers(1, 24),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(ACTS, st.integers(1, 40))
def test_no_block_is_lost_and_no_context_has_a_gap(
    acts: list[tuple[str, str, int]], blocks: int
) -> None:
    nodes, host = chains(dict.fromkeys("abcd", 6)), HostKv(blocks)
    held: list[CacheNode] = []
    pinned: dict[str, int] = {}
    going: set[str] = set()
    for act, name, upto in acts:
        tail = nodes[name][-1]
        if act == "store":
            host.store(name, tail, upto)
        elif act == "hold" and (load := host.hold(name, tail, 0.0)) is not None:
            held.append(load)
        elif act == "release" and held:
            host.release(held.pop())
        elif act == "pin":
            host.pin(name)
            pinned[name] = 0 if name in going else host.found(tail, 24)
        elif act == "unpin":
            host.unpin(name)
            pinned.pop(name, None)
        elif act == "drop":
            host.drop(name)
            pinned.pop(name, None)
            if held:
                going.add(name)  # what loads hold of it goes with the last of them
        host.check()
        for kept, had in pinned.items():
            assert host.found(nodes[kept][-1], 24) >= had
    for load in held:
        host.release(load)
    for name in "abcd":
        host.drop(name)
    assert host.free == blocks
