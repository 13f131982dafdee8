"""What a policy that remembers knows before a benchmark begins: other programs of the kind.

Generated workloads are learned from programs of another seed. Recorded ones have no other seed;
there is nothing to know of them, and ``gittins`` is ``adaptive``.
"""

from __future__ import annotations

from autellix.scheduler.engine_model import EngineModel
from autellix.scheduler.life_table import work_of
from autellix.scheduler.service_history import ServiceHistory
from autellix.scheduler.sim_programs import SimProgram
from benchmarks.workloads import workload

PROGRAMS = 300
_SEED = 1_000_003


def learned(name: str, model: EngineModel) -> ServiceHistory:
    """The history that 300 programs of the workload, from another seed, leave behind."""
    history = ServiceHistory()
    if not name.startswith("trace:"):
        for program in workload(name, PROGRAMS, _SEED, model=model).programs:
            learn(history, program)
    return history


def learn(history: ServiceHistory, program: SimProgram) -> None:
    """Take in a program as if it had just ended."""
    work = longest = 0.0
    for call in program.calls:
        work += work_of(call.output_tokens, max(0, call.prompt_tokens - int(longest)))
        longest = max(longest, call.prompt_tokens + call.output_tokens)
    history.worked(program.kind, 0.0, work)
    history.ended(program.kind, work)
