"""What of a prompt an earlier call of its program had: leading tokens, in whole chunks.

Per program a set of hashes, one for every chunk of every prompt, each made from all that comes
before it. A leading part is known as far as its hashes are in the set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

_CHUNK_TOKENS = 64
_MOST_CHUNKS = 1_000_000


class KnownPrompts:
    """The prompts of all programs.

    Args:
        most_chunks: beyond so many hashes the programs that were asked for longest ago go.
    """

    def __init__(self, most_chunks: int = _MOST_CHUNKS) -> None:
        self._most = most_chunks
        self._chunks = 0
        self._programs: OrderedDict[str, set[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    def add(self, program: str, prompt: Sequence[int]) -> int:
        """Note a call's prompt; how many leading tokens of it an earlier call had."""
        hashes = self._hashes(prompt)
        known = self._programs.setdefault(program, set())
        self._programs.move_to_end(program)
        found = sum(1 for _ in takewhile(known.__contains__, hashes))
        before = len(known)
        known.update(hashes[found:])
        self._chunks += len(known) - before
        while self._chunks > self._most and len(self._programs) > 1:
            self._chunks -= len(self._programs.popitem(last=False)[1])
        return found * _CHUNK_TOKENS

    def forget(self, program: str) -> None:
        """The program is over."""
        self._chunks -= len(self._programs.pop(program, ()))

    @staticmethod
    def _hashes(prompt: Sequence[int]) -> list[int]:
        hashes: list[int] = []
        before = 0
        for start in range(0, len(prompt) - _CHUNK_TOKENS + 1, _CHUNK_TOKENS):
            before = hash((before, *prompt[start : start + _CHUNK_TOKENS]))
            hashes.append(before)
        return hashes
