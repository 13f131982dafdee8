"""How long an engine takes for a token of a prompt, measured beside everything else it does.

A step with prompts in it lasts longer than a typical one; the difference is theirs. Sums over many
steps even out what a single one says, and old steps fade.
"""

from __future__ import annotations

# In a step with fewer, other differences between steps count for more.
LEAST_PROMPT_TOKENS = 32
_MOST_TOKENS = 1 << 16


class PrefillRate:
    """The rate of one replica.

    Attributes:
        token_s: seconds of the engine for a prompt token; 0 before there is a measurement.
    """

    __slots__ = ("_seconds", "_tokens", "token_s")

    def __init__(self) -> None:
        self.token_s = 0.0
        self._seconds = 0.0
        self._tokens = 0

    def add(self, prompt_tokens: int, step_s: float, typical_step_s: float) -> None:
        """Count a step; one with hardly a prompt in it says nothing.

        Args:
            prompt_tokens: computed in it.
            step_s: what it lasted, seconds.
            typical_step_s: what one without prompts lasts, seconds.
        """
        if prompt_tokens < LEAST_PROMPT_TOKENS:
            return
        self._seconds += max(step_s - typical_step_s, 0.0)
        self._tokens += prompt_tokens
        self.token_s = self._seconds / self._tokens
        if self._tokens > _MOST_TOKENS:
            self._seconds /= 2
            self._tokens //= 2
