"""Programs made shorter by one factor."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler.sim_programs import SimCall, SimProgram
from benchmarks.scaling import scaled, scaled_programs
from benchmarks.workloads import NAMES, workload


def chat() -> SimProgram:
    calls = [
        SimCall(prompt_tokens=101, output_tokens=33),
        SimCall(parents=(0,), prompt_tokens=177, output_tokens=21, shared_prefix_tokens=134),
        SimCall(parents=(0,), prompt_tokens=101, output_tokens=9, shared_prefix_tokens=101),
    ]
    return SimProgram("chat", calls)


@pytest.mark.parametrize("factor", [0.9, 0.37, 0.1, 0.003])
def test_what_goes_on_from_a_whole_context_still_does(factor: float) -> None:
    first, following, again = scaled(chat(), factor).calls
    assert following.shared_prefix_tokens == first.prompt_tokens + first.output_tokens
    assert again.shared_prefix_tokens == again.prompt_tokens == first.prompt_tokens


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_keeps_its_shape(name: str) -> None:
    programs = workload(name, 3, 1).programs
    for before, after in zip(programs, scaled_programs(programs, 0.2), strict=True):
        assert [call.parents for call in after.calls] == [call.parents for call in before.calls]
        shared = sum(call.shared_prefix_tokens for call in before.calls)
        assert sum(call.shared_prefix_tokens for call in after.calls) == pytest.approx(
            0.2 * shared, rel=0.02, abs=len(before.calls)
        )
        total = sum(c.prompt_tokens - c.shared_prefix_tokens for c in before.calls)
        assert sum(c.prompt_tokens - c.shared_prefix_tokens for c in after.calls) == pytest.approx(
            0.2 * total, rel=0.02, abs=len(before.calls)
        )
        assert after.calls[-1].tool_s == pytest.approx(0.2 * before.calls[-1].tool_s)


def test_a_factor_of_one_changes_nothing() -> None:
    programs = workload("bfcl", 3, 1).programs
    assert scaled_programs(programs, 1) == [*programs]


@settings(max_examples=25, deadline=None)
@given(st.floats(0.001, 1.0), st.integers(0, 50), st.sampled_from(("bfcl", "tot", "swe-agent")))
def test_any_factor_gives_programs_that_can_run(factor: float, seed: int, name: str) -> None:
    (program,) = workload(name, 1, seed).programs
    shorter = scaled(program, factor)
    assert len(shorter) == len(program)
    assert shorter.longest_context <= program.longest_context + len(program)
