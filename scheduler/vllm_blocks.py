"""Whose cached blocks are whose on the device, so that those of an ended program are taken first.

vLLM frees the blocks of a call that ends and goes on to find them by their hashes until they are
used again, those freed longest ago first. What a program had that has ended would so stay until its
turn comes, while contexts that are still needed go before it.

A block is a program's as long as it holds what the program's call left there. One that programs
share is freed with the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager

_Owned = tuple[Any, set[str]]


class ProgramBlocks:
    """The cached blocks of live programs.

    Args:
        manager: vLLM's, of the device's KV cache.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._pool = manager.block_pool
        # Block id -> the hash it had, and the programs that have it.
        self._owners: dict[int, _Owned] = {}
        self._programs: dict[str, set[int]] = {}

    def note(self, program: str, request_id: str) -> None:
        """A call of a program is about to end: what it has in whole blocks is the program's."""
        mine = self._programs.setdefault(program, set())
        owners = self._owners
        for group in self._manager.get_blocks(request_id).blocks:
            for block in group:
                if block.block_hash is None or block.is_null:
                    continue
                known = owners.get(block.block_id)
                if known is None or known[0] != block.block_hash:
                    owners[block.block_id] = (block.block_hash, {program})
                else:
                    known[1].add(program)
                mine.add(block.block_id)
        if not mine:
            del self._programs[program]

    def tokens(self, program: str) -> int:
        """Tokens in the blocks that the program has still, in one cache group at most."""
        size = self._pool.hash_block_size
        return sum(self._is_its(block_id, program) for block_id in self._mine(program)) * size

    def age(self, program: str) -> int:
        """What only this program has goes first; how many blocks that are."""
        return self._first(b for b in self._mine(program) if self._owners[b][1] == {program})

    def forget(self, program: str) -> int:
        """The program is over: what nobody else has goes first; how many blocks that are."""
        alone: list[int] = []
        for block_id in self._mine(program):
            having = self._owners[block_id][1]
            having.discard(program)
            if not having:
                alone.append(block_id)
        self._programs.pop(program, None)
        freed = self._first(alone)
        for block_id in alone:
            del self._owners[block_id]
        return freed

    def _mine(self, program: str) -> list[int]:
        mine = self._programs.get(program, ())
        return [b for b in mine if b in self._owners and program in self._owners[b][1]]

    def _is_its(self, block_id: int, program: str) -> bool:
        known = self._owners[block_id]
        return program in known[1] and self._pool.blocks[block_id].block_hash == known[0]

    def _first(self, block_ids: Iterable[int]) -> int:
        """Blocks that hold what they held and that nobody uses are the next to be taken."""
        blocks = [self._pool.blocks[block_id] for block_id in block_ids]
        idle = [
            block
            for block in blocks
            if block.ref_cnt == 0 and block.block_hash == self._owners[block.block_id][0]
        ]
        queue = self._pool.free_block_queue
        for block in idle:
            queue.remove(block)
        queue.prepend_n(idle)
        return len(idle)
