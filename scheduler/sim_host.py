"""KV in the host memory of a simulated replica: what is kept of which program, and what goes first.

Beside what the device has of a node of a program's contexts (:class:`CacheNode`), the host has a
leading part of its blocks. It has something of a node only where it has all of the node's
ancestors, so a context is there up to some block and not beyond.

1. Whole blocks are stored; where there is no room, leading ones as far as there is.
2. When room is wanted, what was used longest ago goes first, the end of a context before its start.
   A call uses its whole context, so what a program left behind goes before what it goes on with.
3. What is being loaded stays, and what belongs to a pinned program. An aged program loses first.
4. What programs share stays while one of them has something that comes after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Literal

from autellix.errors import SettingsError

from .engine_model import EngineModel
from .prefix_cache import CacheNode

TierName = Literal["calls", "vllm", "programs"]
TIERS: tuple[TierName, ...] = ("calls", "vllm", "programs")
# From the decision to the first byte and from the last one to the next step.
_LOAD_START_S = 0.0005
# Weight of the newest in the mean of how long things stay.
_NEWEST = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The host tier of a replica.

    Attributes:
        gib: memory for KV, GiB.
        tier: ``programs`` keeps every program's KV, is room for admission, chooses the sooner way
            back, decides about programs that are away and frees what has ended at once. ``vllm`` is
            vLLM's own offloading: blocks come and go by their last use alone, and what is there is
            always loaded. ``calls`` keeps the KV of preempted calls alone, as in the paper.
        load_start_s: see :class:`KvRates`.
        fetches_ahead: whether ``programs`` loads KV before a program's next call comes.

    Raises:
        SettingsError: a value is impossible.
    """

    gib: float
    tier: TierName = "programs"
    load_start_s: float = _LOAD_START_S
    fetches_ahead: bool = True

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise SettingsError(f"a host tier is one of {', '.join(TIERS)}, got {self.tier!r}")
        if not 0 < self.gib < float("inf"):
            raise SettingsError(
                f"a host tier needs more than 0 GiB, got {self.gib!r}; leave it out to do without"
            )

    def blocks(self, model: EngineModel) -> int:
        """Blocks of KV that it holds."""
        return int(self.gib * 2**30 / (model.kv_bytes_per_token * model.block_tokens))

    def room_tokens(self, model: EngineModel) -> int:
        """Room for programs in the eyes of the gate, tokens: what the device has is there too."""
        return self.blocks(model) * model.block_tokens if self.tier == "programs" else 0


class HostRun:
    """What the host has of a node.

    Attributes:
        node: of a program's contexts.
        owner: whose it is.
        blocks: how many leading blocks of it.
        filled: children of the node of which the host has something.
        holds: loads under way that end here, and held children.
        used: when it was used last, in the tier's count.
        ready_s: when its last load into the device ends.
    """

    __slots__ = ("blocks", "filled", "holds", "node", "owner", "ready_s", "used", "used_s")

    def __init__(self, node: CacheNode, owner: _Owner) -> None:
        self.node = node
        self.owner = owner
        self.blocks = 0
        self.filled = 0
        self.holds = 0
        self.used = 0
        self.used_s = 0.0
        self.ready_s = 0.0


class _Owner:
    """A program that has something in the host."""

    __slots__ = ("over", "pinned", "runs")

    def __init__(self) -> None:
        self.pinned = False
        self.over = False
        self.runs: dict[HostRun, None] = {}


class HostKv:
    """The host's blocks.

    Args:
        blocks: how many there are.

    Attributes:
        free: blocks that hold nothing.
        evicted: blocks that had to go since the start.
        stays_s: how long what is not used stays, a running mean over what had to go, seconds;
            infinite before anything had to.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free = blocks
        self.evicted = 0
        self.stays_s = math.inf
        self._now = 0.0
        self._owners: dict[str, _Owner] = {}
        self._uses = 0
        # (last use, -start, tie, run): runs that could lose their end when they were put here.
        self._ends: list[tuple[int, int, int, HostRun]] = []
        self._ties = 0

    def found(self, tail: CacheNode, upto: int) -> int:
        """How many leading blocks of a context there are, at most ``upto``."""
        run = self._last(tail)
        return 0 if run is None else min(run.node.start + run.blocks, upto)

    def ready_s(self, tail: CacheNode) -> float:
        """When the loads of a context that are under way end; in the past if there are none."""
        run = self._last(tail)
        return 0.0 if run is None else run.ready_s

    def store(self, program: str, tail: CacheNode, upto: int, now: float = 0.0) -> int:
        """A program's context is to be there up to a block; blocks that are so from now on."""
        owner = self._use(program, now)
        lacking: list[CacheNode] = []
        for node in _upwards(tail):
            have = node.host.blocks if node.host is not None else 0
            if have:
                self._touch(node, owner)
            if node.start < upto and have < min(node.end, upto) - node.start:
                lacking.append(node)
            if have:
                break
        # What is there already, or has just come, does not go for what comes after it.
        last = self._last(tail)
        held = [] if last is None else [last.node]
        for node in held:
            self._hold(node)
        stored = 0
        for node in reversed(lacking):
            if node.host is None:
                node.host = HostRun(node, owner)
            wanted = min(node.end, upto) - node.start - node.host.blocks
            self._make_room(wanted)
            got = min(wanted, self.free)
            if got:
                self._grow(node.host, owner, got)
                self._hold(node)
                held.append(node)
                stored += got
            if got < wanted:
                break
        for node in reversed(held):
            self._release(node)
        return stored

    def hold(
        self, program: str, tail: CacheNode, ready_s: float, now: float = 0.0
    ) -> CacheNode | None:
        """A load of a context begins, and ends at that time: what to give to :meth:`release`."""
        run = self._last(tail)
        if run is None:
            return None
        self._touch(run.node, self._use(program, now))
        run.ready_s = max(run.ready_s, ready_s)
        self._hold(run.node)
        return run.node

    def release(self, node: CacheNode) -> None:
        """The load that held this has ended."""
        self._release(node)

    def pin(self, program: str) -> None:
        """Keep all that a program has."""
        self._owner(program).pinned = True

    def unpin(self, program: str) -> None:
        """Let it go again, in its turn."""
        owner = self._owners.get(program)
        if owner is not None and owner.pinned:
            owner.pinned = False
            for run in owner.runs:
                self._expose(run)

    def age(self, program: str) -> None:
        """It goes first, as if it had been used never."""
        owner = self._owners.get(program)
        if owner is not None:
            for run in owner.runs:
                run.used = 0
                self._expose(run)

    def drop(self, program: str) -> int:
        """Free what only this program has, after loads that are under way; blocks freed now."""
        owner = self._owners.pop(program, None)
        if owner is None:
            return 0
        owner.pinned, owner.over = False, True
        freed = 0
        for run in sorted(owner.runs, key=lambda run: -run.node.start):
            if not run.blocks or run.filled or run.holds or run.node.shared:
                continue
            freed += run.blocks
            self._shrink(run, run.blocks)
        return freed

    def check(self) -> None:
        """Assert what must hold between any two calls of the other methods."""
        assert 0 <= self.free <= self.blocks, (self.free, self.blocks)
        runs = {run for owner in self._owners.values() for run in owner.runs}
        assert sum(run.blocks for run in runs if not run.node.shared) <= self.blocks - self.free
        for run in runs:
            size = run.node.end - run.node.start
            assert 0 <= run.blocks <= size, (run.blocks, size)
            above = run.node.parent
            if run.blocks and above is not None and above.parent is not None:
                assert above.host is not None
                assert above.host.blocks == above.end - above.start, "a gap in a context"

    # How it is done.

    def _owner(self, program: str) -> _Owner:
        owner = self._owners.get(program)
        if owner is None:
            owner = self._owners[program] = _Owner()
        return owner

    def _use(self, program: str, now: float) -> _Owner:
        owner = self._owner(program)
        self._uses += 1
        self._now = now
        return owner

    def _touch(self, node: CacheNode, owner: _Owner) -> None:
        run = node.host
        assert run is not None
        run.used, run.used_s = self._uses, self._now
        if run.owner is not owner:
            run.owner = owner
            owner.runs[run] = None

    def _last(self, tail: CacheNode) -> HostRun | None:
        """What there is of the last node of a context of which there is something."""
        for node in _upwards(tail):
            if node.host is not None and node.host.blocks:
                return node.host
        return None

    def _grow(self, run: HostRun, owner: _Owner, blocks: int) -> None:
        if not run.blocks:
            above = run.node.parent
            if above is not None and above.host is not None:
                above.host.filled += 1
        run.blocks += blocks
        run.used, run.used_s = self._uses, self._now
        run.owner = owner
        owner.runs[run] = None
        self.free -= blocks
        self._expose(run)

    def _shrink(self, run: HostRun, blocks: int) -> None:
        run.blocks -= blocks
        self.free += blocks
        if run.blocks:
            return
        run.owner.runs.pop(run, None)
        above = run.node.parent
        if above is not None and above.host is not None:
            above.host.filled -= 1
            above.host.used = max(above.host.used, run.used)
            above.host.used_s = max(above.host.used_s, run.used_s)
            self._unused(above.host)

    def _hold(self, node: CacheNode) -> None:
        for above in _upwards(node):
            assert above.host is not None
            above.host.holds += 1
            if above.host.holds > 1:
                return

    def _release(self, node: CacheNode) -> None:
        for above in _upwards(node):
            assert above.host is not None
            above.host.holds -= 1
            if above.host.holds:
                return
            self._unused(above.host)

    def _may_go(self, run: HostRun) -> bool:
        return bool(run.blocks) and not (run.filled or run.holds or run.owner.pinned)

    def _unused(self, run: HostRun) -> None:
        """Nothing holds the run any more: it may go, and goes where its program is over."""
        if run.owner.over and self._may_go(run):
            self._shrink(run, run.blocks)
        else:
            self._expose(run)

    def _expose(self, run: HostRun) -> None:
        if self._may_go(run):
            self._ties += 1
            heappush(self._ends, (run.used, -run.node.start, self._ties, run))

    def _stayed(self, idle_s: float) -> None:
        first = self.stays_s == math.inf
        self.stays_s = idle_s if first else self.stays_s + _NEWEST * (idle_s - self.stays_s)

    def _make_room(self, wanted: int) -> None:
        ends = self._ends
        while self.free < wanted and ends:
            used, start, tie, run = ends[0]
            if not self._may_go(run):
                heappop(ends)
            elif run.used != used:
                heapreplace(ends, (run.used, start, tie, run))
            else:
                gone = min(wanted - self.free, run.blocks)
                if gone == run.blocks:
                    heappop(ends)
                self.evicted += gone
                if used:
                    self._stayed(self._now - run.used_s)
                self._shrink(run, gone)


def _upwards(tail: CacheNode) -> Iterator[CacheNode]:
    """A context's nodes from its end to its start, without the root that all contexts have."""
    node = tail
    while node.parent is not None:
        yield node
        node = node.parent
