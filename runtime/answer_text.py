"""What a call's stream of outputs says, put together."""

from __future__ import annotations

from typing import Any


class AnswerText:
    """Gathers the text of a stream.

    Args:
        pieces: whether each output brings what is new; else it brings the whole so far.
    """

    def __init__(self, *, pieces: bool) -> None:
        self._pieces = pieces
        self._texts: dict[int, str] = {}

    def take(self, output: Any) -> None:
        """Take the next output of vLLM (``RequestOutput``)."""
        for part in output.outputs:
            before = self._texts.get(part.index, "") if self._pieces else ""
            self._texts[part.index] = before + part.text

    @property
    def text(self) -> str:
        """The answer so far; of several answers, one below the other."""
        return "\n".join(text for _, text in sorted(self._texts.items()))
