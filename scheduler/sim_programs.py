"""Programs as the simulator runs them: lengths of calls, what they share, when they may start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from autellix.errors import InputError

from .content_tree import ContentTree, content_tree

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCall:
    """One call of a program.

    Attributes:
        parents: indices of the calls that must have ended before; of earlier calls only.
        prompt_tokens: the whole prompt, history included.
        output_tokens: tokens it generates.
        shared_prefix_tokens: leading part of the prompt that an earlier call of the program has in
            its context.
        tool_s: seconds from the end of the last parent, or from the program's start, to the call.
        node: of the program's graph, that makes the call; empty where that is not known.
    """

    parents: tuple[int, ...] = ()
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    tool_s: float = 0.0
    node: str = ""

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise InputError(
                f"a call needs at least one prompt token and one output token, got "
                f"{self.prompt_tokens} and {self.output_tokens}"
            )
        if not 0 <= self.shared_prefix_tokens <= self.prompt_tokens:
            raise InputError(
                f"shared_prefix_tokens must be between 0 and the prompt's {self.prompt_tokens}, "
                f"got {self.shared_prefix_tokens}"
            )
        if not 0 <= self.tool_s < float("inf"):
            raise InputError(f"tool time must be a number of seconds >= 0, got {self.tool_s!r}")


class SimProgram:
    """A program, and what follows from its description whatever the schedule.

    Args:
        name: unique in a run.
        calls: parents before their children.
        system: name of a system prompt that starts every prompt, the same in other programs.
        system_tokens: its length, tokens.
        kind: what programs like this one are called, as the name of a graph does.
        tenant: on whose behalf it runs.
        share: of the engine that the tenant has against others.

    Raises:
        InputError: no calls, a parent that is not an earlier call, or a prompt shorter than the
            system prompt.
    """

    __slots__ = (
        "_trees",
        "calls",
        "children",
        "kind",
        "name",
        "output_tokens",
        "roots",
        "share",
        "system",
        "system_tokens",
        "tenant",
    )

    def __init__(
        self,
        name: str,
        calls: Sequence[SimCall],
        *,
        system: str = "",
        system_tokens: int = 0,
        kind: str = "",
        tenant: str = "",
        share: float = 1.0,
    ) -> None:
        if not calls:
            raise InputError(f"program {name!r} has no calls; leave it out")
        self.name = name
        self.kind = kind
        self.tenant = tenant
        self.share = share
        self.calls = tuple(calls)
        self.system = system
        self.system_tokens = system_tokens if system else 0
        self.output_tokens = sum(call.output_tokens for call in calls)
        self.roots: list[int] = []
        self.children: list[list[int]] = [[] for _ in calls]
        self._trees: dict[int, ContentTree] = {}
        for index, call in enumerate(self.calls):
            if call.prompt_tokens < self.system_tokens:
                raise InputError(
                    f"call {index} of program {name!r} has {call.prompt_tokens} prompt tokens, "
                    f"fewer than the system prompt's {self.system_tokens}"
                )
            if not call.parents:
                self.roots.append(index)
            for parent in call.parents:
                if not 0 <= parent < index:
                    raise InputError(
                        f"call {index} of program {name!r} has parent {parent}, which does not "
                        "come before it; list parents before children (a cycle has no such order)"
                    )
                self.children[parent].append(index)

    def __len__(self) -> int:
        return len(self.calls)

    def __repr__(self) -> str:
        return f"<SimProgram {self.name}: {len(self.calls)} calls>"

    def again(self, name: str) -> SimProgram:
        """The same program under another name."""
        other = object.__new__(SimProgram)
        for slot in SimProgram.__slots__:
            setattr(other, slot, getattr(self, slot))
        other.name = name
        return other

    def longest_chains(self, took: Sequence[N], before: Sequence[N]) -> list[N]:
        """How long the longest chain is that begins with each call.

        Args:
            took: how long each call takes, in any unit.
            before: what lies between each call and the last of its parents, in the same unit.
        """
        found = list(took)
        for index in range(len(found) - 1, -1, -1):
            children = self.children[index]
            found[index] += max((before[child] + found[child] for child in children), default=0)
        return found

    @property
    def longest_context(self) -> int:
        """Prompt and output of its longest call, tokens."""
        return max(call.prompt_tokens + call.output_tokens for call in self.calls)

    def tree(self, block_tokens: int) -> ContentTree:
        """What its contexts share, in blocks of that size."""
        tree = self._trees.get(block_tokens)
        if tree is None:
            tree = content_tree(self.calls, block_tokens, self.system_tokens)
            self._trees[block_tokens] = tree
        return tree
