"""Says in words why the engine refused a call."""

from __future__ import annotations

from autellix.errors import CallError, ContextLengthError

# How vLLM words it, in its front end, its input processor and its parameters' checks.
_TOO_LONG = ("context length", "maximum model length", "max_model_len")


def call_error(text: str) -> CallError:
    """The error for what vLLM says of a call; ContextLengthError where it is too long."""
    text = " ".join(text.split())
    if any(sign in text for sign in _TOO_LONG):
        return ContextLengthError(
            f"The prompt and the tokens asked for do not fit the model: {text} Shorten the prompt, "
            "ask for fewer tokens, or raise the limit with --engine-arg max_model_len=N where the "
            "model allows it."
        )
    return CallError(f"The engine refused the call: {text}")
