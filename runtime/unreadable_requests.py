"""Requests that vLLM's front end stumbles over while it reads them are refused, not its own fault.

It takes some shapes for granted that its own schema does not ask for, as a message of a response
with at least one part. What it raises there is an error of Python's, which the client would see as
the server's. Before a prompt is rendered no engine has been asked: only the request can be at
fault.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .vllm_names import OnlineRenderer, VLLMClientError

T = TypeVar("T")
_OF_ITS_SHAPE = (LookupError, TypeError, AttributeError, RecursionError)


def refuse_unreadable(renderer: OnlineRenderer) -> None:
    """From now on what ``renderer`` cannot read is the client's error, as vLLM words those."""
    for name in ("render_chat", "render_completion", "render_responses"):
        setattr(renderer, name, _refusing(getattr(renderer, name)))


def _refusing(render: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Any]:
    @functools.wraps(render)
    async def rendering(*args: Any, **kwargs: Any) -> T:
        try:
            return await render(*args, **kwargs)
        except _OF_ITS_SHAPE as cause:
            said = f"{type(cause).__name__}: {cause}"
            raise VLLMClientError(
                f"The request has a shape that cannot be read ({said})"
            ) from cause

    return rendering
