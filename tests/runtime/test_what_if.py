"""A recorded run, replayed: its own policy is predicted as it was, others from what is known."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from rich.console import Console

from autellix.errors import SettingsError, TraceError
from autellix.runtime.recorded_steps import fit_recorded
from autellix.runtime.what_if import POLICIES, WhatIf, replay_programs, what_if
from autellix.runtime.what_if_view import render, what_if_json
from autellix.scheduler.engine_model import PRESETS
from autellix.tracing.trace import Trace
from autellix.tracing.trace_fields import trace_from_document
from autellix.tracing.trace_file import read_trace
from tests.tracing.simulated import MODEL, document_of, simulated_run

SAMPLES = sorted((Path(__file__).parent.parent / "tracing" / "samples").iterdir())
RECORDED = [read_trace(sample) for sample in SAMPLES]
real_traces = pytest.mark.parametrize("trace", RECORDED, ids=[s.name for s in SAMPLES])


def simulated(**options) -> Trace:
    document = document_of(simulated_run(20, 8, every_s=0.4, **options))
    return trace_from_document(document, "t")


@pytest.mark.parametrize(
    "trace",
    # The first version does not tell seats and KV cache, so there is more to guess.
    [t for t in RECORDED if t.schema > 1],
    ids=[s.name for s, t in zip(SAMPLES, RECORDED, strict=True) if t.schema > 1],
)
def test_the_policy_of_a_real_run_is_predicted_within_15_percent(trace: Trace):
    found = what_if(trace, [], [])
    print(f"\n{trace.policy}: {found.error:+.1%}, single programs {found.program_error:.1%}")
    assert abs(found.error) <= 0.15
    assert found.baseline.makespan_s == pytest.approx(found.recorded_makespan_s, rel=0.15)


def test_a_policy_that_was_not_recorded_is_predicted_as_it_then_ran():
    """The same programs ran on the same real engine under both."""
    runs = {
        t.policy: t
        for t, s in zip(RECORDED, SAMPLES, strict=True)
        if "react" in s.name and t.schema == 2
    }
    assert runs.keys() == {"fcfs", "atlas"}
    for one, other in itertools.permutations(runs):
        (predicted,) = what_if(runs[one], [other], []).predictions
        responses = [program.response_s for program in runs[other].programs]
        mean_s = sum(responses) / len(responses)
        print(f"\n{other} from {one}: {predicted.mean_s / mean_s - 1:+.1%}")
        assert predicted.mean_s == pytest.approx(mean_s, rel=0.15)


def test_a_simulated_engine_is_found_again():
    found = fit_recorded(simulated())
    assert found.engine.seats == MODEL.seats
    assert found.engine.kv_tokens == MODEL.kv_tokens
    assert found.assumed == ()
    assert found.median_error < 0.1
    busy = MODEL.step.of(20, 6, 3000)
    assert found.engine.step.of(20, 6, 3000) == pytest.approx(busy, rel=0.15)


@pytest.mark.parametrize("policy", ["fcfs", "plas", "atlas"])
def test_a_simulated_run_is_predicted_closely(policy):
    trace = simulated(policy={"fcfs": "vllm-opt"}.get(policy, policy))
    found = what_if(trace, [], [])
    assert abs(found.error) < 0.05


def test_predictions_come_in_the_order_asked_and_more_replicas_help():
    found = what_if(simulated(), ["fcfs", "atlas"], [1, 2, 4])
    assert [(p.policy, p.replicas) for p in found.predictions] == list(
        itertools.product(["fcfs", "atlas"], [1, 2, 4])
    )
    for policy in ("fcfs", "atlas"):
        means = [p.mean_s for p in found.predictions if p.policy == policy]
        assert means == sorted(means, reverse=True)
    assert all(p.responses_s.keys() == found.recorded_s.keys() for p in found.predictions)


@real_traces
def test_the_replayed_dag_is_the_recorded_one_without_its_tools(trace: Trace):
    replayed = replay_programs(trace)
    by_name = {program.name: program for _, program in replayed.arrivals}
    for program in trace.programs:
        llm = [call for call in program.calls if call.kind == "llm"]
        calls = by_name[program.id].calls
        assert [c.output_tokens for c in calls] == [c.output_tokens for c in llm]
        numbers = {call.id: n for n, call in enumerate(llm)}
        for call, told in zip(llm, calls, strict=True):
            direct = {numbers[p.id] for p in call.parents if p.id in numbers}
            assert direct <= set(told.parents)
            if told.parents:
                ready_s = max(llm[p].end_s or 0.0 for p in told.parents)
                lead_s = replayed.lead_s[program.id, numbers[call.id]]
                # The tools' time and the program's own lie between.
                assert told.tool_s == pytest.approx(call.start_s - ready_s + lead_s, abs=1e-6)
    assert [at for at, _ in replayed.arrivals] == sorted(p.start_s for p in trace.programs)


def test_programs_that_were_started_one_for_another_are_so_again():
    document = document_of(simulated_run(12, 3, every_s=30.0))
    end_s, live = [0.0, 0.0, 0.0], 3
    for program in document["programs"]:
        free_s = min(end_s)
        shift = free_s + 0.01 - program["start_s"]
        for moved in (program, *program["calls"]):
            moved["start_s"] += shift
            moved["end_s"] += shift
        for call in program["calls"]:
            for event in call["events"]:
                event["at_s"] += shift
        end_s[end_s.index(free_s)] = program["end_s"]
    trace = trace_from_document(document, "t")
    found = what_if(trace, [], [])
    assert found.replayed.live == live
    assert abs(found.error) < 0.15
    assert replay_programs(simulated()).live is None


def test_what_cannot_be_replayed_is_said():
    trace = simulated()
    with pytest.raises(SettingsError, match=r"no policy 'fast' to replay; choose of: fcfs, vllm"):
        what_if(trace, ["fast"], [])
    document = document_of(simulated_run(2, 2))
    for program in document["programs"]:
        program["calls"] = [c for c in program["calls"] if c["kind"] == "tool"]
    with pytest.raises(TraceError, match="there is nothing to replay"):
        what_if(trace_from_document(document, "t"), [], [])
    few = trace_from_document(document_of(simulated_run(1, 3)), "t")
    with pytest.raises(TraceError, match="3 calls with receipts, too few to fit"):
        what_if(few, [], [])


def test_a_preset_can_stand_for_the_recorded_engine():
    found = what_if(simulated(), [], [], engine=PRESETS["h100-llama3-8b"])
    assert found.baseline.mean_s < found.recorded_mean_s / 3
    few = trace_from_document(document_of(simulated_run(1, 3)), "t")
    assert what_if(few, [], [], engine=PRESETS["h100-llama3-8b"]).model.calls == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_that_is_offered_can_be_predicted(policy):
    (predicted,) = what_if(RECORDED[0], [policy], []).predictions
    assert predicted.mean_s > 0


def shown(found: WhatIf, width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(render(found, width))
    return capture.get()


@pytest.mark.parametrize("width", [80, 120])
def test_predictions_stand_beside_what_was_recorded(width):
    found = what_if(RECORDED[0], ["fcfs", "plas"], [1, 2])
    text = shown(found, width)
    assert max(map(len, text.splitlines())) <= width
    for words in ("atlas (recorded)", "react_agent-5", "recorded", "fcfs x1", "above"):
        assert words in text, words
    assert "Not in the trace, so assumed: 3 seats" in text


def test_predictions_that_are_not_to_be_relied_on_are_marked():
    found = what_if(simulated(), [], [], engine=PRESETS["h100-llama3-8b"])
    assert "That is too much to rely on" in shown(found, 100)


def test_the_json_holds_the_error_and_every_prediction():
    found = what_if(RECORDED[0], ["fcfs"], [2])
    said = what_if_json(found)
    assert said["error"] == found.error
    assert said["predictions"][0]["policy"] == "fcfs"
    assert said["recorded"]["responses_s"].keys() == said["baseline"]["responses_s"].keys()
