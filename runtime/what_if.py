"""What a recorded run would have been like under another policy or with more replicas.

1. The trace's programs become the simulator's: each call waits for its recorded predecessors, and
   after the last of them for as long as the program took in the recording (tools, its own code).
2. The engine is a model fitted to the recorded calls (:mod:`.recorded_steps`), or a preset. A
   fitted one is scaled until the recorded policy, replayed, gives the calls the recorded service.
3. Programs arrive when they did. Where they were started so that a fixed number ran at a time, as
   ``--concurrency`` does, they are so again: a faster policy starts them sooner.
4. The time between program and engine (hand-over, tokenising) belongs to a call's response time, as
   recorded.

What it cannot know: programs that would decide otherwise if answers came in another order, and the
noise of a machine that others use too. The recorded policy is predicted as well, so that its error
can be seen.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

from autellix.errors import InputError, SettingsError, TraceError

from ..scheduler.config import SchedulerConfig
from ..scheduler.engine_model import EngineModel, StepTime
from ..scheduler.policies import POLICIES as RUN_POLICIES
from ..scheduler.sim_orders import SIM_POLICIES, sim_policy
from ..scheduler.sim_programs import SimCall, SimProgram
from ..scheduler.sim_records import CallRecord
from ..scheduler.simulator import Simulation
from ..tracing.response import ResponseTime
from ..tracing.summary import percentile
from ..tracing.trace import Trace, TracedCall, TracedProgram
from .recorded_steps import RecordedModel, fit_recorded

# The runtime's names for what the simulator calls otherwise.
_SIMULATED = {"fcfs": "vllm-opt"}
POLICIES = (*_SIMULATED, *SIM_POLICIES)
# Policies that a run can have; they take the recorded settings, the simulator's own have theirs.
_RUNTIMES_OWN = frozenset(policy.name for policy in RUN_POLICIES)
# A program that starts within this of another one's end took its place, seconds.
_AT_ONCE_S = 0.25
# Rounds of scaling a fitted engine; on the traces tried, the second changes less than 1 %.
_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The programs of a trace as the simulator takes them.

    Attributes:
        arrivals: (seconds, program), ascending.
        lead_s: of every call by (program, number), time between program and engine, seconds.
        live: how many programs ran at a time; None where they came by themselves.
        left_out: programs without a call that the engine served.
    """

    arrivals: tuple[tuple[float, SimProgram], ...]
    lead_s: Mapping[tuple[str, int], float]
    live: int | None
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One policy on one number of replicas.

    Attributes:
        responses_s: predicted response time of every program, seconds, by id.
        mean_s, p95_s: over the programs, seconds.
        makespan_s: from the first start to the last end, seconds.
    """

    policy: str
    replicas: int
    responses_s: Mapping[str, float]
    mean_s: float
    p95_s: float
    mean_token_latency_s: float
    makespan_s: float
    wait_s: float
    service_s: float
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Predictions beside the recording.

    Attributes:
        recorded_s: recorded response time of every program, seconds, by id.
        error: predicted over recorded mean response time of the recorded policy and replicas, less
            1; what the predictions are worth.
        program_error: the same of single programs, median of the absolute values.
    """

    trace: Trace
    model: RecordedModel
    replayed: Replayed
    recorded_s: Mapping[str, float]
    recorded_mean_s: float
    recorded_p95_s: float
    recorded_makespan_s: float
    baseline: Prediction
    predictions: tuple[Prediction, ...]

    @property
    def error(self) -> float:
        """See the class."""
        return self.baseline.mean_s / self.recorded_mean_s - 1

    @property
    def program_error(self) -> float:
        """See the class."""
        return median(
            abs(self.baseline.responses_s[id] / recorded - 1)
            for id, recorded in self.recorded_s.items()
            if recorded > 0
        )


def what_if(
    trace: Trace,
    policies: Sequence[str],
    replicas: Sequence[int],
    *,
    engine: EngineModel | None = None,
) -> WhatIf:
    """Predict the trace's programs under policies and numbers of replicas.

    Args:
        policies: names of ``POLICIES``; none are the recorded one.
        replicas: how many replicas; none are as many as recorded.
        engine: model of one replica; None fits one to the trace.

    Raises:
        SettingsError: no such policy, or an impossible number of replicas.
        TraceError: nothing to replay.
    """
    for policy in policies:
        _checked(policy)
    replayed = replay_programs(trace)
    recorded = (trace.policy if trace.policy in POLICIES else "default", trace.engine.replicas or 1)
    if engine is not None:
        model = RecordedModel(engine=engine, calls=0, median_error=math.nan, assumed=())
    else:
        model = _scaled(trace, replayed, fit_recorded(trace), *recorded)
    recorded_s = {
        program.id: program.response_s
        for program in trace.programs
        if program.id not in replayed.left_out
    }
    ends = [p.last_s for p in trace.programs if p.id in recorded_s]
    starts = [p.start_s for p in trace.programs if p.id in recorded_s]
    predicted = {recorded: _predict(trace, replayed, model.engine, *recorded)}
    wanted = [(p, n) for p in policies or [recorded[0]] for n in replicas or [recorded[1]]]
    for policy, count in wanted:
        if (policy, count) not in predicted:
            predicted[policy, count] = _predict(trace, replayed, model.engine, policy, count)
    return WhatIf(
        trace=trace,
        model=model,
        replayed=replayed,
        recorded_s=recorded_s,
        recorded_mean_s=math.fsum(recorded_s.values()) / len(recorded_s),
        recorded_p95_s=percentile(sorted(recorded_s.values()), 0.95),
        recorded_makespan_s=max(ends) - min(starts),
        baseline=predicted[recorded],
        predictions=tuple(predicted[key] for key in wanted),
    )


def _scaled(
    trace: Trace, replayed: Replayed, model: RecordedModel, policy: str, replicas: int
) -> RecordedModel:
    served_s = math.fsum(call.service_s for call in trace.calls() if _was_served(call))
    for _ in range(_ROUNDS):
        simulated = _predict(trace, replayed, model.engine, policy, replicas)
        step, scale = model.engine.step, served_s / simulated.service_s
        step = StepTime(a=step.a * scale, b=step.b * scale, c=step.c * scale, d=step.d * scale)
        model = replace(model, engine=replace(model.engine, step=step))
    return model


def _checked(policy: str) -> str:
    if policy not in POLICIES:
        raise SettingsError(
            f"There is no policy {policy!r} to replay; choose of: {', '.join(POLICIES)}."
        )
    return policy


# From the trace to the simulator.


def replay_programs(trace: Trace) -> Replayed:
    """The trace's programs for the simulator.

    Raises:
        TraceError: no program has a call that the engine served.
    """
    arrivals, left_out = [], []
    leads: dict[tuple[str, int], float] = {}
    for program in sorted(trace.programs, key=lambda p: p.start_s):
        served = [call for call in program.calls if _was_served(call)]
        if not served:
            left_out.append(program.id)
            continue
        for number, call in enumerate(served):
            leads[program.id, number] = _lead_s(call)
        arrivals.append((program.start_s, _sim_program(program, served)))
    if not arrivals:
        raise TraceError(
            "no program of the trace has a call that the engine served, so there is nothing to "
            "replay"
        )
    return Replayed(
        arrivals=tuple(arrivals), lead_s=leads, live=_live(trace), left_out=tuple(left_out)
    )


def _was_served(call: TracedCall) -> bool:
    return call.kind == "llm" and call.end_s is not None and call.output_tokens > 0


def _lead_s(call: TracedCall) -> float:
    assert call.end_s is not None
    return max(0.0, call.end_s - call.start_s - call.wait_s - call.service_s)


def _sim_program(program: TracedProgram, served: Sequence[TracedCall]) -> SimProgram:
    numbers = {call.id: number for number, call in enumerate(served)}
    before = _predecessors(program, numbers)
    # Prompts that began with what other programs had left in the cache share a system prompt.
    roots = [c.cached_tokens for c in served if not before[c.id] and c.cached_tokens]
    system_tokens = min([max(roots, default=0), *(c.prompt_tokens for c in served)])
    calls = []
    for call in served:
        parents = sorted(before[call.id])
        ready_s = max((served[p].end_s or 0.0 for p in parents), default=program.start_s)
        calls.append(
            SimCall(
                parents=tuple(parents),
                prompt_tokens=max(1, call.prompt_tokens),
                output_tokens=call.output_tokens,
                shared_prefix_tokens=min(call.cached_tokens, call.prompt_tokens) if parents else 0,
                tool_s=max(0.0, call.start_s - ready_s) + _lead_s(call),
            )
        )
    return SimProgram(program.id, calls, system=program.name, system_tokens=system_tokens)


def _predecessors(program: TracedProgram, numbers: Mapping[str, int]) -> dict[str, set[int]]:
    """The served calls that each call waits for, through tools and calls that were not served."""
    before: dict[str, set[int]] = defaultdict(set)
    for call in program.calls:
        for parent in call.parents:
            if parent.id in numbers:
                before[call.id].add(numbers[parent.id])
            else:
                before[call.id] |= before[parent.id]
    return before


def _live(trace: Trace) -> int | None:
    """How many programs ran at a time, where each later one started as another one ended."""
    starts = sorted(program.start_s for program in trace.programs)
    ends = sorted(program.last_s for program in trace.programs)
    at_first = sum(start <= starts[0] + _AT_ONCE_S for start in starts) if starts else 0
    if at_first == len(starts):
        return None
    free = list(ends)
    for start in starts[at_first:]:
        place = bisect_right(free, start) - 1
        if place < 0 or free[place] < start - _AT_ONCE_S:
            return None
        del free[place]
    return at_first


# From the simulator to a prediction.


def _predict(
    trace: Trace, replayed: Replayed, engine: EngineModel, policy: str, replicas: int
) -> Prediction:
    records: dict[str, list[CallRecord]] = defaultdict(list)
    settings = _recorded_settings(trace) if policy in _RUNTIMES_OWN else {}
    simulation = Simulation(
        engine,
        sim_policy(_SIMULATED.get(_checked(policy), policy), **settings),
        replicas=replicas,
        on_call=lambda record: records[record.program].append(record),
    )
    try:
        if replayed.live is None:
            result = simulation.run(replayed.arrivals)
        else:
            result = simulation.run_closed([p for _, p in replayed.arrivals], replayed.live)
    except InputError as error:
        raise TraceError(f"the trace cannot be replayed: {error}") from error
    responses = {id: _response_s(replayed, found) for id, found in records.items()}
    latencies = [
        responses[record.name] / record.output_tokens
        for record in result.programs
        if record.output_tokens
    ]
    ordered = sorted(responses.values())
    return Prediction(
        policy=policy,
        replicas=replicas,
        responses_s=responses,
        mean_s=math.fsum(ordered) / len(ordered),
        p95_s=percentile(ordered, 0.95),
        mean_token_latency_s=math.fsum(latencies) / len(latencies),
        makespan_s=result.ended_s - min(record.arrived_s for record in result.programs),
        wait_s=math.fsum(record.wait_s for record in result.programs),
        service_s=math.fsum(record.service_s for record in result.programs),
        preemptions=result.preemptions,
    )


def _recorded_settings(trace: Trace) -> dict[str, Any]:
    known = {f.name for f in fields(SchedulerConfig)} - {"policy", "replica"}
    return {name: _number(v) for name, v in trace.scheduler.items() if name in known}


def _number(value: Any) -> Any:
    """A setting as the trace holds it: infinity is a text there."""
    return float(value) if value in ("inf", "-inf") else value


def _response_s(replayed: Replayed, records: Sequence[CallRecord]) -> float:
    turns = []
    for record in records:
        begun_s = record.started_s - replayed.lead_s[record.program, record.number]
        turns += [(begun_s, 0), (record.ended_s, 1)]
    response = ResponseTime()
    for at_s, is_end in sorted(turns):
        (response.end if is_end else response.begin)(at_s)
    return response.value_s()
