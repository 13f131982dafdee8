"""What a thread has used up survives interrupts, restarts, forks and other machines, exactly."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START
from langgraph.types import Command, interrupt

from autellix.integrations.checkpoint import KEY, AutellixSaver
from autellix.integrations.checkpoint_provided import provided_saver
from autellix.runtime.journal_account import BRANCHES
from autellix.runtime.journal_durations import Durations

from .checkpointing import WAIT_S, ProcessRun, account_of, invoke, on, process

MODES = ("sync", "async")
DURABILITIES = ("sync", "async", "exit")
PATIENCE_S = 20.0  # no test waits this long unless it is broken


class Machine:
    """A folder with a store of checkpoints and a journal."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.journal = folder / "journal.sqlite"

    def process(self) -> Any:
        return process(self.journal)

    def saver(self) -> Any:
        return provided_saver(f"sqlite:{self.folder / 'threads.db'}")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "one")


@pytest.fixture
def saver(machine: Machine) -> Iterator[AutellixSaver]:
    """The store, open in whatever process the test is in."""
    with machine.saver() as inner:
        yield AutellixSaver(inner)


def asking(run: ProcessRun) -> Any:
    """1 s, then a node that calls, asks and calls, then 8 s."""

    def ask(state: Any) -> Any:
        before = run.call(2.0)
        answer = interrupt("?")
        return {"xs": [before, answer, run.call(4.0)]}

    return run.chain(first=(1.0,), ask=ask, last=(8.0,))


def totals(account: dict[str, Any]) -> tuple[float, float, float, int]:
    names = ("service_s", "wait_s", "critical_path_s", "calls")
    return tuple(account[name] for name in names)  # type: ignore[return-value]


# ── interrupt and resume ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_person_answers_in_another_process_and_the_thread_goes_on_exactly(
    machine: Machine, saver: AutellixSaver, mode: str, durability: str
) -> None:
    with machine.process() as run:
        graph = asking(run).compile(checkpointer=saver)
        out = invoke(graph, {"xs": []}, on("t"), mode, durability=durability)
        assert out["__interrupt__"]
        assert run.attained() == [0.0, 1.0]
        assert not run.session.programs.table.programs  # nothing is held while a person thinks
    with machine.process() as run:
        graph = asking(run).compile(checkpointer=saver)
        out = invoke(graph, Command(resume="yes"), on("t"), mode, durability=durability)
        assert out["xs"] == ["1.0", "2.0", "yes", "4.0", "8.0"]
        # The node ran again from its top: its calls begin where the checkpoint before it stands.
        assert run.attained() == [1.0, 3.0, 7.0]
        # Both times the first half of the node ran count.
        assert [t.program_service_s for t in run.tickets] == [3.0, 5.0, 9.0]
        assert [t.program_wait_s for t in run.tickets] == [2 * WAIT_S, 3 * WAIT_S, 4 * WAIT_S]
        assert totals(account_of(graph, on("t"))) == (17.0, 5 * WAIT_S, 15.0, 5)


def test_the_time_of_a_person_is_no_wait_and_an_interrupt_is_counted(
    machine: Machine, saver: AutellixSaver
) -> None:
    with machine.process() as run:
        asking(run).compile(checkpointer=saver).invoke({"xs": []}, on("t"))
    with machine.process() as run:
        graph = asking(run).compile(checkpointer=saver)
        graph.invoke(Command(resume="yes"), on("t"))
        account = account_of(graph, on("t"))
    assert (account["turns"], account["interrupts"]) == (1, 1)  # before this turn ended
    assert account["wait_s"] == 5 * WAIT_S
    assert (account["replica"], account["output_tokens"], account["preemptions"]) == (3, 10, 5)


@pytest.mark.parametrize("mode", MODES)
def test_another_machine_goes_on_from_the_snapshots_alone(
    machine: Machine, saver: AutellixSaver, tmp_path: Path, mode: str
) -> None:
    with machine.process() as run:
        graph = asking(run).compile(checkpointer=saver)
        invoke(graph, {"xs": []}, on("t"), mode)
    with process(tmp_path / "no-journal-here.sqlite") as run:
        graph = asking(run).compile(checkpointer=saver)
        invoke(graph, Command(resume="yes"), on("t"), mode)
        assert run.attained() == [1.0, 3.0, 7.0]
        assert totals(account_of(graph, on("t"))) == (17.0, 5 * WAIT_S, 15.0, 5)


def test_the_same_process_goes_on_as_another_one_would(
    machine: Machine, saver: AutellixSaver
) -> None:
    with machine.process() as run:
        graph = asking(run).compile(checkpointer=saver)
        graph.invoke({"xs": []}, on("t"))
        graph.invoke(Command(resume="yes"), on("t"))
        assert run.attained() == [0.0, 1.0, 1.0, 3.0, 7.0]
        assert totals(account_of(graph, on("t"))) == (17.0, 5 * WAIT_S, 15.0, 5)


# ── further turns ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_conversation_goes_on_after_a_restart(
    machine: Machine, saver: AutellixSaver, mode: str, durability: str
) -> None:
    expected, done = [], 0.0
    for turn in range(3):
        with machine.process() as run:
            graph = run.chain(a=(1.0, 2.0), b=(0.5,)).compile(checkpointer=saver)
            invoke(graph, {"xs": []}, on("t"), mode, durability=durability)
            expected = [done, done + 1.0, done + 3.0]
            assert run.attained() == expected
            assert run.tickets[0].program_service_s == done
            done += 3.5
            assert account_of(graph, on("t"))["calls"] == 3 * (turn + 1)


def test_turns_in_one_process_follow_each_other_in_the_dag(
    machine: Machine, saver: AutellixSaver
) -> None:
    with machine.process() as run:
        graph = run.chain(a=(1.0,)).compile(checkpointer=saver)
        for _ in range(2):
            graph.invoke({"xs": []}, on("t"))
        dag = run.session.record.dag("t")
        assert not dag.earlier
        assert dag.critical_path() == [t.call for t in run.tickets]


def test_where_a_restart_was_the_dag_begins_with_what_came_before(
    machine: Machine, saver: AutellixSaver
) -> None:
    for _ in range(2):
        with machine.process() as run:
            graph = run.chain(a=(1.0,)).compile(checkpointer=saver)
            graph.invoke({"xs": []}, on("t"))
            dag = run.session.record.dag("t")
    assert list(dag.earlier.values()) == [1.0]
    assert dag.critical_path() == [*dag.earlier, run.tickets[0].call]
    assert dag.critical_path_s == 2.0
    assert dag.service_s == 1.0  # this run's own


# ── time travel ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("restart", [False, True])
def test_a_fork_goes_on_from_the_fork_point_and_all_branches_count(
    machine: Machine, saver: AutellixSaver, mode: str, restart: bool
) -> None:
    def build(run: ProcessRun) -> Any:
        return run.chain(a=(1.0,), b=(2.0,), c=(4.0,)).compile(checkpointer=saver)

    def fork(run: ProcessRun, graph: Any) -> None:
        before_b = next(s for s in graph.get_state_history(on("t")) if s.next == ("b",))
        run.tickets.clear()
        invoke(graph, None, before_b.config, mode)
        assert run.attained() == [1.0, 3.0]
        assert [t.program_service_s for t in run.tickets] == [7.0, 9.0]
        assert totals(account_of(graph, on("t"))) == (13.0, 5 * WAIT_S, 7.0, 5)

    with machine.process() as run:
        graph = build(run)
        invoke(graph, {"xs": []}, on("t"), mode)
        if not restart:
            fork(run, graph)
    if restart:
        with machine.process() as run:
            fork(run, build(run))


def test_a_state_that_was_edited_keeps_the_account(machine: Machine, saver: AutellixSaver) -> None:
    with machine.process() as run:
        graph = run.chain(a=(1.0,), b=(2.0,)).compile(checkpointer=saver)
        graph.invoke({"xs": []}, on("t"))
        graph.update_state(on("t"), {"xs": ["edited"]}, as_node="a")
    with machine.process() as run:
        graph = run.chain(a=(1.0,), b=(2.0,)).compile(checkpointer=saver)
        assert account_of(graph, on("t"))["critical_path_s"] == 3.0
        graph.invoke(None, on("t"))
        assert run.attained() == [3.0]


# ── shapes ───────────────────────────────────────────────────────────────────────────────────


def stop_once(how: str, run: ProcessRun) -> None:
    """An interrupt, or a failure that does not come again."""
    if how == "interrupt":
        interrupt("?")
    elif not run.told:
        raise ConnectionError("?")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("how", "order"),
    # Of a node that fails first the others are cancelled.
    [("interrupt", "branch first"), ("interrupt", "stop first"), ("failure", "branch first")],
)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "another machine"])
def test_a_branch_that_ended_beside_a_stop_is_not_run_again_and_its_chain_counts(
    machine: Machine,
    saver: AutellixSaver,
    tmp_path: Path,
    mode: str,
    how: str,
    order: str,
    elsewhere: bool,
) -> None:
    gate = threading.Event()

    def build(run: ProcessRun) -> Any:
        def stop(state: Any) -> Any:
            if order == "branch first" and not run.told:
                assert gate.wait(PATIENCE_S)
            gate.set()
            stop_once(how, run)
            return {"xs": [run.call(2.0)]}

        def beside(state: Any) -> Any:
            if order == "stop first":
                assert gate.wait(PATIENCE_S)
            said = run.call(4.0)
            gate.set()
            return {"xs": [said]}

        graph = run.chain(a=(1.0,), stop=stop, last=(8.0,)).add_node("beside", beside)
        return graph.add_edge("a", "beside").add_edge("beside", "last").compile(checkpointer=saver)

    with machine.process() as run, contextlib.suppress(ConnectionError):
        invoke(build(run), {"xs": []}, on("t"), mode)
    assert run.attained() == [0.0, 1.0]
    other = process(tmp_path / "no-journal.sqlite") if elsewhere else machine.process()
    with other as run:
        run.told = True
        graph = build(run)
        out = invoke(graph, Command(resume="x") if how == "interrupt" else None, on("t"), mode)
        assert sorted(out["xs"]) == ["1.0", "2.0", "4.0", "8.0"]
        assert run.attained() == [1.0, 5.0], "what joins both follows the longer one"
        assert run.tickets[0].program_service_s == 5.0
        assert totals(account_of(graph, on("t"))) == (15.0, 4 * WAIT_S, 13.0, 4)
        assert BRANCHES not in account_of(graph, on("t"))
        assert run.edges_to_last() == {"trigger"}


@pytest.mark.parametrize("mode", MODES)
def test_two_stops_in_one_superstep_keep_the_branch_beside_them(
    machine: Machine, saver: AutellixSaver, mode: str
) -> None:
    def build(run: ProcessRun) -> Any:
        def ask(state: Any) -> Any:
            return {"xs": [interrupt("?"), interrupt("!"), run.call(2.0)]}

        graph = run.chain(ask=ask, last=(8.0,)).add_node("beside", run.node(4.0))
        return graph.add_edge(START, "beside").compile(checkpointer=saver)

    for words in (None, "x", "y"):
        with machine.process() as run:
            value = {"xs": []} if words is None else Command(resume=words)
            invoke(build(run), value, on("t"), mode)
    assert run.attained() == [0.0, 4.0]
    with machine.process() as run:
        assert totals(account_of(build(run), on("t"))) == (14.0, 3 * WAIT_S, 12.0, 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_function_that_goes_on_follows_the_tasks_whose_results_it_takes_up(
    machine: Machine, saver: AutellixSaver, mode: str
) -> None:
    def build(run: ProcessRun) -> Any:
        @task
        def draft(cost: float) -> str:
            return run.call(cost)

        @entrypoint(checkpointer=saver)
        def letter(cost: float) -> str:
            said = draft(cost).result()
            interrupt(said)
            return run.call(2.0)

        return letter

    with machine.process() as run:
        invoke(build(run), 4.0, on("t"), mode)
        assert run.attained() == [0.0]
    with machine.process() as run:
        invoke(build(run), Command(resume="x"), on("t"), mode)
        assert run.attained() == [4.0]


@pytest.mark.parametrize("mode", MODES)
def test_a_subgraph_goes_on_from_its_own_checkpoint(
    machine: Machine, saver: AutellixSaver, mode: str
) -> None:
    def build(run: ProcessRun) -> Any:
        inner = run.chain(
            b=(2.0,), ask=lambda state: {"xs": [interrupt("?"), run.call(4.0)]}
        ).compile()
        return run.chain(a=(1.0,), sub=inner).compile(checkpointer=saver)

    with machine.process() as run:
        invoke(build(run), {"xs": []}, on("t"), mode)
        assert run.attained() == [0.0, 1.0]
    with machine.process() as run:
        graph = build(run)
        invoke(graph, Command(resume="x"), on("t"), mode)
        assert run.attained() == [3.0]  # b is not run again, but what comes after follows it
        assert totals(account_of(graph, on("t"))) == (7.0, 3 * WAIT_S, 7.0, 3)


def test_a_thread_inside_another_program_is_part_of_that_one(
    machine: Machine, saver: AutellixSaver
) -> None:
    with machine.process() as run:
        inner = run.chain(b=(2.0,)).compile(checkpointer=saver)
        outer = run.chain(
            a=lambda state: {"xs": inner.invoke({"xs": []}, on("inner"))["xs"]}, c=(1.0,)
        ).compile(checkpointer=saver)
        outer.invoke({"xs": []}, on("outer"))
        assert {t.program for t in run.tickets} == {"outer"}
        assert account_of(outer, on("outer"))["service_s"] == 3.0
        assert KEY not in inner.get_state(on("inner")).metadata


def test_a_scope_that_runs_a_thread_goes_on_with_it(machine: Machine, saver: AutellixSaver) -> None:
    from autellix.runtime.program_scope import program

    for done in (0.0, 1.0):
        with machine.process() as run:
            graph = run.chain(a=(1.0,)).compile(checkpointer=saver)
            with program("agent"):
                graph.invoke({"xs": []}, on("t"))
            (ticket,) = run.tickets
            assert (ticket.attained_s, ticket.program_service_s) == (done, done)
            assert account_of(graph, on("t"))["calls"] == done + 1


def test_turns_and_forks_inside_a_scope(machine: Machine, saver: AutellixSaver) -> None:
    from autellix.runtime.program_scope import program

    with machine.process() as run, program("agent") as scope:
        run.call(16.0)
        graph = run.chain(a=(1.0,), b=(2.0,)).compile(checkpointer=saver)
        for _ in range(2):
            graph.invoke({"xs": []}, on("t"))
        assert run.attained() == [0.0, 16.0, 17.0, 19.0, 20.0]
        assert scope.id is not None
        dag = run.session.record.dag(scope.id)
        assert not dag.earlier  # each turn follows the one before
        assert dag.critical_path() == [ticket.call for ticket in run.tickets]
        before_b = next(s for s in graph.get_state_history(on("t")) if s.next == ("b",))
        graph.invoke(None, before_b.config)
        assert run.attained()[-1] == 20.0


def test_how_long_tools_take_survives(machine: Machine, saver: AutellixSaver) -> None:
    @tool
    def search(query: str) -> str:
        """Search."""
        return query

    for turns in (1, 2):
        with machine.process() as run:
            graph = run.chain(a=lambda state: {"xs": [search.invoke("x")]}).compile(
                checkpointer=saver
            )
            graph.invoke({"xs": []}, on("t"))
            account = account_of(graph, on("t"))
            assert account["tools"] == turns
            assert len(Durations.from_wire(account["tool_times"]["search"])) == turns


# ── deletion ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("running", [True, False])
def test_a_deleted_thread_begins_anew(
    machine: Machine, saver: AutellixSaver, running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTELLIX_JOURNAL", str(machine.journal))
    with machine.process() as run:
        graph = run.chain(a=(1.0,)).compile(checkpointer=saver)
        graph.invoke({"xs": []}, on("t"))
        if running:
            saver.delete_thread("t")
            graph.invoke({"xs": []}, on("t"))
            assert run.tickets[1].attained_s == run.tickets[1].program_service_s == 0.0
            return
    saver.delete_thread("t")
    with machine.process() as run:
        graph = run.chain(a=(1.0,)).compile(checkpointer=saver)
        graph.invoke({"xs": []}, on("t"))
        assert account_of(graph, on("t"))["calls"] == 1


def test_a_thread_whose_store_has_lost_it_begins_anew(machine: Machine) -> None:
    for _ in range(2):
        with machine.saver() as inner, machine.process() as run:
            graph = run.chain(a=(1.0,)).compile(checkpointer=AutellixSaver(inner))
            graph.invoke({"xs": []}, on("t"))
            assert run.tickets[0].program_service_s == 0.0
        for part in machine.folder.glob("threads.db*"):
            part.unlink()
