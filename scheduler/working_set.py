"""How much KV a program needs to go on without computing anything twice.

A program's *working set* is its context now and what its next call will add. It is estimated from
what is known of past and present calls:

1. The context now is the longest of the running calls' prompts and of the last few contexts.
2. Calls that run beside each other share what an earlier call had computed; of all but the longest
   only the *fresh* part counts, the prompt tokens that no earlier call of the program had.
3. What is still to be generated, or what the next call adds, is the program's own mean; until it
   has one, the mean over the replica's calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_LAST_CONTEXTS = 4
_MEAN_OVER = 200
# A generated token keeps a full engine about as busy as so many prompt tokens.
_OUTPUT_WORK = 4


@dataclass(slots=True)
class CallMeans:
    """Means over the calls that have ended on a replica.

    Attributes:
        fresh_tokens: prompt tokens that no earlier call of the program had.
        output_tokens: tokens generated.
    """

    fresh_tokens: float = 0.0
    output_tokens: float = 0.0
    _calls: int = 0

    def add(self, fresh_tokens: int, output_tokens: int) -> None:
        """One more call has ended; the older ones fade."""
        self._calls = min(self._calls + 1, _MEAN_OVER)
        self.fresh_tokens += (fresh_tokens - self.fresh_tokens) / self._calls
        self.output_tokens += (output_tokens - self.output_tokens) / self._calls


class WorkingSet:
    """The working set of one program.

    Args:
        means: over all calls of the replica.
    """

    __slots__ = ("_calls", "_contexts", "_ended", "_fresh", "_means", "_output")

    def __init__(self, means: CallMeans) -> None:
        self._means = means
        self._calls: dict[str, tuple[int, int]] = {}
        self._contexts: deque[int] = deque(maxlen=_LAST_CONTEXTS)
        self._ended = 0
        self._fresh = 0
        self._output = 0

    def call_comes(self, call: str, prompt_tokens: int, known_tokens: int) -> None:
        """A call is there; ``known_tokens`` of its prompt an earlier call of the program had."""
        self._calls[call] = (prompt_tokens, prompt_tokens - known_tokens)

    def call_gone(self, call: str) -> None:
        """A call was given up, or its cost is not known."""
        del self._calls[call]

    def call_ended(self, call: str, output_tokens: int) -> None:
        """A call has ended: its context is one of the last."""
        prompt, fresh = self._calls.pop(call)
        self._contexts.append(prompt + output_tokens)
        self._ended += 1
        self._fresh += fresh
        self._output += output_tokens
        self._means.add(fresh, output_tokens)

    @property
    def work_tokens(self) -> int:
        """Work of its calls so far, in prompt tokens computed once."""
        return self._fresh + _OUTPUT_WORK * self._output

    @property
    def tokens(self) -> int:
        """KV tokens that the program needs."""
        means, weight = self._means, 1 / (self._ended + 1)
        output = (self._output + means.output_tokens) * weight
        context = max(self._contexts, default=0)
        if not self._calls:
            return int(context + (self._fresh + means.fresh_tokens) * weight + output)
        longest, its_fresh = max(self._calls.values())
        beside = sum(fresh for _, fresh in self._calls.values()) - its_fresh
        return int(max(context, longest) + beside + output * len(self._calls))
