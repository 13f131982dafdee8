"""Programs made shorter by one factor, so that a small engine serves them in the time there is.

Token counts and tool times are multiplied by it. What is shared stays shared: a prompt that goes on
from an earlier call's whole context, or repeats its prompt, still does.
"""

from __future__ import annotations

from collections.abc import Sequence

from autellix.scheduler.content_tree import prefix_bases
from autellix.scheduler.sim_programs import SimCall, SimProgram


def scaled_programs(programs: Sequence[SimProgram], factor: float) -> list[SimProgram]:
    """All of them, scaled; the programs themselves at a factor of 1."""
    return [*programs] if factor == 1 else [scaled(program, factor) for program in programs]


def scaled(program: SimProgram, factor: float) -> SimProgram:
    """One program; every call keeps at least one prompt token and one output token."""
    calls: list[SimCall] = []
    system = round(factor * program.system_tokens)
    for call, base in zip(program.calls, prefix_bases(program.calls), strict=True):
        shared = _shared(program, calls, call.shared_prefix_tokens, base, factor)
        new = call.prompt_tokens - call.shared_prefix_tokens
        calls.append(
            SimCall(
                parents=call.parents,
                prompt_tokens=max(shared + round(factor * new), system, 1),
                output_tokens=max(1, round(factor * call.output_tokens)),
                shared_prefix_tokens=shared,
                tool_s=factor * call.tool_s,
            )
        )
    return SimProgram(
        program.name, calls, system=program.system, system_tokens=system, kind=program.kind
    )


def _shared(
    program: SimProgram, calls: Sequence[SimCall], shared: int, base: int, factor: float
) -> int:
    """Length of the shared prefix; ``calls`` are the scaled calls before this one."""
    if base < 0:
        return 0
    before, after = program.calls[base], calls[base]
    context = after.prompt_tokens + after.output_tokens
    if shared == before.prompt_tokens + before.output_tokens:
        return context
    if shared == before.prompt_tokens:
        return after.prompt_tokens
    return min(round(factor * shared), context)
