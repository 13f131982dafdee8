"""What a call's tokens cost in time, learned from receipts.

A call's service is fitted as ``output_token_s * output tokens + prompt_token_s * prompt tokens
computed``, by least squares over the last few thousand calls. A call with a long answer weighs no
more than one with a short one. Where prompts hardly differ, the fit says nothing of them: then the
usual relation of the two holds.
"""

from __future__ import annotations

from .tickets import Receipt

_CALLS = 3000  # that the fit remembers
_OUTPUTS = 200  # calls over which the length of an answer is averaged
# Before there are receipts: a GPU's step, and so many prompt tokens computed in the time of one.
_STEP_S, _PROMPT_TOKENS_A_STEP = 0.02, 200
_PRIOR = 5e5  # how far the usual relation holds: as much as 500 prompts of 1,000 tokens do
_LEAST = 0.1  # a prompt's token costs at least so much of the usual


class CallRates:
    """The rates of a set of replicas that are alike.

    Attributes:
        output_token_s: service for a token of an answer, seconds.
        prompt_token_s: service for a token of a prompt that is not cached, seconds.
        output_tokens: tokens of an answer, mean over the last calls.
    """

    __slots__ = (
        "_oo",
        "_os",
        "_ou",
        "_us",
        "_uu",
        "output_token_s",
        "output_tokens",
        "prompt_token_s",
    )

    def __init__(self) -> None:
        self.output_token_s = _STEP_S
        self.prompt_token_s = _STEP_S / _PROMPT_TOKENS_A_STEP
        self.output_tokens = 100.0
        # Weighted sums of products of outputs (o), uncached prompts (u) and service (s).
        self._oo = self._ou = self._uu = self._os = self._us = 0.0

    def learn(self, receipt: Receipt) -> None:
        """A call has ended; one that was not served says nothing."""
        output, service_s = receipt.output_tokens, receipt.service_s
        if not output or not service_s:
            return
        computed = receipt.prompt_tokens - receipt.cached_tokens
        keep, weight = 1 - 1 / _CALLS, 1 / output
        self._oo = keep * self._oo + weight * output * output
        self._ou = keep * self._ou + weight * output * computed
        self._uu = keep * self._uu + weight * computed * computed
        self._os = keep * self._os + weight * output * service_s
        self._us = keep * self._us + weight * computed * service_s
        usual_s = self.output_token_s / _PROMPT_TOKENS_A_STEP
        uu, us = self._uu + _PRIOR, self._us + _PRIOR * usual_s
        found_s = (self._oo * us - self._ou * self._os) / (self._oo * uu - self._ou * self._ou)
        self.prompt_token_s = max(found_s, _LEAST * usual_s)
        self.output_token_s = max((self._os - self.prompt_token_s * self._ou) / self._oo, 1e-6)
        self.output_tokens += (output - self.output_tokens) / _OUTPUTS
