"""A small run, shared by the tests of the trace document and of the trace file."""

from __future__ import annotations

import pytest

from autellix.scheduler.tickets import Decision, Receipt
from autellix.tracing.events import (
    CallEnded,
    CallStarted,
    Event,
    ProgramEnded,
    ProgramStarted,
    RunStarted,
)

RUN = RunStarted(clock_s=100.0, engine="vllm", model="smollm2", replicas=1, policy="atlas")
RECEIPT = Receipt(
    program="p",
    call="a",
    service_s=0.5,
    wait_s=0.25,
    levels=(1, 2),
    preemptions=1,
    prompt_tokens=30,
    cached_tokens=16,
    output_tokens=12,
    replica=0,
    decisions=(
        Decision(at_s=100.5, kind="arrival", level=1, cause="new program"),
        Decision(at_s=101.0, kind="demotion", level=2, cause="quantum of 0.3 s used up"),
    ),
)
SMALL_RUN: list[Event] = [
    RUN,
    ProgramStarted(at_s=0.0, program="p", name="agent"),
    CallStarted(at_s=0.5, program="p", call="a", kind="llm", name="smollm2", node="think"),
    CallEnded(at_s=1.5, call="a", status="done", receipt=RECEIPT, first_token_s=0.75),
    CallStarted(
        at_s=1.5,
        program="p",
        call="t",
        kind="tool",
        name="search",
        node="act",
        parents=(("a", "trigger"),),
    ),
    CallEnded(at_s=4.0, call="t", status="failed", error="no network"),
    CallStarted(
        at_s=4.0, program="p", call="b", kind="llm", name="smollm2", parents=(("t", "barrier"),)
    ),
    ProgramEnded(at_s=4.5, program="p", status="interrupted"),
]


@pytest.fixture
def small_run() -> list[Event]:
    """A call, a tool that fails, a call that still runs when the program is interrupted."""
    return list(SMALL_RUN)
