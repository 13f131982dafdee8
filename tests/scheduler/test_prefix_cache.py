"""What contexts share, and which blocks are evicted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autellix.scheduler.content_tree import ContentTree, content_tree
from autellix.scheduler.prefix_cache import BlockCache, CacheNode
from autellix.scheduler.sim_programs import SimCall

BLOCK = 10


def call(prompt: int, output: int, shared: int = 0, parents: tuple[int, ...] = ()) -> SimCall:
    return SimCall(
        parents=parents,
        prompt_tokens=prompt,
        output_tokens=output,
        shared_prefix_tokens=shared,
    )


def path(tree: ContentTree, index: int) -> list[tuple[int, int]]:
    """Runs of blocks of a call's context, first to last."""
    node, runs = tree.tails[index], []
    while node >= 0:
        runs.append((tree.starts[node], tree.ends[node]))
        node = tree.parents[node]
    return runs[::-1]


def test_a_next_turn_goes_on_where_the_one_before_ended() -> None:
    tree = content_tree([call(95, 6), call(150, 1, shared=101, parents=(0,))], BLOCK)
    assert path(tree, 0) == [(0, 10)]
    assert path(tree, 1) == [(0, 10), (10, 15)]
    assert tree.shared_blocks == [0, 10]


def test_the_last_token_has_no_kv_and_a_partial_block_is_not_shared() -> None:
    tree = content_tree([call(90, 10), call(150, 1, shared=100, parents=(0,))], BLOCK)
    assert path(tree, 0) == [(0, 9)]
    assert tree.shared_blocks == [0, 9]


def test_siblings_part_where_their_prompt_ends() -> None:
    tree = content_tree([call(50, 21), call(50, 31, shared=50), call(50, 41, shared=50)], BLOCK)
    assert path(tree, 0) == [(0, 5), (5, 7)]
    assert path(tree, 1) == [(0, 5), (5, 8)]
    assert path(tree, 2) == [(0, 5), (5, 9)]


def test_a_call_that_goes_back_to_an_earlier_prompt_leaves_what_came_after() -> None:
    calls = [call(50, 21), call(120, 1, 70, (0,)), call(99, 2, 50, (1,))]
    tree = content_tree(calls, BLOCK)
    assert tree.shared_blocks == [0, 7, 5]
    assert path(tree, 2) == [(0, 5), (5, 10)]
    assert path(tree, 1) == [(0, 5), (5, 7), (7, 12)]


def test_a_system_prompt_is_the_first_node_of_all_contexts() -> None:
    tree = content_tree([call(50, 1), call(60, 1)], BLOCK, system_tokens=30)
    assert path(tree, 0) == [(0, 3), (3, 5)]
    assert path(tree, 1) == [(0, 3), (3, 6)]


@given(st.data())
def test_a_context_is_always_one_unbroken_run_and_shares_as_many_blocks_as_it_says(
    data: st.DataObject,
) -> None:
    calls: list[SimCall] = []
    for index in range(data.draw(st.integers(1, 12))):
        prompt = data.draw(st.integers(1, 200))
        shared = data.draw(st.integers(0, prompt)) if index else 0
        parents = data.draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        calls.append(call(prompt, data.draw(st.integers(1, 60)), shared, tuple(sorted(parents))))
    tree = content_tree(calls, BLOCK)
    for index, one in enumerate(calls):
        runs = path(tree, index)
        at = 0
        for start, end in runs:
            assert start == at < end
            at = end
        assert at == (one.prompt_tokens + one.output_tokens - 1) // BLOCK
        assert tree.shared_blocks[index] <= one.shared_prefix_tokens // BLOCK


class OneProgram:
    """A cache with the nodes of one program."""

    def __init__(self, calls: list[SimCall], blocks: int) -> None:
        self.cache = BlockCache(blocks)
        self.tree = content_tree(calls, BLOCK)
        self.nodes: list[CacheNode | None] = [None] * len(self.tree.starts)

    def tail(self, index: int) -> CacheNode:
        return self.cache.node(self.nodes, self.tree, self.tree.tails[index])

    def run(self, index: int, blocks: int) -> int:
        """Run a call to its end; how many of its blocks were found."""
        tail = self.tail(index)
        found = self.cache.found(tail, blocks)
        self.cache.lock(tail)
        self.cache.take(blocks - found)
        assert self.cache.fill(tail, blocks) == blocks - found
        self.cache.unlock(tail)
        self.cache.check()
        return found


def test_a_context_stays_after_its_call_and_is_found_again() -> None:
    program = OneProgram([call(50, 1), call(80, 1, 50, (0,))], blocks=20)
    assert program.run(0, 5) == 0
    assert program.run(1, 8) == 5
    assert (program.cache.free, program.cache.evictable) == (12, 8)


def test_what_was_released_longest_ago_goes_first_and_its_tail_before_its_head() -> None:
    program = OneProgram([call(50, 1), call(60, 1)], blocks=11)
    program.run(0, 5)
    program.run(1, 6)
    program.cache.take(3)
    assert program.cache.found(program.tail(0), 5) == 2
    assert program.cache.found(program.tail(1), 6) == 6
    assert program.cache.evicted == 3


def test_a_parent_is_evicted_after_its_children() -> None:
    program = OneProgram([call(50, 1), call(80, 1, 50, (0,))], blocks=8)
    program.run(0, 5)
    program.run(1, 8)
    program.cache.take(4)
    assert program.cache.found(program.tail(1), 8) == 4


def test_a_locked_context_is_never_evicted() -> None:
    program = OneProgram([call(50, 1), call(80, 1, 50, (0,)), call(40, 1)], blocks=12)
    program.run(1, 8)
    program.run(2, 4)
    program.cache.lock(program.tail(0))
    assert program.cache.available == 3 + 4
    program.cache.take(7)
    assert program.cache.found(program.tail(0), 5) == 5
    assert program.cache.found(program.tail(2), 4) == 0


def test_what_a_stopped_prefill_did_not_compute_is_cut_off() -> None:
    program = OneProgram([call(90, 1)], blocks=10)
    tail = program.tail(0)
    program.cache.lock(tail)
    program.cache.take(9)
    program.cache.fill(tail, 9)
    program.cache.give(program.cache.cut(tail, 4))
    program.cache.unlock(tail)
    assert (program.cache.free, program.cache.evictable) == (6, 4)
    assert program.cache.found(tail, 9) == 4
