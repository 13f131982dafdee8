"""What holds in every run of the simulator, and that stretches are what steps one by one are."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autellix.errors import InputError, SettingsError
from autellix.scheduler.balancers import balancer_named
from autellix.scheduler.engine_model import EngineModel, StepTime, preset_named
from autellix.scheduler.policies import POLICIES
from autellix.scheduler.sim_host import TIERS, HostMemory
from autellix.scheduler.sim_orders import SIM_POLICIES, sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.simulator import CallRecord, SimResult, Simulation

Arrivals = list[tuple[float, SimProgram]]


@st.composite
def programs(draw: st.DrawFn, number: int) -> SimProgram:
    calls: list[SimCall] = []
    for index in range(draw(st.integers(1, 6))):
        parents = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        prompt = draw(st.integers(1, 60))
        shared = draw(st.integers(0, prompt)) if index else 0
        calls.append(
            SimCall(
                parents=tuple(sorted(parents)),
                prompt_tokens=prompt,
                output_tokens=draw(st.integers(1, 40)),
                shared_prefix_tokens=shared,
                tool_s=draw(st.sampled_from([0.0, 0.0, 0.25, 3.0])),
            )
        )
    return SimProgram(f"p{number}", calls)


@st.composite
def workloads(draw: st.DrawFn) -> Arrivals:
    at_s, arrivals = 0.0, []
    for number in range(draw(st.integers(1, 8))):
        at_s += draw(st.integers(0, 64)) / 16
        arrivals.append((at_s, draw(programs(number))))
    return arrivals


# Coefficients that binary fractions hold exactly, so that sums in any order are equal.
MODELS = st.builds(
    lambda seats, blocks, d, e: EngineModel(
        name="test",
        step=StepTime(a=1 / 32, b=1 / 256, c=1 / 128, d=d, e=e),
        kv_tokens=4 * blocks,
        block_tokens=4,
        seats=seats,
        token_budget=seats + 9,
        kv_bytes_per_token=2**20,
        link_bytes_per_s=2.0**30,
    ),
    st.integers(1, 5),
    st.integers(26, 60),
    st.sampled_from([0.0, 1 / 4096]),
    st.sampled_from([0.0, 1 / 32768]),
)
MEMORIES = st.one_of(
    st.none(),
    st.builds(
        lambda blocks, tier: HostMemory(gib=blocks * 4 / 1024, tier=tier, load_start_s=1 / 512),
        st.integers(5, 200),
        st.sampled_from(TIERS),
    ),
)
LEVELS = {"levels": 4, "first_quantum_s": 0.5, "policy_interval": 4, "beta": 2.0}
EAGER = {"preempt_gap": 1, "min_run_steps": 1, "patience_steps": 1, "expected_step_s": 0.0625}


def serve(
    model: EngineModel, arrivals: Arrivals, policy: str, **options: object
) -> tuple[SimResult, list[CallRecord], Simulation]:
    records: list[CallRecord] = []
    simulation = Simulation(
        model,
        sim_policy(policy, **LEVELS, **EAGER),
        on_call=records.append,
        **options,  # type: ignore[arg-type]
    )
    return simulation.run(arrivals), records, simulation


def test_the_names_of_the_runtime_are_known_here_too() -> None:
    for policy in POLICIES:
        assert sim_policy(policy.name).config.policy == policy.name
    assert sim_policy("fcfs").prefix_cache


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MODELS, workloads(), st.sampled_from(SIM_POLICIES), MEMORIES)
def test_stretches_give_what_steps_one_by_one_give(
    model: EngineModel, arrivals: Arrivals, policy: str, memory: HostMemory | None
) -> None:
    at_once, records, _ = serve(model, arrivals, policy, memory=memory)
    one_by_one, others, _ = serve(model, arrivals, policy, memory=memory, longest_stretch=1)
    assert at_once.steps == one_by_one.steps
    assert at_once.stretches <= one_by_one.stretches
    for record, other in zip(records, others, strict=True):
        assert (record.program, record.number) == (other.program, other.number)
        assert record.ended_s == pytest.approx(other.ended_s, abs=1e-9)
        assert record.receipt.service_s == pytest.approx(other.receipt.service_s, abs=1e-9)
        assert record.receipt.wait_s == pytest.approx(other.receipt.wait_s, abs=1e-9)
        assert record.receipt.levels == other.receipt.levels
        assert record.receipt.preemptions == other.receipt.preemptions
        assert record.receipt.cached_tokens == other.receipt.cached_tokens


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MODELS, workloads(), st.sampled_from(SIM_POLICIES), st.integers(1, 3), MEMORIES)
def test_no_call_is_lost_and_no_block_is_given_twice(
    model: EngineModel,
    arrivals: Arrivals,
    policy: str,
    replicas: int,
    memory: HostMemory | None,
) -> None:
    result, records, simulation = serve(model, arrivals, policy, replicas=replicas, memory=memory)
    expected = {(p.name, i) for _, p in arrivals for i in range(len(p.calls))}
    assert sorted((r.program, r.number) for r in records) == sorted(expected)
    assert {p.name for p in result.programs} == {p.name for _, p in arrivals}
    assert not len(simulation.table)
    for replica in simulation.replicas:
        replica.check()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MODELS, workloads(), st.sampled_from(SIM_POLICIES), MEMORIES)
def test_blocks_are_never_overcommitted_and_the_engine_never_idles_with_calls(
    model: EngineModel, arrivals: Arrivals, policy: str, memory: HostMemory | None
) -> None:
    simulation = Simulation(model, sim_policy(policy, **LEVELS, **EAGER), memory=memory)
    replica = simulation.replicas[0]
    complete, plan = replica.complete, replica.plan

    def checked_plan(now: float) -> float:
        end_s = plan(now)
        replica.check()
        assert replica.load == 0 or replica.busy or replica.loading, "calls wait at an idle engine"
        return end_s

    def checked_complete(now: float) -> object:
        ended = complete(now)
        replica.check()
        return ended

    replica.plan, replica.complete = checked_plan, checked_complete  # type: ignore[method-assign]
    simulation.run(arrivals)


@settings(max_examples=40, deadline=None)
@given(MODELS, workloads(), st.sampled_from(SIM_POLICIES))
def test_the_same_input_gives_the_same_result(
    model: EngineModel, arrivals: Arrivals, policy: str
) -> None:
    assert serve(model, arrivals, policy)[:2] == serve(model, arrivals, policy)[:2]


@settings(max_examples=60, deadline=None)
@given(MODELS, workloads(), st.sampled_from(SIM_POLICIES))
def test_service_and_wait_fit_into_a_call_s_time(
    model: EngineModel, arrivals: Arrivals, policy: str
) -> None:
    for record in serve(model, arrivals, policy)[1]:
        receipt = record.receipt
        wall_s = record.ended_s - record.started_s
        assert receipt.service_s > 0
        assert receipt.service_s + receipt.wait_s <= wall_s + 1e-9


MODEL = EngineModel(
    name="test", step=StepTime(a=1.0), kv_tokens=4000, block_tokens=4, seats=2, token_budget=100
)


def run(calls: list[SimCall], policy: str = "vllm-opt", model: EngineModel = MODEL) -> SimResult:
    return Simulation(model, sim_policy(policy)).run_offline([SimProgram("p", calls)])


def test_a_call_takes_a_step_for_every_chunk_of_its_prompt_and_every_further_token() -> None:
    assert run([SimCall(prompt_tokens=250, output_tokens=10)]).ended_s == 3 + 9


def test_the_time_of_tools_is_no_response_time() -> None:
    calls = [
        SimCall(prompt_tokens=4, output_tokens=3),
        SimCall(parents=(0,), prompt_tokens=4, output_tokens=3, tool_s=7.0),
    ]
    result = run(calls)
    assert result.ended_s == 13.0
    assert result.programs[0].response_s == 6.0


def test_a_next_turn_computes_only_what_is_new_with_a_prefix_cache() -> None:
    calls = [
        SimCall(prompt_tokens=80, output_tokens=21),
        SimCall(parents=(0,), prompt_tokens=140, output_tokens=5, shared_prefix_tokens=101),
    ]
    assert run(calls, "vllm-opt").prefilled_tokens == 80 + 40
    assert run(calls, "vllm").prefilled_tokens == 80 + 140
    assert run(calls, "vllm").recomputed_tokens == 100


def test_siblings_share_a_prompt_that_one_of_them_has_computed() -> None:
    prompt = SimCall(prompt_tokens=81, output_tokens=5)
    again = SimCall(prompt_tokens=81, output_tokens=5, shared_prefix_tokens=81)
    result = run([prompt, again])
    assert result.prefilled_tokens == 81 + 1
    assert result.ended_s == 5.0


def test_programs_share_a_system_prompt() -> None:
    call = SimCall(prompt_tokens=100, output_tokens=2)
    twins = [SimProgram(n, [call], system="agent", system_tokens=80) for n in ("a", "b")]
    strangers = [SimProgram(n, [call]) for n in ("a", "b")]
    for programs_, prefilled in ((twins, 120), (strangers, 200)):
        result = Simulation(MODEL, sim_policy("vllm-opt")).run_offline(programs_)
        assert result.prefilled_tokens == prefilled


def test_a_short_program_overtakes_a_long_one_with_levels() -> None:
    model = EngineModel(
        name="test", step=StepTime(a=1.0), kv_tokens=9000, seats=1, token_budget=2000
    )
    long = SimProgram("long", [SimCall(prompt_tokens=9, output_tokens=400)])
    short = SimProgram("short", [SimCall(prompt_tokens=9, output_tokens=4)])

    def order(policy: str) -> list[str]:
        simulation = Simulation(
            model, sim_policy(policy, first_quantum_s=16.0, expected_step_s=1.0)
        )
        return [p.name for p in simulation.run([(0.0, long), (200.5, short)]).programs]

    assert order("vllm-opt") == ["long", "short"]
    assert order("plas") == ["short", "long"]


def test_srpt_takes_the_program_with_least_left_and_program_fcfs_the_oldest() -> None:
    model = EngineModel(
        name="test", step=StepTime(a=1.0), kv_tokens=9000, seats=1, token_budget=2000
    )

    def chain(name: str, length: int) -> SimProgram:
        calls = [
            SimCall(parents=(i - 1,) if i else (), prompt_tokens=9, output_tokens=9)
            for i in range(length)
        ]
        return SimProgram(name, calls)

    arrivals = [(0.0, chain("long", 9)), (1.0, chain("middle", 5)), (2.0, chain("short", 2))]

    def order(policy: str) -> list[str]:
        return [p.name for p in Simulation(model, sim_policy(policy)).run(arrivals).programs]

    assert order("program-fcfs") == ["long", "middle", "short"]
    assert order("srpt") == ["short", "middle", "long"]
    assert order("vllm-opt") == ["short", "middle", "long"]


def test_a_closed_loop_keeps_so_many_programs_under_way() -> None:
    programs_ = [SimProgram(str(i), [SimCall(prompt_tokens=4, output_tokens=5)]) for i in range(7)]
    result = Simulation(MODEL, sim_policy("vllm-opt")).run_closed(programs_, 2)
    assert [p.ended_s for p in result.programs] == [5, 5, 10, 10, 15, 15, 20]


@pytest.mark.parametrize("name", ["program", "round-robin", "least-used"])
def test_replicas_share_the_work(name: str) -> None:
    arrivals = [
        (i / 1000, SimProgram(str(i), [SimCall(prompt_tokens=9, output_tokens=20)]))
        for i in range(40)
    ]
    model = preset_named("a100-llama3-8b")
    simulation = Simulation(model, sim_policy("atlas"), replicas=4, balancer=balancer_named(name))
    assert min(simulation.run(arrivals).calls_served) >= 5


def test_a_context_that_no_replica_holds_is_refused_with_its_length() -> None:
    with pytest.raises(InputError, match=r"4200 tokens.*holds 4000"):
        run([SimCall(prompt_tokens=4100, output_tokens=100)])


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([], "has no calls"),
        ([SimCall(parents=(0,), prompt_tokens=1, output_tokens=1)], "a cycle has no such order"),
    ],
)
def test_an_impossible_program_is_refused(calls: list[SimCall], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SimProgram("p", calls)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="replicas"):
        Simulation(MODEL, sim_policy("vllm"), replicas=0)
    with pytest.raises(SettingsError, match="choose one of: vllm, vllm-opt"):
        sim_policy("fifo")
    with pytest.raises(InputError, match="sort the programs by arrival"):
        call = SimCall(prompt_tokens=1, output_tokens=1)
        Simulation(MODEL, sim_policy("vllm")).run(
            [(1.0, SimProgram("a", [call])), (0.5, SimProgram("b", [call]))]
        )


def test_a_program_hears_of_a_call_s_end_when_the_next_step_has_begun() -> None:
    """Two calls in a chain beside a long one: with a turnaround the second misses a step."""
    calls = [SimCall(prompt_tokens=1, output_tokens=2)]
    calls.append(SimCall(parents=(0,), prompt_tokens=1, output_tokens=2))
    chain = SimProgram("chain", calls)
    long = SimProgram("long", [SimCall(prompt_tokens=1, output_tokens=20)])
    ended = {}
    for turnaround_s in (0.0, 0.25, 1.25):
        model = EngineModel(
            name="test", step=StepTime(a=1.0), kv_tokens=4096, turnaround_s=turnaround_s
        )
        result, _, _ = serve(model, [(0.0, chain), (0.0, long)], "vllm-opt")
        ended[turnaround_s] = {p.name: p for p in result.programs}
    assert [found["chain"].ended_s for found in ended.values()] == [4.0, 5.25, 7.25]
    # The turnaround is part of the response, and not of service or wait.
    assert [found["chain"].response_s for found in ended.values()] == [4.0, 5.25, 7.25]
    assert [found["chain"].service_s for found in ended.values()] == [4.0, 4.0, 4.0]
    assert [found["long"].ended_s for found in ended.values()] == [20.0, 20.25, 21.25]
