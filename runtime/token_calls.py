"""Calls of plain token ids, of a length that is known beforehand: for measurements of an engine.

vLLM is imported with the first call, when the engine's environment has been set up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..scheduler.tickets import Ticket
from .protocols import EngineCall

if TYPE_CHECKING:
    from .vllm_names import SamplingParams


def exact_sampling(output_tokens: int, *, read_prefix_cache: bool = True) -> SamplingParams:
    """Sampling that gives so many tokens, neither fewer nor more, in one piece at the end.

    Args:
        read_prefix_cache: whether the prompt's KV may come from the prefix cache.
    """
    from .vllm_names import RequestOutputKind, SamplingParams

    return SamplingParams(
        temperature=0,
        max_tokens=output_tokens,
        min_tokens=output_tokens,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_reading_prefix_cache=not read_prefix_cache,
    )


def token_call(
    ticket: Ticket, prompt: Sequence[int], output_tokens: int, *, read_prefix_cache: bool = True
) -> EngineCall:
    """A call with that prompt, for an engine.

    Args:
        prompt: token ids.
        output_tokens: how many it generates.
        read_prefix_cache: whether the prompt's KV may come from the prefix cache.
    """
    sampling = exact_sampling(output_tokens, read_prefix_cache=read_prefix_cache)
    sampling.extra_args = dict(ticket.to_flat())
    return EngineCall(ticket=ticket, prompt={"prompt_token_ids": list(prompt)}, sampling=sampling)
