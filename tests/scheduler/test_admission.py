"""The gate before a replica: who runs, who is held, and that nobody is forgotten."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autellix.scheduler.admission import Gate
from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.holds import Passed, receipt_with_hold, ticket_with_hold
from autellix.scheduler.tickets import Receipt, Ticket

CAPACITY = 1000


def gate(**settings_: object) -> Gate:
    """Levels [0, 2), [2, 6), [6, 18), [18, inf) seconds; a cache of 1,000 tokens."""
    values = {
        "policy": "plas",
        "levels": 4,
        "first_quantum_s": 2.0,
        "quantum_ratio": 3.0,
        "beta": math.inf,
        "admission": True,
        **settings_,
    }
    return Gate(SchedulerConfig(**values), CAPACITY)  # type: ignore[arg-type]


def ticket(call: str, attained_s: float = 0.0, tokens: int = 300, **more: object) -> Ticket:
    """A call "P.2" of program P, whose number is its letter's place in the alphabet."""
    program = call.partition(".")[0]
    return Ticket(
        program=program,
        call=call,
        attained_s=attained_s,
        prompt_tokens=tokens,
        program_number=ord(program[0]) - ord("A"),
        **more,  # type: ignore[arg-type]
    )


def receipt(call: str, prompt: int = 300, cached: int = 0, output: int = 10) -> Receipt:
    return Receipt(
        program=call.partition(".")[0],
        call=call,
        service_s=1.0,
        wait_s=0.0,
        levels=(1,),
        preemptions=0,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
    )


@dataclass
class Door:
    """A gate with a clock; remembers what it let through."""

    gate: Gate
    now: float = 0.0
    passed: list[Passed] = field(default_factory=list)

    def comes(self, call: Ticket, known: int = 0) -> list[str]:
        self.gate.call_comes(call, self.now, known_tokens=known)
        return self.collect()

    def ends(self, call: str, cost: Receipt | None = None) -> list[str]:
        self.gate.call_ended(call, self.now, cost)
        return self.collect()

    def at(self, now: float) -> list[str]:
        self.now = now
        self.gate.tick(now)
        return self.collect()

    def collect(self) -> list[str]:
        passed = self.gate.passed()
        self.passed += passed
        self.gate.check()
        return [one.call for one in passed]

    def thrash(self) -> None:
        """A program of two calls computes its context twice, as often as it takes."""
        for turn in range(20):
            first, second = f"Z{turn}.1", f"Z{turn}.2"
            self.comes(ticket(first, tokens=200))
            self.ends(first, receipt(first, prompt=200))
            self.comes(ticket(second, tokens=400), known=200)
            self.ends(second, receipt(second, prompt=400, cached=0))
            self.gate.program_ended(f"Z{turn}", self.now)
            self.collect()
            if self.gate.limit.tokens < math.inf:
                return
        raise AssertionError("nothing thrashed")


def worked(door: Door, program: str, calls: int) -> None:
    """The program has had calls of 300 fresh tokens."""
    for n in range(calls):
        call = f"{program}.past{n}"
        door.comes(ticket(call))
        door.ends(call, receipt(call))
    door.gate.limit.tokens = 800  # that was calm


@pytest.fixture
def tight() -> Door:
    """A gate that has seen thrashing: programs may have 800 of 1,000 tokens."""
    door = Door(gate())
    door.thrash()
    assert door.gate.limit.tokens == pytest.approx(800)
    return door


class TestWithoutThrashing:
    def test_every_call_passes_at_once_however_much_it_needs(self) -> None:
        door = Door(gate())
        for n in range(50):
            assert door.comes(ticket(f"P{n}.1", tokens=900)) == [f"P{n}.1"]
        assert all(one.held_s == 0 and not one.reason for one in door.passed)

    def test_contexts_found_in_the_cache_never_set_a_limit(self) -> None:
        door = Door(gate())
        for n in range(300):
            call = f"A.{n}"
            door.comes(ticket(call, tokens=500), known=400)
            door.ends(call, receipt(call, prompt=500, cached=400))
        assert door.gate.limit.tokens == math.inf

    def test_what_a_program_lost_in_a_long_tool_call_is_its_own_affair(self) -> None:
        door = Door(gate(admission_idle_s=5.0))
        for n in range(300):
            call = f"A.{n}"
            door.comes(ticket(call, tokens=500), known=400)
            door.ends(call, receipt(call, prompt=500, cached=0))
            door.now += 6.0
        assert door.gate.limit.tokens == math.inf


class TestWithALimit:
    def test_a_program_that_does_not_fit_is_held_and_comes_in_when_there_is_room(
        self, tight: Door
    ) -> None:
        assert tight.comes(ticket("A.1")) == ["A.1"]
        assert tight.comes(ticket("B.1")) == ["B.1"]
        assert tight.comes(ticket("C.1")) == []
        assert tight.gate.holding == ["C.1"]
        tight.now = 4.0
        tight.ends("A.1", receipt("A.1"))
        tight.gate.program_ended("A", tight.now)
        assert tight.collect() == ["C.1"]
        held = tight.passed[-1]
        assert held.held_s == 4.0
        assert "tokens" in held.reason

    def test_further_calls_of_a_program_that_is_in_pass(self, tight: Door) -> None:
        tight.comes(ticket("A.1"))
        tight.comes(ticket("B.1"))
        tight.comes(ticket("C.1"))
        tight.ends("A.1", receipt("A.1"))
        assert tight.comes(ticket("A.2", tokens=320), known=300) == ["A.2"]

    def test_held_programs_come_in_by_level_and_then_by_arrival(self, tight: Door) -> None:
        tight.comes(ticket("A.1", tokens=800))
        tight.comes(ticket("D.1", attained_s=7.0))
        tight.comes(ticket("C.1"))
        tight.comes(ticket("B.1"))
        assert tight.gate.holding == ["B.1", "C.1", "D.1"]
        assert tight.ends("A.1", receipt("A.1", prompt=800)) == ["B.1"], "nothing ran"
        tight.gate.program_ended("A", 0.0)
        assert tight.collect() == ["C.1"]

    def test_a_better_placed_program_pauses_the_worst_at_its_next_call(self, tight: Door) -> None:
        worked(tight, "B", calls=4)
        tight.comes(ticket("A.1", attained_s=3.0))
        tight.comes(ticket("B.1", attained_s=7.0))
        assert tight.comes(ticket("C.1", tokens=450)) == [], "B runs its call to the end"
        assert tight.ends("B.1", receipt("B.1")) == ["C.1"]
        assert tight.comes(ticket("B.2", attained_s=7.0)) == []
        tight.ends("C.1", receipt("C.1"))
        tight.gate.program_ended("C", 0.0)
        assert tight.collect() == ["B.2"]
        assert tight.gate.paused_programs == 1

    def test_the_better_one_need_not_wait_where_the_cache_holds_both(self, tight: Door) -> None:
        worked(tight, "B", calls=4)
        tight.comes(ticket("A.1", attained_s=3.0))
        tight.comes(ticket("B.1", attained_s=7.0))
        assert tight.comes(ticket("C.1")) == ["C.1"], "B has been told to go"
        assert CAPACITY >= tight.gate.used_tokens > tight.gate.limit.tokens
        assert tight.gate.paused_programs == 1

    def test_nobody_is_paused_who_has_worked_less_than_all_would_wait_for(
        self, tight: Door
    ) -> None:
        worked(tight, "B", calls=4)
        tight.comes(ticket("A.1", attained_s=3.0))
        tight.comes(ticket("B.1", attained_s=7.0))
        for n in range(40):
            tight.comes(ticket(f"E.{n}", attained_s=20.0))
        tight.comes(ticket("C.1"))
        assert tight.ends("B.1", receipt("B.1")) == []
        assert tight.comes(ticket("B.2", attained_s=7.0, tokens=310), known=300) == ["B.2"]
        assert tight.gate.paused_programs == 0

    def test_the_further_a_small_one_stands_apart_the_more_it_pays(self) -> None:
        for attained_s, paused in ((3.0, 0), (0.0, 1)):
            door = Door(gate())
            door.thrash()
            worked(door, "B", calls=4)
            door.comes(ticket("A.1", attained_s=19.0, tokens=470))
            door.comes(ticket("B.1", attained_s=19.0))
            for n in range(600):
                door.gate.call_comes(ticket(f"E.{n}", attained_s=19.0), 0.0)
            door.comes(ticket("C.1", attained_s=attained_s, tokens=5))
            assert door.gate.paused_programs == paused

    def test_a_small_one_waits_for_nobody_who_goes(self, tight: Door) -> None:
        worked(tight, "B", calls=4)
        tight.comes(ticket("A.1", attained_s=3.0, tokens=480))
        tight.comes(ticket("B.1", attained_s=7.0))
        assert tight.comes(ticket("D.1", tokens=175)) == ["D.1"], "the cache holds all"
        assert tight.comes(ticket("C.1", tokens=5)) == ["C.1"]
        assert tight.gate.used_tokens > CAPACITY
        assert tight.comes(ticket("F.1", tokens=50)) == []

    def test_a_program_of_the_same_level_pauses_nobody(self, tight: Door) -> None:
        tight.comes(ticket("B.1"))
        tight.comes(ticket("C.1"))
        tight.comes(ticket("A.1"))
        tight.ends("C.1", receipt("C.1"))
        assert tight.comes(ticket("C.2", tokens=320), known=300) == ["C.2"]

    def test_calls_beside_each_other_count_their_common_part_once(self, tight: Door) -> None:
        tight.comes(ticket("A.1", tokens=400))
        for n in range(2, 7):
            assert tight.comes(ticket(f"A.{n}", tokens=400), known=390)
        assert tight.gate.used_tokens < 550

    def test_a_program_that_is_too_large_runs_alone(self, tight: Door) -> None:
        assert tight.comes(ticket("A.1", tokens=990)) == ["A.1"]

    def test_while_nothing_runs_somebody_is_let_in(self, tight: Door) -> None:
        tight.comes(ticket("A.1", tokens=800))
        tight.comes(ticket("B.1", tokens=800))
        assert tight.ends("A.1", receipt("A.1", prompt=800)) == ["B.1"], "A is in a tool call"

    def test_a_long_tool_call_gives_the_room_back(self) -> None:
        door = Door(gate(admission_idle_s=5.0))
        door.thrash()
        door.comes(ticket("A.1"))
        door.comes(ticket("B.1"))
        door.comes(ticket("C.1"))
        door.ends("A.1", receipt("A.1"))
        assert door.gate.next_s == 5.0
        assert door.at(4.9) == []
        assert door.at(5.0) == ["C.1"]
        assert door.comes(ticket("A.2")) == [], "it has to come in again"

    def test_a_held_call_that_is_given_up_leaves_nothing_behind(self, tight: Door) -> None:
        tight.comes(ticket("A.1", tokens=800))
        tight.comes(ticket("B.1"))
        tight.ends("B.1")
        tight.gate.program_ended("B", 0.0)
        assert tight.gate.holding == []
        assert tight.ends("A.1", receipt("A.1", prompt=800)) == []

    def test_a_program_that_ends_before_its_calls_is_forgotten_with_the_last(
        self, tight: Door
    ) -> None:
        tight.comes(ticket("A.1"))
        tight.gate.program_ended("A", 0.0)
        used = tight.gate.used_tokens
        tight.ends("A.1")
        assert tight.gate.used_tokens < used
        assert tight.gate.used_tokens == 0

    def test_without_thrashing_and_without_anybody_held_the_limit_goes(self, tight: Door) -> None:
        for n in range(40):
            call = f"A.{n}"
            tight.comes(ticket(call, tokens=500), known=400)
            tight.ends(call, receipt(call, prompt=500, cached=400))
        assert tight.gate.limit.tokens == math.inf

    def test_more_thrashing_lowers_the_limit_down_to_a_floor(self, tight: Door) -> None:
        before = tight.gate.limit.tokens
        for turn in range(60):
            for n in range(2):
                call = f"A.{turn}.{n}"
                tight.comes(ticket(call, tokens=400), known=300)
                tight.ends(call, receipt(call, prompt=400))
        assert 0 < tight.gate.limit.tokens < before


class TestTheHoldIsBounded:
    def test_a_program_that_waited_beta_times_its_service_stands_in_the_best_level(self) -> None:
        door = Door(gate(beta=2.0))
        door.thrash()
        door.comes(ticket("A.1", tokens=800))
        old = ticket("E.1", attained_s=7.0, program_service_s=7.0, program_wait_s=4.0)
        door.comes(old)
        door.comes(ticket("F.1", tokens=300))
        assert door.gate.holding == ["F.1", "E.1"]
        assert door.gate.next_s == 10.0
        door.at(10.0)
        assert door.gate.holding == ["E.1", "F.1"]

    def test_a_program_that_has_not_begun_is_judged_by_what_its_course_expects(self) -> None:
        door = Door(gate(beta=2.0, policy="adaptive", expected_step_s=1.0))
        door.thrash()
        door.comes(ticket("A.1", tokens=800))
        door.comes(ticket("E.1", tokens=300, course=(0.0, 7.0)))
        token_s = door.gate._token_s
        assert door.gate.next_s == pytest.approx(door.now + 2.0 * 7.0 * token_s)

    def test_to_the_queue_and_in_the_receipt_the_hold_is_wait(self) -> None:
        passed = Passed("A.1", 9.0, 3.0, "no room")
        assert ticket_with_hold(ticket("A.1", program_wait_s=1.0), passed).program_wait_s == 4.0
        told = receipt_with_hold(receipt("A.1"), passed)
        assert told.wait_s == 3.0
        assert [(d.kind, d.at_s, d.reason) for d in told.decisions] == [
            ("admission", 9.0, "held 3 s: no room")
        ]

    def test_a_call_that_was_not_held_has_the_receipt_that_came(self) -> None:
        cost = receipt("A.1")
        assert receipt_with_hold(cost, Passed("A.1", 9.0, 0.0, "")) is cost


FRACTIONS = st.integers(0, 63).map(lambda n: n / 64)


@given(
    st.lists(st.tuples(FRACTIONS, FRACTIONS, FRACTIONS, FRACTIONS), min_size=10, max_size=120),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_nobody_is_lost_and_the_engine_never_idles_with_calls_at_its_door(
    turns: list[tuple[float, float, float, float]], thrashes: bool
) -> None:
    door = Door(gate(beta=2.0, admission_idle_s=2.0))
    if thrashes:
        door.thrash()
    here: dict[str, Ticket] = {}
    passed: set[str] = set()
    came = 0
    for kind, who, size, much in turns:
        door.now += size / 4
        if kind < 0.55:
            call = f"{'ABCDEFG'[int(who * 7)]}.{came}"
            came += 1
            here[call] = ticket(
                call,
                attained_s=int(much * 30),
                tokens=1 + int(size * 800),
                program_service_s=int(much * 30),
            )
            passed |= {*door.comes(here[call], known=int(much * size * 700))}
        elif kind < 0.9 and here:
            call = sorted(here)[int(who * len(here))]
            tokens = here.pop(call).prompt_tokens
            cost = receipt(call, prompt=tokens, cached=int(much * tokens))
            passed |= {*door.ends(call, cost if call in passed else None)}
        elif kind < 0.95:
            program = "ABCDEFG"[int(who * 7)]
            for call in [call for call in here if call.startswith(program)]:
                del here[call]
                passed |= {*door.ends(call)}
            door.gate.program_ended(program, door.now)
            passed |= {*door.collect()}
        else:
            passed |= {*door.at(door.now)}
        assert not here or passed & here.keys(), "calls are held at an idle engine"
    while here:
        call = next(call for call in here if call in passed)
        del here[call]
        passed |= {*door.ends(call)}
    door.at(door.now + 3.0)
    assert door.gate.used_tokens == 0
    assert door.gate.holding == []


def test_the_same_call_cannot_come_twice() -> None:
    door = Door(gate())
    door.comes(ticket("A.1"))
    with pytest.raises(ValueError, match="is here already"):
        door.comes(ticket("A.1"))
