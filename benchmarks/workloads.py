"""Workloads by name, and when their programs arrive.

``sharegpt bfcl lats mixed swe-agent coding tot tools supervisor`` are generated from a seed;
``trace:FILE`` and ``trace:FILE.gz`` are recorded programs. Several files, split by commas, are
mixed in equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from random import Random

from autellix.errors import InputError, UsageError
from autellix.scheduler.engine_model import EngineModel
from autellix.scheduler.sim_programs import SimProgram
from benchmarks.workload_generators import GENERATORS, generated
from benchmarks.workload_traces import Trace, read_trace

NAMES = ("sharegpt", "bfcl", "lats", "mixed", "swe-agent", "coding", "tot", "tools", "supervisor")
_TRACE = "trace:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Programs to be served.

    Attributes:
        name: as given, without the folders of a trace file.
        programs: in the order in which they arrive.
        skipped: lines of a trace that could not be read.
        too_long: programs left out since the engine cannot hold their contexts.
    """

    name: str
    programs: tuple[SimProgram, ...]
    skipped: tuple[str, ...] = ()
    too_long: int = 0

    @property
    def calls(self) -> int:
        """Calls of all programs."""
        return sum(len(program.calls) for program in self.programs)


def workload(
    name: str, programs: int, seed: int, *, model: EngineModel | None = None, strict: bool = False
) -> Workload:
    """The workload of that name.

    Args:
        programs: how many; a trace that has fewer is gone through again, in another order.
        seed: of generated programs, and of the order of recorded ones.
        model: leaves out programs with a context that it cannot hold.
        strict: stop at a line of a trace that cannot be read.

    Raises:
        UsageError: there is no such workload, or no programs are asked for.
        InputError: the trace cannot be read, or none of its programs fits the engine.
    """
    if programs < 1:
        raise UsageError(f"--programs must be a whole number >= 1, got {programs}")
    if name.startswith(_TRACE):
        traces = [read_trace(file, strict=strict) for file in trace_files(name)]
        return _recorded(traces, _short(name), programs, seed, model)
    if name not in NAMES:
        known = ", ".join((*NAMES, "trace:FILE[.gz]"))
        raise UsageError(f"there is no workload {name!r}; choose one of: {known}")
    assert {*NAMES} == {*GENERATORS, "mixed"}
    made = generated(name, programs, seed)
    kept = [program for program in made if _fits(program, model)]
    if not kept:
        raise InputError(f"no program of {name} fits the engine's KV cache; take a larger preset")
    return Workload(name=name, programs=tuple(kept), too_long=len(made) - len(kept))


def trace_files(name: str) -> list[Path]:
    """The files of a workload of recorded programs; none of a generated one.

    Raises:
        UsageError: a name is empty.
    """
    if not name.startswith(_TRACE):
        return []
    files = [file.removeprefix(_TRACE) for file in name.removeprefix(_TRACE).split(",")]
    if not all(files):
        raise UsageError(f"--workload trace: needs a file's name, got {name!r}; trace:FILE[.gz]")
    return [Path(file) for file in files]


def poisson(
    programs: Sequence[SimProgram], rate: float, seed: int
) -> Iterator[tuple[float, SimProgram]]:
    """The programs as a Poisson process.

    Args:
        rate: programs a second.
    """
    rng = Random(f"arrivals/{seed}")
    at_s = 0.0
    for program in programs:
        at_s += rng.expovariate(rate)
        yield at_s, program


def _recorded(
    traces: list[Trace], name: str, programs: int, seed: int, model: EngineModel | None
) -> Workload:
    kinds, too_long = [], 0
    for trace in traces:
        kept = [program for program in trace.programs if _fits(program, model)]
        too_long += len(trace.programs) - len(kept)
        if not kept:
            raise InputError(
                f"no program of {name} fits the engine's KV cache; take another preset"
            )
        kinds.append(_taken(kept, -(-programs // len(traces)), seed))
    mixed = [program for turn in zip_longest(*kinds) for program in turn if program is not None]
    if len({program.name for program in mixed}) < len(mixed):
        mixed = [program.again(f"{program.name}@{i}") for i, program in enumerate(mixed)]
    return Workload(
        name=name,
        programs=tuple(mixed[:programs]),
        skipped=tuple(line for trace in traces for line in trace.skipped),
        too_long=too_long,
    )


def _taken(programs: list[SimProgram], count: int, seed: int) -> list[SimProgram]:
    """So many of them, in an order by the seed; once they are used up they come again."""
    rng = Random(f"order/{seed}")
    taken: list[SimProgram] = []
    turn = 0
    while len(taken) < count:
        order = list(programs)
        rng.shuffle(order)
        for program in order[: count - len(taken)]:
            taken.append(program.again(f"{program.name}#{turn}") if turn else program)
        turn += 1
    return taken


def _fits(program: SimProgram, model: EngineModel | None) -> bool:
    return model is None or program.longest_context <= model.blocks * model.block_tokens


def _short(name: str) -> str:
    return _TRACE + ",".join(file.name for file in trace_files(name))
