"""An order for experiments alone: of a program's calls, the one on the critical path goes first.

The core's rank decides between programs. Among the calls of one program, the one from which the
longest chain of tokens is still to come goes first and those with slack give way. It knows the
future: no rule that has to guess which call is critical can gain more.
"""

from __future__ import annotations

from .sim_call import ReplicaCall
from .sim_programs import SimProgram

_ENTRY_BITS = 40 + 16


class SiblingsByChain:
    """An ``Order``; see above."""

    def __init__(self) -> None:
        self._chains: dict[str, list[int]] = {}

    def __call__(self, call: ReplicaCall) -> float:
        """The call's place: smaller runs first."""
        assert call.live is not None
        spec = call.program.spec
        if spec.name not in self._chains:
            self._chains[spec.name] = tokens_to_come(spec)
        rank = call.live.rank
        program, entry = rank >> _ENTRY_BITS, rank & ((1 << _ENTRY_BITS) - 1)
        slack = (1 << _ENTRY_BITS) - 1 - self._chains[spec.name][call.index]
        return (program << 2 * _ENTRY_BITS) + (slack << _ENTRY_BITS) + entry


def tokens_to_come(program: SimProgram) -> list[int]:
    """Output tokens along the longest chain that begins with each call."""
    chains = [call.output_tokens for call in program.calls]
    for index in range(len(chains) - 1, -1, -1):
        for parent in program.calls[index].parents:
            own = program.calls[parent].output_tokens
            chains[parent] = max(chains[parent], own + chains[index])
    return chains
