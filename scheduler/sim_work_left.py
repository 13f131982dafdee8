"""The order that knows the future (``srpt``): the least remaining work x tokens goes first."""

from __future__ import annotations

from .engine_model import EngineModel
from .sim_call import ReplicaCall
from .sim_live import LiveProgram
from .sim_replica import Replica


class LeastWorkLeft:
    """An ``Order`` by the work that a program's unfinished calls will take, times its tokens.

    Args:
        model: says what work a call is.
    """

    def __init__(self, model: EngineModel) -> None:
        self._model = model
        self._left_s: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._placed: dict[str, dict[int, tuple[Replica, ReplicaCall]]] = {}

    def __call__(self, call: ReplicaCall) -> float:
        """The call's place: smaller runs first."""
        return self.of_program(call.program)

    def of_program(self, program: LiveProgram) -> float:
        """The place of a program's calls."""
        return self.of_name(program.spec.name)

    def of_name(self, program: str) -> float:
        """The place of the calls of a program by its name."""
        return self._left_s[program] * self._tokens[program]

    def program_comes(self, program: LiveProgram) -> None:
        """All its calls are still to be done."""
        spec = program.spec
        self._left_s[spec.name] = sum(self._work_s(program, i) for i in range(len(spec.calls)))
        self._tokens[spec.name] = spec.output_tokens
        self._placed[spec.name] = {}

    def call_placed(self, call: ReplicaCall, replica: Replica) -> None:
        """A call has entered a replica."""
        self._placed[call.program.spec.name][call.index] = (replica, call)

    def call_ended(self, call: ReplicaCall) -> None:
        """There is less left: the program's other calls move forward."""
        name = call.program.spec.name
        placed = self._placed[name]
        del placed[call.index]
        self._left_s[name] -= self._work_s(call.program, call.index)
        for replica, other in placed.values():
            replica.reorder(other)

    def program_ended(self, program: LiveProgram) -> None:
        """Forget it."""
        name = program.spec.name
        del self._left_s[name], self._tokens[name], self._placed[name]

    def _work_s(self, program: LiveProgram, index: int) -> float:
        call = program.spec.calls[index]
        new_tokens = call.prompt_tokens - call.shared_prefix_tokens
        return self._model.work_s(call.prompt_tokens, new_tokens, call.output_tokens)
