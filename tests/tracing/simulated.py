"""Runs of any size, as the recorder would tell them: programs in the simulator, real receipts."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator

from autellix.scheduler.engine_model import EngineModel, StepTime
from autellix.scheduler.sim_orders import sim_policy
from autellix.scheduler.sim_programs import SimCall, SimProgram
from autellix.scheduler.sim_records import CallRecord
from autellix.scheduler.simulator import Simulation
from autellix.tracing.events import (
    CallEnded,
    CallStarted,
    Event,
    ProgramEnded,
    ProgramStarted,
    RunStarted,
)
from autellix.tracing.record import RunRecord

MODEL = EngineModel(
    name="small",
    step=StepTime(a=0.02, b=0.0002, c=0.001, d=1e-7),
    kv_tokens=60_000,
    block_tokens=16,
    seats=8,
)
_CLOCK_S = 5000.0


def simulated_run(
    programs: int,
    calls: int,
    *,
    policy: str = "atlas",
    replicas: int = 1,
    seed: int = 1,
    every_s: float = 0.5,
    model: EngineModel = MODEL,
) -> list[Event]:
    """The events of a run, by time.

    Args:
        programs, calls: how many programs, and how many LLM calls each makes; a tool lies between.
        every_s: time between the programs' arrivals, seconds.
    """
    chance = random.Random(seed)
    specs = [_program(f"agent-{n + 1}", calls, chance) for n in range(programs)]
    records: list[CallRecord] = []
    simulation = Simulation(model, sim_policy(policy), replicas=replicas, on_call=records.append)
    for number, replica in enumerate(simulation.replicas):
        replica.core.config = dataclasses.replace(replica.core.config, replica=number)
    result = simulation.run((n * every_s, spec) for n, spec in enumerate(specs))
    by_name = {spec.name: spec for spec in specs}
    ids = {(s.name, n): _uuid(chance) for s in specs for n in range(len(s.calls))}
    events: list[tuple[float, int, Event]] = []
    for record in records:
        events += _call(record, by_name[record.program], ids, chance)
    for found in result.programs:
        start = ProgramStarted(at_s=found.arrived_s, program=found.name, name="agent")
        events.append((found.arrived_s, 0, start))
        end = ProgramEnded(at_s=found.ended_s, program=found.name, status="done")
        events.append((found.ended_s, 4, end))
    events.sort(key=lambda event: event[:2])
    first = RunStarted(
        clock_s=_CLOCK_S,
        engine="sim",
        model=model.name,
        replicas=replicas,
        policy=policy,
        started_at=1_790_000_000.0,
        seats=model.seats,
        kv_tokens=model.kv_tokens,
        block_tokens=model.block_tokens,
        token_budget=model.token_budget,
        scheduler=sim_policy(policy).config.to_dict(),
    )
    return [first, *(event for _, _, event in events)]


def document_of(events: list[Event]) -> dict:
    """The trace document of events."""
    record = RunRecord()
    for event in events:
        record.apply(event)
    return record.document()


def repeated(document: dict, times: int) -> dict:
    """The document with its programs so many times over, each time under other ids."""
    programs = []
    for turn in range(times):
        text = json.dumps(document["programs"])
        for program in document["programs"]:
            for id in (program["id"], *(call["id"] for call in program["calls"])):
                # A UUID keeps its length.
                text = text.replace(f'"{id}"', f'"{turn:03x}{id[3:]}"')
        programs += json.loads(text)
    return {**document, "programs": programs}


def _program(name: str, calls: int, chance: random.Random) -> SimProgram:
    """A chain of calls that now and then forks in two and joins again."""
    made: list[SimCall] = []
    exits: tuple[int, ...] = ()
    prompt = 120
    while len(made) < calls:
        wide = 2 if chance.random() < 0.2 and calls - len(made) > 2 else 1
        first = len(made)
        for _ in range(wide):
            output = chance.choice((8, 20, 40, 90))
            made.append(
                SimCall(
                    parents=exits,
                    prompt_tokens=prompt,
                    output_tokens=output,
                    shared_prefix_tokens=max(0, prompt - 60) if exits else 0,
                    tool_s=chance.uniform(0.05, 1.5) if exits else 0.0,
                )
            )
        exits = tuple(range(first, len(made)))
        prompt = min(prompt + 60, 1500)
    return SimProgram(name, made)


def _call(
    record: CallRecord, spec: SimProgram, ids: dict[tuple[str, int], str], chance: random.Random
) -> Iterator[tuple[float, int, Event]]:
    """A call as the recorder sees it, and the tool before it."""
    call = spec.calls[record.number]
    id = ids[spec.name, record.number]
    parents = tuple((ids[spec.name, p], "trigger") for p in call.parents)
    if call.tool_s and len(call.parents) == 1:
        tool, begun_s = _uuid(chance), record.started_s - call.tool_s
        start = CallStarted(
            at_s=begun_s,
            program=spec.name,
            call=tool,
            kind="tool",
            name="search_documents",
            node="tools",
            parents=parents,
        )
        yield begun_s, 2, start
        yield record.started_s, 1, CallEnded(at_s=record.started_s, call=tool, status="done")
        parents = ((tool, "trigger"),)
    receipt = record.receipt
    shifted = tuple(d._replace(at_s=d.at_s + _CLOCK_S) for d in receipt.decisions)
    yield (
        record.started_s,
        3,
        CallStarted(
            at_s=record.started_s,
            program=spec.name,
            call=id,
            kind="llm",
            name="ChatAutellix",
            node="agent",
            parents=parents,
        ),
    )
    wire = {**receipt.to_wire(), "call": id, "decisions": shifted}
    yield (
        record.ended_s,
        1,
        CallEnded(
            at_s=record.ended_s,
            call=id,
            status="done",
            receipt=type(receipt).from_wire(wire),
            first_token_s=record.ended_s - receipt.service_s / 2,
        ),
    )


def _uuid(chance: random.Random) -> str:
    digits = f"{chance.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
