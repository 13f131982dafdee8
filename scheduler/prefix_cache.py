"""KV blocks of a simulated replica, with a prefix cache that evicts what was used longest ago.

Which calls of a program share which prefix does not depend on the schedule, so a program's contexts
form a tree that is known beforehand (:mod:`.content_tree`): a node is a run of blocks, its
ancestors are what comes before it in the prompt. A replica keeps of every node how much is present.

1. Only whole blocks are shared. Of a node a leading part is present; a node has something present
   only where all of its ancestors are wholly present.
2. A running call locks its node and all ancestors.
3. When room is wanted, unlocked blocks go, those released longest ago first and of these the tail
   first, as in vLLM: a parent is never evicted before its child.
4. Blocks that belong to one call alone (a partial last block, the tokens it generates) are counted,
   not named, until the call is over; then the whole ones stay as part of its node.

Locking walks from a call's node up to the first ancestor that is locked already; eviction costs
O(log n) for each node that is emptied. Nothing is done per block or per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from .content_tree import ContentTree

if TYPE_CHECKING:
    from .sim_host import HostRun


class CacheNode:
    """A node of a content tree as one replica has it.

    Attributes:
        parent: None at the root alone.
        start, end: its blocks, counted from the start of the context.
        present: how many of them are in the cache, from the first on.
        locks: running calls that end here, and locked children.
        filled: children that have something present.
        released: when it was unlocked last, in the cache's count.
        shared: whether it is part of a system prompt, which other programs have too.
        host: what host memory has of it; None for nothing yet.
    """

    __slots__ = (
        "end",
        "filled",
        "host",
        "locks",
        "parent",
        "present",
        "released",
        "shared",
        "start",
    )

    def __init__(
        self, parent: CacheNode | None, start: int, end: int, *, shared: bool = False
    ) -> None:
        self.parent = parent
        self.start = start
        self.end = end
        self.present = 0
        self.locks = 0
        self.filled = 0
        self.released = 0
        self.shared = shared
        self.host: HostRun | None = None


class BlockCache:
    """The KV blocks of one replica.

    Attributes:
        blocks: how many there are.
        free: blocks that hold nothing.
        evictable: blocks that hold what no running call uses.
        evicted: blocks evicted since the start.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free = blocks
        self.evictable = 0
        self.evicted = 0
        self._root = CacheNode(None, 0, 0)
        self._root.locks = 1
        self._shared: dict[str, CacheNode] = {}
        self._releases = 0
        # (released, tie, node): nodes that could be evicted from when they were put here.
        self._leaves: list[tuple[int, int, CacheNode]] = []
        self._order = 0

    @property
    def available(self) -> int:
        """Blocks that could be had now."""
        return self.free + self.evictable

    def node(
        self, nodes: list[CacheNode | None], tree: ContentTree, index: int, system: str = ""
    ) -> CacheNode:
        """A program's node on this replica, made with its ancestors if need be.

        Args:
            nodes: the program's nodes here, None where not made yet.
            index: of the node; -1 for the root.
            system: name of the system prompt whose blocks node 0 is; it is shared by all programs
                that give this name. Empty for none.
        """
        if index < 0:
            return self._root
        made = nodes[index]
        missing: list[int] = []
        while made is None and index >= 0:
            missing.append(index)
            index = tree.parents[index]
            made = nodes[index] if index >= 0 else self._root
        node = made or self._root
        for index in reversed(missing):
            start, end = tree.starts[index], tree.ends[index]
            if system and index == 0:
                key = f"{system}:{end}"
                node = self._shared.setdefault(key, CacheNode(self._root, start, end, shared=True))
            else:
                node = CacheNode(node, start, end)
            nodes[index] = node
        return node

    def found(self, tail: CacheNode, upto: int) -> int:
        """How many leading blocks of a context are present, at most ``upto``."""
        node = tail
        while not node.present and node.parent is not None:
            node = node.parent
        return min(node.start + node.present, upto)

    def lock(self, tail: CacheNode) -> None:
        """A call that ends in this node runs: nothing of its context is evicted."""
        node: CacheNode | None = tail
        while node is not None:
            node.locks += 1
            if node.locks > 1:
                return
            self.evictable -= node.present
            node = node.parent

    def unlock(self, tail: CacheNode) -> None:
        """The call is over, or has lost its seat: its context may be evicted from now on."""
        self._releases += 1
        node: CacheNode | None = tail
        while node is not None:
            node.locks -= 1
            if node.locks:
                return
            self.evictable += node.present
            node.released = self._releases
            if node.present and not node.filled:
                self._expose(node)
            node = node.parent

    def unlock_unused(self, tail: CacheNode) -> None:
        """Undo the :meth:`lock` just done as if it had not been: the context was not used."""
        node: CacheNode | None = tail
        while node is not None:
            node.locks -= 1
            if node.locks:
                return
            self.evictable += node.present
            node = node.parent

    def fill(self, tail: CacheNode, upto: int) -> int:
        """Leading blocks up to ``upto`` of a locked context are present from now on.

        Returns:
            How many of them were not; the caller has taken blocks for them.
        """
        lacking: list[CacheNode] = []
        node: CacheNode | None = tail
        while node is not None and node.start >= upto:
            node = node.parent
        while node is not None and node.start + node.present < min(node.end, upto):
            lacking.append(node)
            if node.present:
                break
            node = node.parent
        added = 0
        for node in reversed(lacking):
            if not node.present and node.parent is not None:
                node.parent.filled += 1
            wanted = min(node.end, upto) - node.start
            added += wanted - node.present
            node.present = wanted
        return added

    def cut(self, tail: CacheNode, upto: int) -> int:
        """Blocks beyond ``upto`` that one call alone has locked are not present after all.

        Returns:
            How many were cut off; they belong to the caller again.
        """
        removed = 0
        node: CacheNode | None = tail
        while node is not None and node.locks == 1 and not node.filled and node.parent is not None:
            keep = max(0, min(node.present, upto - node.start))
            removed += node.present - keep
            if node.present and not keep:
                node.parent.filled -= 1
            node.present = keep
            if keep:
                break
            node = node.parent
        return removed

    def drop(self, nodes: Sequence[CacheNode | None]) -> int:
        """A program has ended: what only its contexts have is free at once.

        Args:
            nodes: the program's.

        Returns:
            Blocks freed.
        """
        freed = 0
        made = (node for node in nodes if node is not None)
        for node in sorted(made, key=lambda node: -node.start):
            if node.locks or node.filled or not node.present or node.shared:
                continue
            freed += node.present
            node.present = 0
            parent = node.parent
            if parent is not None:
                parent.filled -= 1
                if not parent.filled and not parent.locks and parent.present:
                    self._expose(parent)
        self.free += freed
        self.evictable -= freed
        return freed

    def age(self, nodes: Sequence[CacheNode | None]) -> None:
        """What only this program's contexts have goes first, as if it had been used never."""
        for node in nodes:
            if node is not None and node.present and not node.locks and not node.shared:
                node.released = 0
                if not node.filled:
                    self._expose(node)

    def take(self, blocks: int) -> None:
        """Take blocks, evicting for them if need be; at most :attr:`available`."""
        self.free -= blocks
        if self.free < 0:
            self._evict(-self.free)

    def give(self, blocks: int) -> None:
        """Give blocks back that hold nothing of use."""
        self.free += blocks

    def check(self) -> None:
        """Assert what must hold between any two calls of the other methods."""
        assert 0 <= self.free <= self.blocks, (self.free, self.blocks)
        assert 0 <= self.evictable <= self.blocks - self.free, (self.evictable, self.free)

    def _expose(self, node: CacheNode) -> None:
        self._order += 1
        heappush(self._leaves, (node.released, self._order, node))

    def _evict(self, wanted: int) -> None:
        leaves = self._leaves
        while wanted > 0:
            released, _, node = leaves[0]
            if node.locks or node.filled or not node.present or node.released != released:
                heappop(leaves)
                continue
            gone = min(wanted, node.present)
            wanted -= gone
            node.present -= gone
            self.free += gone
            self.evictable -= gone
            self.evicted += gone
            if node.present:
                continue
            heappop(leaves)
            parent = node.parent
            if parent is None:
                continue
            parent.filled -= 1
            if not parent.filled and not parent.locks and parent.present:
                parent.released = max(parent.released, node.released)
                self._expose(parent)
