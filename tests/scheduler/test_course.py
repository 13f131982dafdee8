"""A call whose ticket says where it stands as it goes on."""

from __future__ import annotations

import math

from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.core import Scheduler
from autellix.scheduler.course import course_level
from autellix.scheduler.levels import Levels
from autellix.scheduler.tickets import Ticket

LEVELS = Levels((2.0, 6.0, 18.0))


def core(**settings: object) -> Scheduler:
    """Four levels: [0, 2), [2, 6), [6, 18), [18, inf) seconds; a token counts as a second."""
    values = {
        "policy": "adaptive",
        "levels": 4,
        "first_quantum_s": 2.0,
        "quantum_ratio": 3.0,
        "beta": math.inf,
    }
    return Scheduler(SchedulerConfig.from_dict({**values, "expected_step_s": 1.0, **settings}))


def ticket(call: str, *course: float, **more: object) -> Ticket:
    values = {"program": "P-" + call, "call": call, "course": course, **more}
    return Ticket(**values)  # type: ignore[arg-type]


def test_the_level_is_that_of_the_place_reached() -> None:
    course = (0.0, 1.0, 5.0, 7.0, 9.0, 40.0)
    assert course_level(course, LEVELS, 1.0, 0.0) == (0, 5.0)
    assert course_level(course, LEVELS, 1.0, 6.0) == (2, 3.0)
    assert course_level(course, LEVELS, 1.0, 9.0) == (3, math.inf)


def test_steps_and_places_are_turned_into_seconds() -> None:
    assert course_level((0.0, 3.0, 8.0, 40.0), LEVELS, 0.5, 0.0) == (0, 4.0)


def test_a_worse_place_in_the_same_level_changes_nothing() -> None:
    assert course_level((0.0, 2.5, 3.0, 5.5), LEVELS, 1.0, 0.0) == (1, math.inf)


def test_a_call_arrives_where_its_course_says_whatever_its_program_has_attained() -> None:
    scheduler = core()
    early = scheduler.arrive(ticket("early", 0.0, 1.0, attained_s=100.0), 0.0)
    late = scheduler.arrive(ticket("late", 0.0, 20.0), 0.0)
    assert (early.level, late.level) == (0, 3)
    scheduler.check()
    receipt = scheduler.leave(late, 1.0)
    assert receipt.decisions[0].reason == "expected 20 s"


def test_a_call_goes_down_when_its_course_does() -> None:
    scheduler = core(policy_interval=1)
    call = scheduler.arrive(ticket("c", 0.0, 1.0, 3.0, 7.0), 0.0)
    levels = []
    for second in range(6):
        scheduler.tick(float(second))
        levels.append(call.level)
        scheduler.dispatch([] if second else [call], [], float(second))
        scheduler.charge(second + 1.0)
        scheduler.check()
    assert levels == [0, 0, 0, 2, 2, 2]
    assert scheduler.demotions == 1


def test_a_promoted_call_goes_back_to_its_own_level_after_a_quantum_of_the_best() -> None:
    scheduler = core(beta=2.0)
    call = scheduler.arrive(ticket("c", 0.0, 7.0), 0.0)
    assert call.level == 2
    assert scheduler.tick(15.0) == [call]
    assert call.level == 0
    scheduler.dispatch([call], [], 15.0)
    scheduler.charge(17.5)
    scheduler.tick(17.5)
    assert call.level == 2
    scheduler.check()


def test_a_program_that_has_not_begun_is_not_starved_by_any_wait() -> None:
    """Judged by its service of nothing, the first moment of waiting would be too long for it."""
    scheduler = core(beta=2.0)
    call = scheduler.arrive(ticket("c", 0.0, 7.0), 0.0)
    assert scheduler.tick(13.9) == []
    assert scheduler.tick(14.0) == [call]


def test_the_course_travels_with_the_ticket() -> None:
    sent = ticket("c", 0.0, 7.0, 3.5, 9.0)
    flat = sent.to_flat()
    assert flat["autellix_course"] == [0.0, 7.0, 3.5, 9.0]
    assert Ticket.from_flat(flat) == sent
    del flat["autellix_course"]
    bare = Ticket.from_flat(flat)
    assert bare is not None
    assert bare.course == ()


def test_a_call_in_the_last_level_stays_there_whatever_its_course_says_later() -> None:
    scheduler = core(policy_interval=1, beta=2.0)
    call = scheduler.arrive(ticket("c", 0.0, 1.0, 1.0, 7.0, 2.0, 20.0, 60.0, 70.0), 0.0)
    second, seen = 0, [call.level]
    while second < 100:
        scheduler.dispatch([] if second else [call], [], float(second))
        second += 1
        scheduler.charge(float(second))
        scheduler.tick(float(second))
        scheduler.check()
        seen.append(call.level)
    assert seen[:4] == [0, 2, 3, 3]
    assert seen[-1] == 3


def test_bounds_that_follow_the_engine_do_not_push_a_call_out_of_the_last_level() -> None:
    """Steps that become longer: by its course the call now stands higher than it does."""
    scheduler = core(policy_interval=1, first_quantum_s=None, quantum_steps=2, expected_step_s=0.1)
    course = (0.0, 1.0, 400.0, 7.0, 3000.0, 200.0)
    call = scheduler.arrive(ticket("c", *course), 0.0)
    now = 0.0
    for step in range(900):
        scheduler.dispatch([] if step else [call], [], now)
        now += 0.1 if step < 410 else 1.0
        scheduler.charge(now)
        scheduler.tick(now)
        scheduler.check()
    assert call.levels == [1, 3, 4]
