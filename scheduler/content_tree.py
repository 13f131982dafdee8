"""What a program's contexts share, as a tree of runs of blocks that is known beforehand.

Traces tell how much of a prompt an earlier call had, not which call that was; it is found here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Contexts(Protocol):
    """The part of a call's description that says what its context shares with others."""

    @property
    def parents(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def output_tokens(self) -> int: ...  # noqa: D102
    @property
    def shared_prefix_tokens(self) -> int: ...  # noqa: D102


@dataclass(slots=True)
class ContentTree:
    """The contexts of a program's calls as a tree of runs of blocks.

    Attributes:
        starts, ends: first block and end of each node, counted from the start of the context.
        parents: index of each node's parent, -1 for none.
        tails: the node in which each call's context ends.
        shared_blocks: whole blocks that each call's prompt shares with an earlier call.
    """

    starts: list[int]
    ends: list[int]
    parents: list[int]
    tails: list[int]
    shared_blocks: list[int]


def content_tree(
    calls: Sequence[Contexts], block_tokens: int, system_tokens: int = 0
) -> ContentTree:
    """Build the tree.

    Args:
        calls: in the order of the trace.
        system_tokens: leading prompt tokens that all calls share, with other programs too; then
            node 0 is theirs.
    """
    tree = ContentTree([], [], [], [], [])
    system = system_tokens // block_tokens
    if system:
        tree.starts.append(0)
        tree.ends.append(system)
        tree.parents.append(-1)
    bases = prefix_bases(calls)
    for call, base in zip(calls, bases, strict=True):
        full = max(0, (call.prompt_tokens + call.output_tokens - 1) // block_tokens)
        shared = 0
        if base >= 0:
            most = min(call.shared_prefix_tokens, call.prompt_tokens) // block_tokens
            shared = min(most, tree.ends[tree.tails[base]] if tree.tails[base] >= 0 else 0, full)
        node = tree.tails[base] if shared else -1
        if system and shared < system <= full:
            node, shared = 0, system
        while node >= 0 and tree.starts[node] >= shared:
            node = tree.parents[node]
        if node >= 0 and shared < tree.ends[node]:
            node = _split(tree, node, shared)
        if full > shared:
            tree.starts.append(shared)
            tree.ends.append(full)
            tree.parents.append(node)
            node = len(tree.starts) - 1
        tree.tails.append(node)
        tree.shared_blocks.append(shared)
    return tree


def prefix_bases(calls: Sequence[Contexts]) -> list[int]:
    """The earlier call with which each call shares its prefix, -1 for none."""
    finder = _BaseFinder(calls)
    return [finder.base(index) for index in range(len(calls))]


def _split(tree: ContentTree, node: int, at: int) -> int:
    """Cut a node in two; the new upper part. The lower one keeps its calls and children."""
    tree.starts.append(tree.starts[node])
    tree.ends.append(at)
    tree.parents.append(tree.parents[node])
    upper = len(tree.starts) - 1
    tree.starts[node] = at
    tree.parents[node] = upper
    return upper


class _BaseFinder:
    """Finds the earlier call with which a call shares its prefix; traces tell the length alone.

    In this order: a parent that the call continues exactly; a call with exactly that prompt (a
    sibling, or an earlier turn); the parent with most in common; the latest call that is as long.
    """

    def __init__(self, calls: Sequence[Contexts]) -> None:
        self._calls = calls
        self._by_prompt: dict[int, int] = {}
        self._longest = -1

    def base(self, index: int) -> int:
        """The base of the call, -1 for none; to be asked for every call in order."""
        call = self._calls[index]
        found = self._search(index, call) if call.shared_prefix_tokens > 0 else -1
        self._by_prompt[call.prompt_tokens] = index
        if self._longest < 0 or self._length(index) >= self._length(self._longest):
            self._longest = index
        return found

    def _length(self, index: int) -> int:
        call = self._calls[index]
        return call.prompt_tokens + call.output_tokens

    def _search(self, index: int, call: Contexts) -> int:
        shared = call.shared_prefix_tokens
        lengths = [(self._length(parent), parent) for parent in call.parents]
        for length, parent in lengths:
            if length == shared:
                return parent
        if shared in self._by_prompt:
            return self._by_prompt[shared]
        longest = max(lengths, default=(-1, -1))
        if longest[0] >= shared:
            return longest[1]
        if self._longest >= 0 and self._length(self._longest) < shared:
            return self._longest
        return next((i for i in range(index - 1, -1, -1) if self._length(i) >= shared), -1)
