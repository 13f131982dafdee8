"""How a call goes on when the replica that served it is lost in the middle.

Nothing is answered twice: what the caller has had stays, and the rest comes from another replica.

1. The caller has had nothing: the call runs again from its start.
2. Tokens depend only on those before them: the call goes on after them, which are computed again
   as a part of the prompt (one prefill; their KV may even be cached there).
3. Tokens depend on more (a seed's random numbers, a grammar, a stop text, penalties), but come out
   the same each time: the call runs again, and what the caller has had is left out.
4. Otherwise the rest could contradict what was delivered: the caller gets an error.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from autellix.errors import CallError, ReplicaLostError

from .protocols import EngineCall

# A call that gets nowhere on replica after replica is more likely their end than their victim.
_MOST_LOST = 5


class WayOn(Enum):
    """How a call goes on."""

    AGAIN = "again"
    AFTER = "after"
    SKIPPING = "skipping"


@dataclass(slots=True)
class Delivered:
    """What a caller has had of the answer, per choice of the answer.

    Attributes:
        is_delta: whether an output holds what is new, not all there is so far.
        token_ids: of the only choice.
        whole: how many of them have been delivered as text too; the text of the last ones may have
            been held back in the middle of a character.
        characters: of its text.
        tokens: of all choices.
    """

    is_delta: bool
    token_ids: list[int] = field(default_factory=list)
    whole: int = 0
    characters: int = 0
    tokens: int = 0

    def add(self, output: Any) -> None:
        """The caller gets an output."""
        choices = output.outputs
        first = choices[0]
        tokens = len(first.token_ids)
        if len(choices) > 1:
            tokens = sum(len(choice.token_ids) for choice in choices)
        if not self.is_delta:
            self.tokens = tokens
            return
        self.tokens += tokens
        self.token_ids.extend(first.token_ids)
        if first.text:
            self.characters += len(first.text)
            self.whole = len(self.token_ids)


def way_on(call: EngineCall, delivered: Delivered) -> WayOn:
    """How the call can go on on another replica.

    Args:
        call: as it was given.
        delivered: what its caller has had.

    Raises:
        CallError: it cannot.
    """
    if not delivered.tokens or not delivered.is_delta:
        # Outputs that hold everything so far replace each other; the caller keeps the last.
        return WayOn.AGAIN
    if _is_memoryless(call.sampling) and "prompt_token_ids" in call.prompt:
        return WayOn.AFTER
    if _repeats(call.sampling):
        return WayOn.SKIPPING
    raise CallError(
        f"The replica that served the call was lost after {delivered.tokens} tokens, and this "
        "call cannot be taken up where it ended: its sampling has no seed, and a grammar, a stop "
        "text, penalties or several choices. Call again, set a seed, or do not stream."
    )


def _is_memoryless(sampling: Any) -> bool:
    """Whether a token depends on nothing but the tokens before it, prompt or not."""
    return (
        sampling.n == 1
        and (sampling.seed is None or not sampling.temperature)
        and not sampling.stop
        and sampling.structured_outputs is None
        and not sampling.min_tokens
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
        and sampling.repetition_penalty == 1.0
        and sampling.prompt_logprobs is None
    )


def _repeats(sampling: Any) -> bool:
    """Whether the same call is answered with the same tokens."""
    return sampling.n == 1 and (not sampling.temperature or sampling.seed is not None)


def rest_of(call: EngineCall, delivered: Delivered) -> EngineCall:
    """The call that generates what comes after ``delivered``."""
    had = delivered.token_ids[: delivered.whole]
    sampling = copy(call.sampling)
    if sampling.max_tokens is not None:
        sampling.max_tokens -= len(had)
    prompt = {**call.prompt, "prompt_token_ids": [*call.prompt["prompt_token_ids"], *had]}
    return replace(call, prompt=prompt, sampling=sampling)


class Rest:
    """Turns the outputs of a second attempt into the rest of the first one's answer.

    Args:
        call: as it was given first.
        delivered: what the caller has had of it.
        way: how the second attempt was made.
    """

    def __init__(self, call: EngineCall, delivered: Delivered, way: WayOn) -> None:
        self._way = way
        self._prompt_ids = call.prompt.get("prompt_token_ids")
        self._delivered = delivered
        self._known: list[int] = []
        self._tokens = self._characters = 0
        if way is WayOn.AFTER:
            # The last tokens' text was held back, so they may come out otherwise: only their
            # number is known to the caller.
            del delivered.token_ids[delivered.whole :]
            self._tokens = delivered.tokens - delivered.whole
        elif way is WayOn.SKIPPING:
            self._known = list(delivered.token_ids)
            self._tokens, self._characters = delivered.tokens, delivered.characters

    def cut(self, output: Any) -> bool:
        """Leave in the output what is new to the caller; whether there is anything.

        Raises:
            CallError: the second attempt says something else than what was delivered.
        """
        if self._way is WayOn.AFTER:
            output.prompt_token_ids = self._prompt_ids
        if not self._tokens and not self._characters:
            return True
        choice = output.outputs[0]
        had = list(choice.token_ids[: self._tokens])
        if self._way is WayOn.AFTER:
            self._delivered.token_ids.extend(had)
        elif had != self._known[: len(had)]:
            raise CallError(
                "The replica that served the call was lost, and another one answers differently "
                "from what was delivered already. Call again."
            )
        self._tokens -= len(had)
        del self._known[: len(had)]
        choice.token_ids = list(choice.token_ids[len(had) :])
        if choice.logprobs is not None:
            choice.logprobs = choice.logprobs[len(had) :]
        hidden = min(self._characters, len(choice.text))
        self._characters -= hidden
        choice.text = choice.text[hidden:]
        return bool(choice.token_ids or choice.text or output.finished)


class Continuation:
    """A call's answer over all the replicas that it takes.

    Args:
        call: as it was given.

    Attributes:
        attempt: the call as the next replica is to have it.
    """

    def __init__(self, call: EngineCall) -> None:
        self.attempt = call
        self._call = call
        self._delivered = Delivered(_is_delta(call))
        self._rest: Rest | None = None
        self._lost = self._tokens_when_lost = 0

    def take(self, output: Any) -> bool:
        """Leave in an output what is new to the caller, who gets it; whether there is anything.

        Raises:
            CallError: it contradicts what was delivered.
        """
        if self._rest is not None and not self._rest.cut(output):
            return False
        self._delivered.add(output)
        return True

    def replica_lost(self, cause: ReplicaLostError) -> None:
        """The present attempt has ended before its time; from now on :attr:`attempt` is the next.

        Raises:
            CallError: the call cannot go on, or it is not worth another try.
        """
        delivered = self._delivered
        self._lost = self._lost + 1 if delivered.tokens == self._tokens_when_lost else 1
        self._tokens_when_lost = delivered.tokens
        if self._lost >= _MOST_LOST:
            raise CallError(
                f"{self._lost} replicas were lost while they served this call; it is not tried "
                "again. The engine's log says what they died of."
            ) from cause
        way = way_on(self._call, delivered)
        self._rest = Rest(self._call, delivered, way)
        self.attempt = rest_of(self._call, delivered) if way is WayOn.AFTER else self._call


def _is_delta(call: EngineCall) -> bool:
    """Whether the call's outputs hold what is new, not all there is so far."""
    kind = getattr(call.sampling, "output_kind", None)
    return getattr(kind, "name", "") == "DELTA"
