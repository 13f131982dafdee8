"""Who gives way to whom when seats or KV blocks are short."""

from __future__ import annotations

from dataclasses import dataclass, field

from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.core import Scheduler
from autellix.scheduler.live_call import LiveCall
from autellix.scheduler.tickets import Ticket

STARTS = (0.0, 2.0, 6.0, 18.0)


@dataclass
class Room:
    free_seats: int = 0
    free_blocks: int = 100
    need: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    back_s: dict[str, float] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)

    def may_start(self, call: LiveCall) -> bool:
        return call.key not in self.blocked

    def may_stop(self, call: LiveCall) -> bool:
        return call.key not in self.blocked

    def blocks_needed(self, call: LiveCall) -> int:
        return self.need.get(call.key, 0)

    def blocks_freed(self, call: LiveCall) -> int:
        return self.held.get(call.key, 0)

    def seconds_back(self, call: LiveCall) -> float:
        return self.back_s.get(call.key, 0.0)


def place(running: dict[str, int], waiting: dict[str, int], **settings: object) -> Scheduler:
    """A scheduler with calls at the given levels, from 1; the running ones have run one second."""
    values = {
        "levels": 4,
        "first_quantum_s": 2.0,
        "quantum_ratio": 3.0,
        "policy": "plas",
        "preempt_gap": 1,
        "min_run_steps": 0,
        "patience_steps": 0,
        **settings,
    }
    core = Scheduler(SchedulerConfig(**values))  # type: ignore[arg-type]

    def arrive(name: str, level: int) -> LiveCall:
        ticket = Ticket(program="P-" + name, call=name, attained_s=STARTS[level - 1])
        return core.arrive(ticket, 0.0)

    core.dispatch([arrive(*one) for one in running.items()], [], 0.0)
    core.charge(1.0)
    for one in waiting.items():
        arrive(*one)
    return core


def chosen(core: Scheduler, room: Room, now: float = 1.0) -> list[tuple[str, str]]:
    return [(v.call.key, v.beneficiary.key) for v in core.victims(room, now)]


def test_the_worst_placed_gives_way_to_the_best_placed() -> None:
    core = place({"r2": 2, "r4": 4, "r3": 3}, {"w2": 2, "w1": 1})
    assert chosen(core, Room()) == [("r4", "w1"), ("r3", "w2")]


def test_in_a_level_the_one_with_least_to_lose_gives_way() -> None:
    core = place({"a": 3, "b": 3, "c": 3}, {"w": 1})
    assert chosen(core, Room(back_s={"a": 5.0, "b": 1.0, "c": 9.0})) == [("b", "w")]


def test_equals_do_not_give_way_nor_do_those_within_the_gap() -> None:
    assert chosen(place({"r": 2}, {"w": 2}), Room()) == []
    assert chosen(place({"r": 2}, {"w": 1}, preempt_gap=2), Room()) == []
    assert chosen(place({"r": 3}, {"w": 1}, preempt_gap=2), Room()) == [("r", "w")]


def test_nobody_gives_way_while_there_is_room() -> None:
    core = place({"r": 4}, {"w": 1})
    assert chosen(core, Room(free_seats=1)) == []


def test_blocks_count_as_well_as_seats() -> None:
    core = place({"small": 4, "large": 4}, {"w": 1})
    room = Room(free_seats=5, free_blocks=1, need={"w": 8}, held={"small": 2, "large": 9})
    assert chosen(core, room) == [("large", "w")]


def test_several_give_way_if_it_takes_several() -> None:
    core = place({"a": 4, "b": 3}, {"w": 1})
    room = Room(free_blocks=0, need={"w": 8}, held={"a": 4, "b": 4})
    assert chosen(core, room) == [("a", "w"), ("b", "w")]


def test_nobody_gives_way_in_vain() -> None:
    core = place({"a": 4, "b": 3, "best": 1}, {"w": 1})
    room = Room(free_blocks=0, need={"w": 9}, held={"a": 4, "b": 4, "best": 50})
    assert chosen(core, room) == []


def test_the_engine_stops_at_the_first_that_does_not_fit_and_so_does_the_search() -> None:
    core = place({"a": 4}, {"too large": 1, "would fit": 2})
    room = Room(free_blocks=0, need={"too large": 9, "would fit": 1}, held={"a": 4})
    assert chosen(core, room) == []


def test_room_made_for_one_is_left_for_the_next() -> None:
    core = place({"a": 4, "b": 4}, {"w1": 1, "w2": 1})
    room = Room(free_seats=3, free_blocks=0, need={"w1": 3, "w2": 5}, held={"a": 9, "b": 9})
    assert len(chosen(core, room)) == 1


def test_those_that_may_not_start_or_stop_are_passed_over() -> None:
    core = place({"a": 4, "b": 3}, {"w1": 1, "w2": 1})
    assert chosen(core, Room(blocked={"a", "w1"})) == [("b", "w2")]


def test_a_call_that_has_just_got_its_seat_keeps_it() -> None:
    core = place({"r": 4}, {"w": 1}, min_run_steps=100)  # 1.5 s of the expected step
    assert chosen(core, Room()) == []


def test_a_waiting_call_has_patience() -> None:
    core = place({"r": 4}, {"w": 1}, patience_steps=100)  # 1.5 s
    assert chosen(core, Room(), now=1.4) == []
    assert chosen(core, Room(), now=1.5) == [("r", "w")]


def test_a_call_gives_way_only_where_what_is_left_of_it_exceeds_the_way_back_of_its_kv() -> None:
    core = place({"r": 3}, {"w": 1})  # placed by 6 s of service
    assert chosen(core, Room(back_s={"r": 6.0})) == [("r", "w")]
    assert chosen(core, Room(back_s={"r": 6.1})) == []


def test_all_that_are_seated_wait_while_kv_is_computed_again() -> None:
    core = place({"r": 3, "beside": 1}, {"w": 1})
    assert chosen(core, Room(back_s={"r": 3.0})) == [("r", "w")]
    assert chosen(core, Room(back_s={"r": 3.1})) == []


def test_one_whose_way_back_is_too_long_is_passed_over_for_a_better_placed_one() -> None:
    core = place({"long way": 4, "short way": 3}, {"w": 1})
    assert chosen(core, Room(back_s={"long way": 9.1})) == [("short way", "w")]


def test_preemption_can_be_switched_off() -> None:
    assert chosen(place({"r": 4}, {"w": 1}, preempt=False), Room()) == []


def test_the_reason_names_the_other_call_and_what_is_short() -> None:
    core = place({"r": 4}, {"w": 1})
    assert core.victims(Room(), 1.0)[0].reason == "for call w at level 1: seats full"
    room = Room(free_seats=1, free_blocks=0, need={"w": 1}, held={"r": 1})
    assert core.victims(room, 1.0)[0].reason == "for call w at level 1: KV cache full"
