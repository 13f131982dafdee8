"""When the engine is told that a program is away, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autellix.runtime.absences import Absences
from autellix.runtime.protocols import CallStart
from autellix.scheduler.kv_home import PERSON_S


@dataclass
class World:
    """Calls and tools under a clock that the test moves."""

    now: float = 0.0
    told: list[tuple[str, Sequence[float]]] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.absences = Absences(
            lambda *told: self.told.append(told), self.returned.append, now=lambda: self.now
        )

    def begin(self, call: str, kind: str = "tool", name: str = "grep", program: str = "p") -> None:
        start = CallStart(
            program=program,
            call=call,
            kind=kind,  # type: ignore[arg-type]
            name=name,
            node=None,
            parents=(),
        )
        self.absences.call_started(start)

    def end(self, call: str, seconds: float = 0.0, *, done: bool = True) -> None:
        self.now += seconds
        self.absences.call_ended(call, done=done)

    def record(self, name: str, seconds: float) -> None:
        for _ in range(4):
            self.begin("recorded", name=name, program="earlier")
            self.end("recorded", seconds)
        self.told.clear()
        self.returned.clear()


def test_a_program_is_away_while_a_tool_is_open_and_no_call_is() -> None:
    world = World()
    world.begin("c", kind="llm")
    assert world.told == []
    world.end("c")
    assert world.told == [], "neither a call nor a tool: it goes on at once"
    world.begin("t")
    assert world.told == [("p", ())]


def test_a_tool_beside_a_call_takes_the_program_away_once_the_call_has_ended() -> None:
    world = World()
    world.begin("c", kind="llm")
    world.begin("t")
    assert world.told == []
    world.end("c")
    assert world.told == [("p", ())]


def test_how_long_is_what_was_recorded_of_the_tool() -> None:
    world = World()
    world.record("grep", 2.0)
    world.begin("t")
    assert world.told == [("p", (2.0,) * 9)]


def test_of_several_tools_the_longest_counts_and_one_unknown_makes_all_unknown() -> None:
    world = World()
    world.record("grep", 2.0)
    world.record("make", 30.0)
    world.begin("t1")
    world.begin("t2", name="make")
    world.begin("t3", name="new")
    assert [absence_s[:1] for _, absence_s in world.told] == [(2.0,), (30.0,), ()]


def test_a_tool_that_failed_says_nothing_of_how_long_it_takes() -> None:
    world = World()
    for _ in range(4):
        world.begin("t")
        world.end("t", 5.0, done=False)
    assert world.absences.tool_times.deciles_s("grep") == ()


def test_who_waits_for_a_person_is_away_for_as_long_as_people_take() -> None:
    world = World()
    world.absences.interrupted("p")
    assert world.told == [("p", PERSON_S)]


def test_the_end_of_the_last_tool_says_that_the_program_goes_on() -> None:
    world = World()
    world.begin("t1")
    world.begin("t2")
    world.end("t1")
    assert world.returned == [], "it waits for the other one"
    world.end("t2", done=False)
    assert world.returned == ["p"], "one that failed is over too"


def test_a_tool_that_ends_beside_a_call_says_nothing() -> None:
    world = World()
    world.begin("c", kind="llm")
    world.begin("t")
    world.end("t")
    world.end("c")
    assert world.returned == []


def test_a_persons_answer_says_once_that_the_program_goes_on() -> None:
    world = World()
    world.absences.goes_on("p")
    assert world.returned == [], "its first run"
    world.absences.interrupted("p")
    world.absences.goes_on("p")
    world.absences.goes_on("p")
    assert world.returned == ["p"]
    world.absences.interrupted("p")
    world.absences.forget("p")
    world.absences.goes_on("p")
    assert world.returned == ["p"], "it ended meanwhile"


def test_an_end_that_nobody_began_is_ignored() -> None:
    world = World()
    world.end("unknown")
    assert world.told == []


def test_nothing_is_left_when_all_is_over() -> None:
    world = World()
    world.begin("c", kind="llm")
    world.begin("t")
    world.end("t", 1.0)
    world.end("c")
    world.absences.interrupted("q")
    world.absences.forget("q")
    assert not world.absences._interrupted
    assert not world.absences._programs and not world.absences._started
