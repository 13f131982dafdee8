"""Programs: table, trace and tickets are kept in step, whatever comes in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from autellix.errors import CallError
from autellix.runtime.programs import UNRECORDED, Programs
from autellix.runtime.protocols import CallStart, Parent
from autellix.scheduler.policies import policy_named
from autellix.scheduler.tickets import Receipt
from autellix.tracing.events import RunStarted
from autellix.tracing.record import RunRecord


@dataclass
class World:
    """Programs under a clock that the test moves."""

    policy: str = "atlas"
    keep_ended: int | None = None
    now: float = 0.0
    stopped: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.record = RunRecord(keep_ended=self.keep_ended)
        start = RunStarted(clock_s=0.0, engine="none", model="none", replicas=1, policy=self.policy)
        self.record.apply(start)
        policy = policy_named(self.policy)
        self.programs = Programs(
            policy,
            self.record,
            lambda: self.now,
            self.stopped.append,
            self.forgotten.append,
            away=lambda program, absence_s: self.away.append(program),
        )

    def begin(
        self, program: str, call: str, *parents: str, kind: str = "llm", node: str | None = None
    ) -> None:
        given = tuple(Parent(id=parent, kind="order") for parent in parents)
        self.programs.call_started(
            CallStart(
                program=program,
                call=call,
                kind=kind,  # type: ignore[arg-type]
                name="model",
                node=node,
                parents=given,
            )
        )

    def end(self, call: str, program: str, service_s: float, wait_s: float = 0.0) -> None:
        self.programs.receipt(receipt(call, program, service_s, wait_s))
        self.programs.served(call)
        self.programs.call_ended(call, "done", None)

    def turn(
        self, program: str, node: str, status: str, *, service_s: float, after: str | None = None
    ) -> None:
        """A turn of one call, which ``node`` makes."""
        self.programs.program_started(program, "agent")
        call = f"{program}/{node}"
        self.begin(program, call, *([after] if after else []), node=node)
        self.programs.ticket(call)
        self.end(call, program, service_s)
        self.programs.program_ended(program, status, None)  # type: ignore[arg-type]

    def to_come_s(self, node: str) -> float:
        return self.programs.table.history.to_come_s("agent", node)

    def run(self, call: str, *parents: str, service_s: float, program: str = "p") -> float:
        """Run a call; the attained service on its ticket."""
        self.begin(program, call, *parents)
        attained = self.programs.ticket(call).attained_s
        self.end(call, program, service_s)
        return attained

    def document(self, program: str = "p") -> dict:
        documents = self.record.document()["programs"]
        return next(document for document in documents if document["id"] == program)


def receipt(call: str, program: str, service_s: float, wait_s: float = 0.0) -> Receipt:
    return Receipt(
        program=program,
        call=call,
        service_s=service_s,
        wait_s=wait_s,
        levels=(1,),
        preemptions=0,
        output_tokens=5,
    )


@pytest.fixture
def world() -> World:
    world = World()
    world.programs.program_started("p", "agent")
    return world


def test_atlas_tickets_carry_the_longest_chain_above_the_call(world: World) -> None:
    assert world.run("a", service_s=1.0) == 0.0
    assert world.run("b", "a", service_s=2.0) == 1.0
    assert world.run("c", "a", service_s=0.5) == 1.0
    assert world.run("d", "b", "c", service_s=1.0) == 3.0
    assert world.document()["critical_path_s"] == 4.0


def test_plas_tickets_carry_all_that_the_program_got() -> None:
    world = World("plas")
    world.programs.program_started("p", "agent")
    assert world.run("a", service_s=1.0) == 0.0
    assert world.run("b", "a", service_s=2.0) == 1.0
    assert world.run("c", "a", service_s=0.5) == 3.0


def test_tools_are_in_the_chain_but_cost_no_service(world: World) -> None:
    world.run("a", service_s=1.0)
    world.begin("p", "t", "a", kind="tool")
    world.programs.call_ended("t", "done", None)
    assert world.run("b", "t", service_s=1.0) == 1.0
    assert world.away == ["p"]


def test_the_next_turn_goes_on_from_where_the_last_one_ended(world: World) -> None:
    world.run("a", service_s=1.0)
    world.programs.program_ended("p", "done", None)
    assert not world.programs.table.programs
    assert world.forgotten == ["p"]
    world.programs.program_started("p", "agent")
    assert world.run("b", "a", service_s=1.0) == 1.0
    assert world.programs.table.programs["p"].service_s == 2.0


def test_a_call_that_is_given_up_is_stopped_and_its_late_receipt_kept(world: World) -> None:
    world.begin("p", "a")
    world.programs.ticket("a")
    world.programs.call_ended("a", "aborted", None)
    assert world.stopped == ["a"]
    world.programs.receipt(receipt("a", "p", 1.5, 0.5))
    world.programs.served("a", "CancelledError")
    (call,) = world.document()["calls"]
    assert (call["status"], call["service_s"], call["wait_s"]) == ("aborted", 1.5, 0.5)
    assert not world.programs.table.programs["p"].active


def test_a_call_that_is_given_up_before_it_reached_the_engine_gets_no_ticket(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.begin("p", "a")
    world.programs.call_ended("a", "aborted", None)
    with pytest.raises(CallError, match="gave it up"):
        world.programs.ticket("a")
    world.programs.served("a", "gave it up")
    assert not world.programs.table.programs["p"].active
    assert [p["id"] for p in world.record.document()["programs"]] == ["p"]
    assert not caplog.records


@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_call_that_ends_is_not_stopped(world: World, status: str) -> None:
    world.begin("p", "a")
    world.programs.call_ended("a", status, None)  # type: ignore[arg-type]
    assert world.stopped == []


def test_a_call_that_never_reached_the_engine_leaves_nothing_open(world: World) -> None:
    world.begin("p", "a")
    world.programs.ticket("a")
    world.programs.served("a", "refused")
    world.programs.call_ended("a", "failed", "refused")
    assert not world.programs.table.programs["p"].active
    assert world.record.open_calls("p") == ()
    (call,) = world.document()["calls"]
    assert (call["status"], call["error"], call["levels"]) == ("failed", "refused", [])


@pytest.mark.parametrize(("error", "status"), [(None, "done"), ("refused", "failed")])
def test_a_call_nobody_recorded_is_recorded_here(error: str | None, status: str) -> None:
    world = World()
    ticket = world.programs.ticket("loose")
    assert (ticket.program, ticket.attained_s) == (UNRECORDED, 0.0)
    world.programs.receipt(receipt("loose", UNRECORDED, 1.0))
    world.programs.served("loose", error)
    (call,) = world.document(UNRECORDED)["calls"]
    assert (call["status"], call["service_s"]) == (status, 1.0)


def test_a_program_that_ends_frees_its_entry_even_with_calls_under_way(world: World) -> None:
    world.begin("p", "a")
    world.programs.ticket("a")
    world.programs.program_ended("p", "failed", "ValueError: x")
    assert not world.programs.table.programs
    world.programs.receipt(receipt("a", "p", 1.0))
    world.programs.served("a")
    world.programs.call_ended("a", "aborted", None)
    assert world.document()["status"] == "failed"


def test_a_turn_that_ends_leaves_the_other_one_its_entry(world: World) -> None:
    world.run("a", service_s=1.0)
    world.programs.program_started("p", "agent")
    world.begin("p", "b", "a")
    world.programs.ticket("b")
    world.programs.program_ended("p", "done", None)
    entry = world.programs.table.programs["p"]
    assert set(entry.active) == {"b"}
    world.end("b", "p", 2.0)
    assert (entry.service_s, entry.active) == (3.0, {})
    world.programs.program_ended("p", "done", None)
    assert not world.programs.table.programs


def test_work_left_behind_leaves_no_entry_when_it_is_done(world: World) -> None:
    world.begin("p", "a")
    world.programs.program_ended("p", "done", None)
    world.programs.ticket("a")
    assert set(world.programs.table.programs) == {"p"}
    world.end("a", "p", 1.0)
    assert not world.programs.table.programs


def test_a_receipt_of_an_earlier_run_is_ignored(world: World) -> None:
    world.programs.receipt(receipt("from-before", "q", 1.0))
    world.programs.served("from-before")
    assert [p["id"] for p in world.record.document()["programs"]] == ["p"]


class TestLearning:
    def test_programs_of_one_graph_share_what_is_known_of_them(self) -> None:
        world = World(policy="adaptive")
        for program in ("a", "b"):
            world.programs.program_started(program, "agent")
            world.run(f"{program}/0", service_s=1.0, program=program)
            world.programs.program_ended(program, "done", None)
        table = world.programs.table.history.names["agent"]
        assert sum(table.ends) == 2
        assert sum(table.exposure) > 0

    def test_a_program_that_waits_for_a_person_has_not_ended(self) -> None:
        world = World(policy="adaptive")
        world.programs.program_started("p", "agent")
        world.run("c", service_s=1.0)
        world.programs.program_ended("p", "interrupted", None)
        assert sum(world.programs.table.history.names["agent"].ends) == 0
        assert (world.away, world.forgotten) == (["p"], [])

    def test_only_policies_that_learn_give_tickets_a_course(self) -> None:
        for policy, learns in (("adaptive", True), ("gittins", True), ("atlas", False)):
            world = World(policy=policy)
            world.begin("p", "c")
            ticket = world.programs.prompt_known(world.programs.ticket("c"), 5)
            assert bool(ticket.course) is learns

    def test_what_nodes_begin_is_learned_turn_by_turn(self) -> None:
        world = World(policy="adaptive")
        for turn in range(2):
            world.programs.program_started("p", "agent")
            parent = [f"{turn - 1}/search"] if turn else []
            for node, service_s in (("plan", 1.0), ("search", 4.0)):
                call = f"{turn}/{node}"
                world.begin("p", call, *parent, node=node)
                world.programs.ticket(call)
                world.end(call, "p", service_s)
                parent = [call]
            world.programs.program_ended("p", "done", None)
        history = world.programs.table.history
        assert history.to_come_s("agent", "plan") == 5.0
        assert history.to_come_s("agent", "search") == 4.0
        world.programs.program_started("q", "agent")
        world.begin("q", "next", node="plan")
        assert world.programs.ticket("next").to_come_s == 5.0

    def test_a_program_that_waits_for_a_person_teaches_its_chains_when_it_has_ended(self) -> None:
        world = World(policy="adaptive")
        world.turn("p", "plan", "interrupted", service_s=1.0)
        assert world.to_come_s("plan") == 0.0
        world.turn("p", "act", "done", service_s=4.0, after="p/plan")
        assert (world.to_come_s("plan"), world.to_come_s("act")) == (5.0, 4.0)
        assert not world.programs._earlier_calls

    @pytest.mark.parametrize("status", ["failed", "cancelled"])
    def test_a_program_cut_short_teaches_no_chains(self, status: str) -> None:
        world = World(policy="adaptive")
        world.turn("p", "plan", status, service_s=1.0)
        assert world.to_come_s("plan") == 0.0
        assert not world.programs._earlier_calls

    def test_of_turns_side_by_side_the_last_one_teaches_the_chains_of_all(self) -> None:
        world = World(policy="adaptive")
        world.programs.program_started("p", "agent")
        world.begin("p", "one", node="plan")
        world.programs.ticket("one")
        world.programs.program_started("p", "agent")
        world.end("one", "p", 3.0)
        world.programs.program_ended("p", "done", None)
        assert world.to_come_s("plan") == 0.0
        world.programs.program_ended("p", "done", None)
        assert world.to_come_s("plan") == 3.0

    def test_a_program_that_the_record_has_let_go_ends_all_the_same(self) -> None:
        world = World(policy="adaptive", keep_ended=1)
        for _ in range(2):
            world.programs.program_started("p", "agent")
        world.programs.program_ended("p", "done", None)
        for other in "qrs":
            world.turn(other, "plan", "done", service_s=1.0)
        world.programs.program_ended("p", "done", None)
        assert not world.programs.table.programs
