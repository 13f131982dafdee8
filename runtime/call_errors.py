"""Says in words why the engine refused a call."""

from __future__ import annotations

from autellix.errors import CallRefusedError, ContextLengthError

# How vLLM words it, in its front end, its input processor and its parameters' checks.
_REFUSED = "The engine refused the call: "
_DOES_NOT_FIT = "The prompt and the tokens asked for do not fit the model: "
_TOO_LONG = ("context length", "maximum model length", "max_model_len")


def call_error(text: str) -> CallRefusedError:
    """The error for what vLLM says of a call; ContextLengthError where it is too long.

    What another process has put into these words already stays as it is.
    """
    text = " ".join(text.split())
    if text.startswith(_DOES_NOT_FIT):
        return ContextLengthError(text)
    if any(sign in text for sign in _TOO_LONG):
        return ContextLengthError(
            f"{_DOES_NOT_FIT}{text} Shorten the prompt, ask for fewer tokens, or raise the limit "
            "with --engine-arg max_model_len=N where the model allows it."
        )
    return CallRefusedError(_REFUSED + text.removeprefix(_REFUSED))
