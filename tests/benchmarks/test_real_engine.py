"""Programs on the real engine, as benchmarks run them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from autellix.errors import AutellixError, UsageError
from autellix.runtime.calibrate_fit import fit_steps
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from benchmarks import replay
from benchmarks.capacity import closed_loop_rate
from benchmarks.real_engine import RealEngine, require_real
from benchmarks.real_programs import ProgramTexts
from benchmarks.workloads import NAMES, workload

SEATS, KV_TOKENS = 4, 2048


def forked() -> SimProgram:
    """A call, two at once that go on from it, and one that joins them."""
    calls = [
        SimCall(prompt_tokens=100, output_tokens=12),
        SimCall(parents=(0,), prompt_tokens=150, output_tokens=8, shared_prefix_tokens=112),
        SimCall(parents=(0,), prompt_tokens=150, output_tokens=9, shared_prefix_tokens=150),
        SimCall(
            parents=(1, 2), prompt_tokens=180, output_tokens=4, shared_prefix_tokens=158, tool_s=0.1
        ),
    ]
    return SimProgram("forked", calls)


def test_prompts_have_the_lengths_and_the_prefixes_described() -> None:
    texts, outputs = ProgramTexts(forked()), {0: range(1, 13), 1: range(1, 9)}
    first = texts.prompt(0)
    texts.ended(0, outputs[0])
    second = texts.prompt(1)
    assert (len(first), len(second)) == (100, 150)
    assert second[:112] == [*first, *outputs[0]]
    assert texts.prompt(2) == second
    texts.ended(1, outputs[1])
    last = texts.prompt(3)
    assert len(last) == 180 and last[:158] == [*second, *outputs[1]]


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_of_a_workload_has_its_length(name: str) -> None:
    (program,) = workload(name, 1, 3).programs
    texts = ProgramTexts(program)
    for index, call in enumerate(program.calls):
        assert len(texts.prompt(index)) == call.prompt_tokens
        texts.ended(index, range(call.output_tokens))


def test_programs_with_a_system_prompt_in_common_begin_alike() -> None:
    call = SimCall(prompt_tokens=80, output_tokens=2)
    one, other = (
        ProgramTexts(SimProgram(name, [call], system="s", system_tokens=50)).prompt(0)
        for name in ("a", "b")
    )
    assert one[:50] == other[:50] and one[50:] != other[50:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policies", "srpt"), "'srpt' knows the future"),
        (("--replicas", "2"), "--replicas is for simulated engines"),
        (("--host-gib", "1"), "--host-gib is for simulated engines"),
        (("--balancer", "least-used"), "--balancer is for simulated engines"),
        (("--jobs", "2"), "--jobs is for simulated engines"),
        (("--closed-loop", "3"), "--closed-loop is for simulated engines"),
        (("--seconds", "0"), "--seconds must be above 0"),
        (("--factor", "2"), "--factor must be above 0 and at most 1"),
        (("--seats", "0"), "--seats must be a whole number >= 1"),
        (("--kv-tokens", "100"), "--kv-tokens must be at least 256"),
        (("--programs", "0"), "--programs must be a whole number >= 1"),
        (("--workload", "chat"), "there is no workload 'chat'"),
        (("--policies", "fifo"), "there is no policy 'fifo'"),
        (("--load", "3.1"), "--load must be above 0 and at most 3"),
    ],
)
def test_what_the_real_engine_cannot_do_is_refused_before_it_starts(
    options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(AutellixError, match=message):
        replay.main(["--engine", "vllm", "--policies", "vllm-opt", *options])


def test_policies_of_the_core_may_run_on_it() -> None:
    for name in ("vllm", "vllm-opt", "mlfq", "plas", "atlas", "program-fcfs", "default"):
        require_real(sim_policy(name))
    with pytest.raises(UsageError):
        require_real(sim_policy("srpt"))


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    engine = RealEngine.start(seats=SEATS, kv_tokens=KV_TOKENS)
    yield engine
    engine.stop()


@pytest.mark.slow
def test_a_program_runs_as_it_is_described(engine: RealEngine) -> None:
    assert (engine.model.seats, engine.model.kv_tokens) == (SEATS, KV_TOKENS)
    done = engine.serve([(0.0, forked())], sim_policy("atlas"))
    (program,) = done.result.programs
    assert (program.calls, program.output_tokens) == (4, 12 + 8 + 9 + 4)
    assert done.result.prompt_tokens == 100 + 150 + 150 + 180
    # Tool time is no part of the response.
    assert program.ended_s - program.first_call_s - program.response_s == pytest.approx(
        0.1, abs=0.05
    )
    assert 0 < program.critical_path_s <= program.service_s
    assert len(done.spans) == 4


@pytest.mark.slow
def test_the_cache_knows_what_the_description_says_and_nothing_of_the_run_before(
    engine: RealEngine,
) -> None:
    size = engine.model.block_tokens
    known = [shared * size for shared in forked().tree(size).shared_blocks]
    for _ in range(2):
        done = engine.serve([(0.0, forked())], sim_policy("vllm-opt"))
        assert done.result.cached_tokens == pytest.approx(sum(known), abs=size)
    assert engine.serve([(0.0, forked())], sim_policy("vllm")).result.cached_tokens == 0


@pytest.mark.slow
def test_a_closed_loop_has_a_rate_and_leaves_no_call_behind(engine: RealEngine) -> None:
    assert closed_loop_rate(engine, [forked()], 2) > 0
    assert engine.serve([(0.0, forked())], sim_policy("plas")).result.calls == 4


@pytest.mark.slow
def test_a_sweep_gives_points_that_can_be_fitted(engine: RealEngine) -> None:
    told: list[str] = []
    swept = engine.sweep(lambda number, of, name: told.append(name))
    assert {point.region for point in swept.points} >= {"prefill", "decode"}
    assert all(point.step_s > 0 for point in swept.points)
    assert fit_steps(swept.points).step.a > 0
    assert 0 <= swept.between_s < 1 and 0 < swept.turnaround_s < 1
    assert told[0].startswith("a prompt of")


@pytest.mark.slow
def test_replay_runs_policies_in_turns_on_the_real_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    options = ["--engine", "vllm", "--workload", "bfcl", "--programs", "4", "--seats", "4"]
    options += ["--policies", "vllm,vllm-opt,default", "--load", "0.8,1.2", "--seconds", "10"]
    replay.main([*options, "--json", str(file)])
    document = json.loads(file.read_text())
    cells = document["cells"]
    assert [(cell["load"], cell["policy"]) for cell in cells] == [
        (load, policy) for load in (0.8, 1.2) for policy in ("vllm", "vllm-opt", "default")
    ]
    assert {cell["engine"] for cell in cells} == {"vllm"}
    assert all((cell["cache_hit_rate"] == 0) is (cell["policy"] == "vllm") for cell in cells)
    assert 0 < document["token_factors"]["bfcl"] < 1
    assert "token counts and tool times x" in capsys.readouterr().out
