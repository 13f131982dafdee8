"""An order for experiments alone: of a program's calls, the one on the critical path goes first.

The core's rank decides between programs. Among the calls of one program, the one from which the
longest chain of tokens is still to come goes first and those with slack give way. It knows the
future: no rule that has to guess which call is critical can gain more.
"""

from __future__ import annotations

from .core import PROGRAM_SHIFT
from .sim_call import ReplicaCall
from .sim_programs import SimProgram


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
        program, entry = rank >> PROGRAM_SHIFT, rank & ((1 << PROGRAM_SHIFT) - 1)
        slack = (1 << PROGRAM_SHIFT) - 1 - self._chains[spec.name][call.index]
        return (program << 2 * PROGRAM_SHIFT) + (slack << PROGRAM_SHIFT) + entry


def tokens_to_come(program: SimProgram) -> list[int]:
    """Output tokens along the longest chain that begins with each call."""
    return program.longest_chains(
        [call.output_tokens for call in program.calls], [0] * len(program)
    )
