"""Every moment of a wait has a cause, and the causes add up to what the engine measured."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from autellix.scheduler.tickets import Decision, Receipt
from autellix.tracing import why
from autellix.tracing.events import CallEnded, CallStarted, Event, ProgramStarted, RunStarted
from autellix.tracing.phases import WAITS, phases_of
from autellix.tracing.trace import Trace
from autellix.tracing.trace_fields import trace_from_document
from autellix.tracing.trace_file import read_trace
from autellix.tracing.waiting import Waiting
from tests.tracing.simulated import document_of, simulated_run

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())


def call(
    program: str,
    id: str,
    *decisions: tuple[float, str, int],
    replica: int = 0,
    start: float | None = None,
    held_s: float = 0.0,
) -> tuple[list[Event], float]:
    """A call that begins at its first decision unless told, and ends at its last."""
    log = tuple(Decision(at, kind, level, f"why {kind}") for at, kind, level in decisions)  # type: ignore[arg-type]
    wait_s, service_s = held_s, 0.0
    for (at, kind, _), (later, _, _) in pairwise(decisions):
        if kind in ("arrival", "preemption"):
            wait_s += later - at
        elif kind != "admission":
            service_s += later - at
    receipt = Receipt(
        program=program,
        call=id,
        service_s=service_s,
        wait_s=wait_s,
        levels=(1,),
        preemptions=sum(kind == "preemption" for _, kind, _ in decisions),
        output_tokens=10,
        replica=replica,
        decisions=log,
    )
    start, end = decisions[0][0] if start is None else start, decisions[-1][0]
    return [
        CallStarted(at_s=start, program=program, call=id, kind="llm", name="m"),
        CallEnded(at_s=end, call=id, status="done", receipt=receipt),
    ], start


def run(*calls: tuple[list[Event], float], seats: int = 2) -> Waiting:
    first = RunStarted(
        clock_s=0.0, engine="vllm", model="m", replicas=2, policy="atlas", seats=seats
    )
    events: list[Event] = [first]
    for both, start in sorted(calls, key=lambda found: found[1]):
        started = both[0]
        assert isinstance(started, CallStarted)
        events.append(ProgramStarted(at_s=start, program=started.program, name="agent"))
        events += both
    return Waiting(trace_from_document(document_of(events), "t"))


A = call("a", "a1", (0, "arrival", 1), (0, "dispatch", 1), (10, "leave", 1))
B = call("b", "b1", (0, "arrival", 1), (0, "dispatch", 1), (4, "demotion", 2), (10, "leave", 2))


def test_a_call_that_waits_for_a_seat_waits_for_those_who_hold_them():
    waiting = run(A, B, call("c", "c1", (2, "arrival", 1), (10, "dispatch", 1), (12, "leave", 1)))
    c1 = waiting.trace.by_id["c1"]
    (wait,) = waiting.waits(c1)
    # a holds one of two seats for 8 s on c's level; b is there for 2 s and then below for 6 s.
    assert wait.causes == pytest.approx({"same": 4 + 1, "worse": 3})
    assert wait.seats_taken == pytest.approx(2.0)
    assert [(s.call.id, s.seconds, s.level, s.standing) for s in waiting.served(c1, wait)] == [
        ("a1", 8.0, 1, "same"),
        ("b1", 8.0, 2, "worse"),
    ]


def test_of_a_call_under_way_nothing_is_known_but_that_it_began():
    begun, start = call("c", "c1", (0, "arrival", 1), (9, "leave", 1))
    waiting = run(A, (begun[:1], start))
    (under_way,) = [c for p in waiting.trace.programs for c in p.calls if c.id == "c1"]
    assert [phase.kind for phase in phases_of(under_way, 10.0)] == ["unmeasured"]
    assert waiting.waits(under_way) == []


def test_calls_of_the_same_program_are_told_from_others():
    waiting = run(A, B, call("a", "a2", (2, "arrival", 3), (10, "dispatch", 3), (12, "leave", 3)))
    a2 = waiting.trace.by_id["a2"]
    assert waiting.causes(a2) == pytest.approx({"own": 4, "better": 4})
    standings = {s.call.id: s.standing for s in waiting.served(a2, waiting.waits(a2)[0])}
    assert standings == {"a1": "own", "b1": "better"}


def test_while_a_seat_is_free_a_call_waits_for_the_next_step_and_then_for_room():
    waiting = run(A, call("c", "c1", (2, "arrival", 1), (9, "dispatch", 1), (11, "leave", 1)))
    # The median call's service is 6 s for 10 tokens.
    assert waiting.step_s == pytest.approx(0.6)
    assert waiting.causes(waiting.trace.by_id["c1"]) == pytest.approx({"step": 0.6, "room": 6.4})


def test_another_replica_holds_nobody_up():
    waiting = run(
        A, B, call("c", "c1", (2, "arrival", 1), (3, "dispatch", 1), (9, "leave", 1), replica=1)
    )
    c1 = waiting.trace.by_id["c1"]
    assert set(waiting.causes(c1)) <= {"step", "room"}
    assert waiting.served(c1, waiting.waits(c1)[0]) == []


def test_a_call_that_lost_its_seat_waits_for_that_reason():
    lost = call(
        "c",
        "c1",
        (0, "arrival", 1),
        (0, "dispatch", 1),
        (3, "preemption", 4),
        (9, "resume", 4),
        (11, "leave", 4),
    )
    waiting = run(B, lost)
    c1 = waiting.trace.by_id["c1"]
    assert waiting.causes(c1) == pytest.approx({"preempted": 6})
    assert [s.standing for s in waiting.served(c1, waiting.waits(c1)[0])] == ["better"]


def test_what_admission_control_held_back_is_told_apart():
    held = call(
        "c",
        "c1",
        (5, "admission", 2),
        (5.5, "arrival", 2),
        (6, "dispatch", 2),
        (8, "leave", 2),
        start=0.5,
        held_s=4,
    )
    waiting = run(A, B, held)
    assert [(p.kind, p.lasts_s, p.level) for p in waiting.phases["c1"]] == [
        ("on its way", 0.5, 0),
        ("held", 4.0, 2),
        ("on its way", 0.5, 0),
        ("waiting", 0.5, 2),
        ("running", 2.0, 2),
    ]
    c1 = waiting.trace.by_id["c1"]
    assert waiting.causes(c1)["held"] == pytest.approx(4)
    assert sum(waiting.causes(c1).values()) == pytest.approx(c1.wait_s)
    story = [line.text for line in why.story(waiting, c1)]
    assert "Admission control lets it in: why admission." in story


def test_seats_that_the_trace_does_not_tell_are_as_many_as_were_taken():
    waiting = run(A, B, seats=0)
    assert waiting.seats(0) == 2
    assert waiting.seats(1) == 0


def traces() -> list[tuple[str, Trace]]:
    found = [(sample.name, read_trace(sample)) for sample in SAMPLES]
    for replicas in (1, 2):
        document = document_of(simulated_run(30, 8, replicas=replicas, every_s=0.2))
        found.append((f"simulated x{replicas}", trace_from_document(document, "t")))
    return found


TRACES = traces()


@pytest.mark.parametrize("trace", [t for _, t in TRACES], ids=[n for n, _ in TRACES])
def test_the_phases_fill_a_call_and_the_causes_sum_to_its_wait(trace: Trace):
    waiting = Waiting(trace)
    waited = 0.0
    for call in trace.calls():
        phases = waiting.phases[call.id]
        assert phases == phases_of(call, trace.end_s)
        assert phases[0].start_s == call.start_s
        assert phases[-1].end_s == pytest.approx(call.end_s)
        for before, after in pairwise(phases):
            assert before.end_s == after.start_s
        assert sum(p.lasts_s for p in phases if p.kind in WAITS) == pytest.approx(
            call.wait_s, abs=1e-6
        )
        causes = waiting.causes(call)
        assert all(seconds > 0 for seconds in causes.values())
        assert sum(causes.values()) == pytest.approx(call.wait_s, abs=1e-6)
        for wait in waiting.waits(call):
            served = waiting.served(call, wait)
            assert all(s.call is not call for s in served)
            assert sum(s.seconds for s in served) == pytest.approx(
                wait.seats_taken * wait.phase.lasts_s, abs=1e-6
            )
            assert wait.seats_taken <= waiting.seats(call.replica) + 1e-6
        waited += call.wait_s
    assert waited > 0


def test_the_sum_over_the_seats_is_what_asking_every_call_gives():
    """The fast way (integrals) against the plain one (each running call looked at)."""
    waiting = Waiting(TRACES[-1][1])
    compared = 0
    for call in waiting.trace.calls():
        for wait in waiting.waits(call):
            if wait.phase.kind != "waiting" or set(wait.causes) & {"step", "room"}:
                continue
            # No seat was free, so each running call has the same share of the time.
            seats = waiting.seats(call.replica)
            own = sum(s.seconds for s in waiting.served(call, wait) if s.standing == "own") / seats
            assert wait.causes.get("own", 0.0) == pytest.approx(own, abs=1e-6)
            compared += 1
    assert compared > 50
