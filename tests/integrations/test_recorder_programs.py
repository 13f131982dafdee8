"""Which program a call belongs to, and how programs begin and end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import langgraph.errors
import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from tests.integrations.recording import State, World, chain_of, dag

EMPTY = {"runs": 0, "calls": 0, "programs": 0}


# -- how a run ends -----------------------------------------------------------------------------


def test_a_run_is_done_and_named_after_its_graph(world: World, mode: str) -> None:
    graph = chain_of(a=world.node("a")).compile(name="greeter")
    world.run(graph, {"xs": []}, mode, {"run_name": "greeter"})
    (program,) = world.seen.programs()
    assert world.seen.events[0] == ("program", program, "greeter")
    assert world.seen.events[-1] == ("end", program, "done", None)
    assert world.recorder.tables() == EMPTY


def test_a_run_that_raises_has_failed(world: World, mode: str) -> None:
    graph = chain_of(a=world.node("a", "bad!")).compile()
    with pytest.raises(ConnectionError):
        world.run(graph, {"xs": []}, mode)
    assert world.seen.events[-1][2:] == ("failed", "ConnectionError: bad!")
    assert world.seen.statuses() == {"a": "done", "bad!": "failed"}
    assert world.recorder.tables() == EMPTY


@pytest.mark.skipif(
    not hasattr(langgraph.errors, "GraphDrained"), reason="this LangGraph cannot drain a run"
)
def test_a_drained_run_can_go_on_and_so_is_interrupted(world: World) -> None:
    from langgraph.errors import GraphDrained
    from langgraph.runtime import RunControl

    control = RunControl()

    def first(state: State) -> State:
        world.call("a")
        control.request_drain()
        return {"i": 1}

    graph = chain_of(a=first, b=world.node("b")).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    with pytest.raises(GraphDrained):
        graph.invoke({"i": 0}, config, control=control)
    graph.invoke(None, config)
    assert world.seen.outcomes() == [("t", "interrupted"), ("t", "done")]
    assert world.seen.edges() == dag("a>b")


def test_a_run_stopped_before_a_node_is_interrupted(world: World, mode: str) -> None:
    graph = chain_of(a=world.node("a"), b=world.node("b")).compile(
        checkpointer=InMemorySaver(), interrupt_before=["b"]
    )
    config = {"configurable": {"thread_id": "t"}}
    world.run(graph, {"xs": []}, mode, config)
    world.run(graph, None, mode, config)
    assert world.seen.outcomes() == [("t", "interrupted"), ("t", "done")]
    assert world.seen.edges() == dag("a>b")


def test_an_interrupt_in_a_subgraph_interrupts_the_program(world: World, mode: str) -> None:
    def ask(state: State) -> State:
        world.call("ask")
        return {"i": interrupt("?")}

    graph = chain_of(sub=chain_of(n=ask).compile()).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    world.run(graph, {"i": 0}, mode, config)
    world.run(graph, Command(resume=1), mode, config)
    assert world.seen.outcomes() == [("t", "interrupted"), ("t", "done")]


def test_cancelling_a_run_aborts_its_open_calls(world: World, loop: str) -> None:
    graph = chain_of(p=world.node("p"), n=world.node("slow@never")).compile()

    async def main() -> None:
        running = asyncio.create_task(graph.ainvoke({"xs": []}))
        await world.gates.await_("slow began")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    world.arun(main())
    assert world.seen.edges() == dag("p>slow")
    assert world.seen.statuses() == {"p": "done", "slow": "aborted"}
    assert [status for _, status in world.seen.outcomes()] == ["cancelled"]
    assert world.recorder.tables() == EMPTY


def test_an_abandoned_stream_is_cancelled(world: World) -> None:
    graph = chain_of(a=world.node("a"), b=world.node("b")).compile()
    stream = graph.stream({"xs": []}, stream_mode="updates")
    next(stream)
    stream.close()
    assert [status for _, status in world.seen.outcomes()] == ["cancelled"]
    assert world.recorder.tables() == EMPTY


@pytest.mark.parametrize("how", ["closed", "timeout"])
def test_a_run_given_up_does_not_wait_for_the_calls_of_its_threads(world: World, how: str) -> None:
    told = world.seen.call_ended

    def ended(call: str, status: Any, error: str | None) -> None:
        told(call, status, error)
        world.gates.open("abort")  # as the engine does: the thread's call comes back

    world.seen.call_ended = ended  # type: ignore[method-assign]

    def node(state: State) -> State:
        get_stream_writer()("begun")
        world.call("long@abort")
        return {"i": 1}

    graph = chain_of(n=node).compile()
    if how == "closed":
        stream = graph.stream({"xs": []}, stream_mode="custom")
        assert next(stream) == "begun"
        world.gates.wait("long began")
        stream.close()
    else:
        graph.step_timeout = 0.05
        with pytest.raises(TimeoutError):
            graph.invoke({"xs": []})
    assert world.seen.statuses() == {"long": "aborted"}


def test_cancelling_a_synchronous_node_aborts_the_call_its_thread_is_in(
    world: World, loop: str
) -> None:
    returned = threading.Event()

    def node(state: State) -> State:
        world.call("slow@released")
        returned.set()
        return {"i": 1}

    async def main() -> None:
        running = asyncio.create_task(chain_of(n=node).compile().ainvoke({"i": 0}))
        await world.gates.await_("slow began")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert world.seen.statuses() == {"slow": "aborted"}, "before the thread comes back"
        world.gates.open("released")

    world.arun(main())
    assert returned.wait(20)
    assert world.seen.statuses() == {"slow": "aborted"}
    assert world.recorder.tables() == EMPTY


def test_a_failing_task_leaves_its_siblings_alone(world: World) -> None:
    def fail(state: State) -> State:
        world.gates.wait("slow began")
        world.gates.open("released")
        raise ConnectionError("down")

    graph = StateGraph(State).add_node("slow", world.node("slow@released")).add_node("bad", fail)
    graph.add_edge(START, "slow").add_edge(START, "bad")
    with pytest.raises(ConnectionError):
        list(graph.compile().stream({"xs": []}))
    assert world.seen.statuses() == {"slow": "done"}
    assert [status for _, status in world.seen.outcomes()] == ["failed"]
    assert world.recorder.tables() == EMPTY


def test_a_cancelled_task_of_plain_python_aborts_its_call(world: World, loop: str) -> None:
    async def main() -> None:
        task = asyncio.create_task(world.acall("slow@never"))
        await world.gates.await_("slow began")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert world.seen.statuses() == {"slow": "aborted"}
        await world.acall("next")

    world.arun(main())
    assert world.seen.edges() == dag("slow>next")


def test_work_left_behind_goes_on_after_its_program(world: World, loop: str) -> None:
    left: list[asyncio.Task[Any]] = []

    async def node(state: State) -> State:
        async def background() -> None:
            await world.acall("bg@after the end")
            await world.acall("bg2")

        left.append(asyncio.create_task(background()))
        await world.gates.await_("bg began")
        return {"i": 1}

    async def main() -> None:
        await chain_of(n=node).compile().ainvoke({"i": 0})
        assert world.seen.outcomes()
        world.gates.open("after the end")
        await left[0]

    world.arun(main())
    assert world.seen.statuses() == {"bg": "done", "bg2": "done"}
    assert len(world.seen.programs()) == 1
    assert world.recorder.tables() == EMPTY


# -- ambient programs ---------------------------------------------------------------------------


def test_plain_python_inside_a_scope_is_one_program(world: World) -> None:
    token = world.recorder.enter_program(None, "search")
    world.call("a")
    thread = threading.Thread(target=world.call, args=("b",))
    thread.start()
    thread.join()
    world.call("c")
    world.recorder.exit_program(token, "failed", "because")
    world.call("outside")
    program = token.program.id
    assert world.seen.events[0] == ("program", program, "search")
    assert ("end", program, "failed", "because") in world.seen.events
    assert world.seen.edges() == dag("a>b b>c")
    assert world.seen.programs() == {program, "main"}


def test_a_graph_inside_a_scope_belongs_to_it(world: World, mode: str) -> None:
    token = world.recorder.enter_program("outer")
    world.call("before")
    graph = chain_of(a=world.node("a")).compile()
    world.run(graph, {"xs": []}, mode, {"configurable": {"thread_id": "inner"}})
    world.call("after")
    world.recorder.exit_program(token)
    assert world.seen.programs() == {"outer"}
    assert world.seen.outcomes() == [("outer", "done")]
    assert world.seen.edges() == dag("before>a a>after")


def test_a_scope_inside_a_program_joins_it(world: World) -> None:
    outer = world.recorder.enter_program("outer")
    world.call("a")
    for same in (None, "outer"):
        inner = world.recorder.enter_program(same, "inner")
        world.call("b")
        world.recorder.exit_program(inner)
    world.recorder.exit_program(outer)
    assert world.seen.outcomes() == [("outer", "done")]
    assert world.seen.edges() == dag("a>b b>b")


def test_an_id_made_up_for_a_scope_does_not_set_it_apart(world: World) -> None:
    outer = world.recorder.enter_program("outer-1", "outer", fresh=True)
    inner = world.recorder.enter_program("inner-1", "inner", fresh=True)
    world.call("a")
    world.recorder.exit_program(inner)
    world.recorder.exit_program(outer)
    assert world.seen.outcomes() == [("outer-1", "done")]
    assert world.seen.programs() == {"outer-1"}
    assert world.recorder.tables() == EMPTY, "it has no next turn"


def test_a_scope_with_an_id_of_its_own_is_a_program_of_its_own(world: World, mode: str) -> None:
    def node(state: State) -> State:
        world.call("a")
        token = world.recorder.enter_program("apart")
        world.call("x")
        (RunnableLambda(lambda x: "y") | world.model).invoke("")
        world.recorder.exit_program(token)
        world.call("b")
        return {"i": 1}

    world.run(chain_of(n=node).compile(), {"i": 0}, mode, {"configurable": {"thread_id": "t"}})
    assert world.seen.edges() == dag("a>b x>y")
    assert world.seen.programs() == {"t", "apart"}


def test_a_scope_over_asyncio_tasks(world: World, loop: str) -> None:
    async def one(name: str) -> None:
        token = world.recorder.enter_program(name)
        await world.acall(name + "1")
        await asyncio.gather(world.acall(name + "2"), world.acall(name + "3"))
        world.recorder.exit_program(token)

    async def main() -> None:
        await asyncio.gather(one("p"), one("q"))

    world.arun(main())
    assert world.seen.edges() == dag("p1>p2 p1>p3 q1>q2 q1>q3")
    assert sorted(world.seen.outcomes()) == [("p", "done"), ("q", "done")]


def test_the_main_program_begins_with_its_first_call_and_ends_when_closed(world: World) -> None:
    world.recorder.close_main()
    assert world.seen.events == []
    world.call("a")
    world.call("b")
    world.recorder.close_main("failed", "because")
    world.recorder.close_main()
    assert [event[:2] for event in world.seen.events if event[0] != "call"] == [
        ("program", "main"),
        ("end", "main"),
    ]
    assert world.seen.events[-1] == ("end", "main", "failed", "because")


# -- several programs ---------------------------------------------------------------------------


def test_programs_at_once_share_nothing(world: World, loop: str) -> None:
    graph = chain_of(n=world.node("a1", "a2")).compile()

    async def main() -> None:
        await asyncio.gather(
            *(graph.ainvoke({"xs": []}, {"configurable": {"thread_id": f"p{i}"}}) for i in range(5))
        )

    world.arun(main())
    assert world.seen.edges() == dag("a1>a2 " * 5)
    assert world.seen.programs() == {f"p{i}" for i in range(5)}


def test_a_batch_is_a_program_per_input(world: World) -> None:
    graph = chain_of(n=world.node("a1", "a2")).compile()
    graph.batch([{"xs": []}, {"xs": []}, {"xs": []}])
    assert len(world.seen.programs()) == 3
    assert world.seen.edges() == dag("a1>a2 " * 3)


def test_two_streams_consumed_by_turns_are_two_programs(world: World) -> None:
    graph = chain_of(a=world.node("a"), b=world.node("b")).compile()
    chain = RunnableLambda(lambda x: x) | world.model
    for _ in zip(graph.stream({"xs": []}), graph.stream({"xs": []}), strict=True):
        world.call("mine")
    for _ in zip(chain.stream("c"), chain.stream("c"), strict=True):
        world.call("mine")
    assert world.seen.edges() == dag("a>b a>b mine>mine mine>mine")
    assert len(world.seen.programs()) == 5


def test_programs_one_after_the_other_in_one_task(world: World, loop: str) -> None:
    graph = chain_of(a=world.node("a"), b=world.node("b")).compile()
    chain = RunnableLambda(lambda x: x) | world.model

    async def main() -> None:
        for _ in range(3):
            await graph.ainvoke({"xs": []})
            await chain.ainvoke("c")
            await world.acall("mine")

    world.arun(main())
    assert world.seen.edges() == dag("a>b " * 3 + "mine>mine mine>mine")


def test_a_forgotten_thread_begins_anew(world: World) -> None:
    graph = chain_of(a=world.node("a")).compile()
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"xs": []}, config)
    assert world.recorder.tables()["programs"] == 1
    world.recorder.forget("t")
    assert world.recorder.tables() == EMPTY
    graph.invoke({"xs": []}, config)
    assert world.seen.edges() == dag("")
    world.recorder.forget("t")
    world.recorder.forget("never seen")
