"""Whose cached KV is whose on the device, so that an ended program's goes first.

vLLM frees the blocks of a call that ends and goes on to find them by their hashes until they are
used again, those freed longest ago first. What a program had that has ended would so stay until its
turn comes, while contexts that are still needed go before it.

What a program has is kept as the hashes of its blocks; vLLM's own table says which blocks hold one
now, if any. KV that programs share, beside each other or one after the other, keeps its place when
they end: it is a prompt that programs begin with, and the next one will begin with it too.

Blocks that hold nothing go before all others. While there are many of them what has ended stays
where it is, and can be found until they are used up.

When a call ends its list of hashes is put aside, and read when somebody asks: by then a program has
often made several calls, and the hash of a block stands for all tokens up to it, so that where the
program has one block of a call it has all before it, and only those behind are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    KVCacheBlock,
    make_block_hash_with_group_id,
)

_SWEEP_FACTOR = 4
# So many free blocks without content are enough for what is allocated until they are counted again,
# which is when the calls that have ended since have filled half as many.
_ENOUGH_EMPTY = 64
_LOOK_AGAIN = _ENOUGH_EMPTY // 2


class ProgramBlocks:
    """The cached blocks of live programs.

    Args:
        manager: vLLM's, of the device's KV cache.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._pool = manager.block_pool
        self._groups = range(len(manager.kv_cache_config.kv_cache_groups))
        # By program the hashes it has, in the order of its contexts; by hash how many have it.
        self._hashes: dict[str, dict[BlockHash, None]] = {}
        self._having: dict[BlockHash, int] = {}
        # Programs of whose contexts the cache has lost something before what it has.
        self._holed: set[str] = set()
        # What a second program has had too; of ended programs what none has had since, and of that
        # what keeps its place for as long as there are enough empty blocks.
        self._shared: set[BlockHash] = set()
        self._ended: dict[BlockHash, None] = {}
        self._to_go: list[BlockHash] = []
        self._kept = 0
        self._sweep_at = _SWEEP_FACTOR * self._pool.num_gpu_blocks
        # Calls that have ended whose hashes have not been read.
        self._unread: list[tuple[str, Sequence[BlockHash]]] = []
        self._unread_hashes = 0
        # Blocks of calls that have ended since the empty ones were counted.
        self._filled = 0

    def note(self, program: str, hashes: Sequence[BlockHash]) -> None:
        """A call of a program has ended: what it had in whole blocks is the program's.

        Args:
            hashes: of the blocks that its tokens fill, first to last.
        """
        if hashes:
            self._unread.append((program, hashes))
            self._unread_hashes += len(hashes)
            self._filled += len(hashes)
        if self._unread_hashes > self._pool.num_gpu_blocks:
            self._read()
        if self._to_go and self._filled > _LOOK_AGAIN:
            self._let_ended_go()

    def tokens(self, program: str) -> int:
        """Tokens in the blocks that the program has still."""
        self._read()
        held = sum(1 for content in self._hashes.get(program, ()) if self._blocks((content,)))
        return held * self._pool.hash_block_size

    def age(self, program: str) -> None:
        """What only this program has goes first."""
        self._read()
        mine = self._hashes.get(program, ())
        empty, having = self._empty_in_front(), self._having
        if empty < _ENOUGH_EMPTY:
            alone = [h for h in mine if having[h] == 1 and h not in self._shared]
            self._first(alone, empty)

    def forget(self, program: str) -> None:
        """The program is over: what no other has had goes first."""
        self._read()
        mine = self._hashes.pop(program, {})
        self._holed.discard(program)
        self._kept -= len(mine)
        ended, shared = self._ended, self._shared
        for content in self._drop(mine):
            if content not in shared:
                ended[content] = None
                self._to_go.append(content)
        if len(ended) > self._pool.num_gpu_blocks:
            for content in list(islice(ended, len(ended) - self._pool.num_gpu_blocks)):
                del ended[content]
            self._to_go = [content for content in self._to_go if content in ended]
        if len(shared) > 2 * self._pool.num_gpu_blocks:
            self._shared = {content for content in shared if self._blocks((content,))}
        self._let_ended_go()

    def _let_ended_go(self) -> None:
        """What has ended goes first, once there are few empty blocks."""
        empty = self._empty_in_front()
        self._filled = 0
        if empty < _ENOUGH_EMPTY:
            self._first([content for content in self._to_go if content in self._ended], empty)
            self._to_go = []

    def _read(self) -> None:
        """Read what has been put aside."""
        unread, self._unread, self._unread_hashes = self._unread, [], 0
        having, ended = self._having, self._ended
        for program, hashes in unread:
            mine = self._hashes.setdefault(program, {})
            new = 0
            if mine and program not in self._holed:
                new = bisect_left(hashes, True, key=lambda content: content not in mine)
            self._kept -= len(mine)
            for content in hashes[new:]:
                if content not in mine:
                    mine[content] = None
                    others = having.get(content, 0)
                    having[content] = others + 1
                    if others or content in ended:
                        ended.pop(content, None)
                        self._shared.add(content)
            self._kept += len(mine)
        if self._kept > self._sweep_at:
            self._sweep()

    def _blocks(self, hashes: Iterable[BlockHash]) -> list[KVCacheBlock]:
        """The blocks that hold these now, in the order of the hashes, each once."""
        cached, found = self._pool.cached_block_hash_to_block.get_one_block, {}
        for content in hashes:
            for group in self._groups:
                block = cached(make_block_hash_with_group_id(content, group))
                if block is not None:
                    found[block.block_id] = block
        return list(found.values())

    def _drop(self, hashes: Iterable[BlockHash]) -> list[BlockHash]:
        """One program has these no more; those that nobody has."""
        having = self._having
        alone: list[BlockHash] = []
        for content in hashes:
            others = having[content] - 1
            if others:
                having[content] = others
            else:
                del having[content]
                alone.append(content)
        return alone

    def _empty_in_front(self) -> int:
        """How many blocks without content are the next to be taken, as far as it matters."""
        block = self._pool.free_block_queue.fake_free_list_head
        for empty in range(_ENOUGH_EMPTY):
            block = block.next_free_block
            # Its property of that name would double the time this takes.
            if block is None or block._block_hash is not None or block.block_id < 0:
                return empty
        return _ENOUGH_EMPTY

    def _first(self, hashes: Iterable[BlockHash], empty: int) -> None:
        """Idle blocks that hold these go next after the empty ones, the last of them first."""
        idle = [block for block in self._blocks(hashes) if block.ref_cnt == 0]
        queue = self._pool.free_block_queue
        for block in idle:
            queue.remove(block)
        queue.prepend_n([*queue.popleft_n(empty), *idle[::-1]])

    def _sweep(self) -> None:
        """Forget what the cache has lost; programs that are never told to be over go with it."""
        for program, mine in list(self._hashes.items()):
            lost = [content for content in mine if not self._blocks((content,))]
            for content in lost:
                del mine[content]
            self._drop(lost)
            self._kept -= len(lost)
            if not mine:
                del self._hashes[program]
                self._holed.discard(program)
            elif lost:
                self._holed.add(program)
        self._sweep_at = max(2 * self._kept, _SWEEP_FACTOR * self._pool.num_gpu_blocks)
