"""Edges inside a task: sequences, forks into asyncio tasks and threads, joins."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.to_thread
import pytest
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.graph import END, START, StateGraph

from tests.integrations.recording import State, World, chain_of, dag


def run_node(world: World, node: Any) -> None:
    graph = chain_of(n=node).compile()
    if asyncio.iscoroutinefunction(node):
        world.arun(graph.ainvoke({"i": 0}))
    else:
        graph.invoke({"i": 0})


def test_tree_search_fans_out_and_joins_each_round(world: World, loop: str) -> None:
    async def expand(state: State) -> State:
        i = state["i"]

        async def rollout(k: str) -> None:
            await world.acall(f"r{i}{k}")
            await world.acall(f"e{i}{k}")

        await asyncio.gather(*(rollout(k) for k in "xy"))
        await world.acall(f"sel{i}")
        return {"i": i + 1}

    graph = StateGraph(State).add_node("n", expand).add_edge(START, "n")
    graph.add_conditional_edges("n", lambda s: "n" if s["i"] < 2 else END)
    world.arun(graph.compile().ainvoke({"i": 0}))
    assert world.seen.edges() == dag(
        "r0x>e0x r0y>e0y e0x>sel0 e0y>sel0 sel0>r1x sel0>r1y r1x>e1x r1y>e1y e1x>sel1 e1y>sel1"
    )


def test_a_late_sibling_does_not_follow_an_early_one(world: World, loop: str) -> None:
    async def node(state: State) -> State:
        early_is_over = asyncio.Event()

        async def early() -> None:
            await world.acall("a1")
            early_is_over.set()
            await world.acall("a2")

        async def late() -> None:
            await early_is_over.wait()
            await world.acall("b1")

        await world.acall("p")
        await asyncio.gather(early(), late())
        await world.acall("q")
        return {"i": 1}

    run_node(world, node)
    assert world.seen.edges() == dag("p>a1 a1>a2 p>b1 a2>q b1>q")


def test_what_follows_a_to_thread_follows_its_calls(world: World, loop: str) -> None:
    async def node(state: State) -> State:
        await asyncio.to_thread(world.call, "t")
        await asyncio.gather(world.acall("x"), world.acall("y"))
        return {"i": 1}

    run_node(world, node)
    assert world.seen.edges() == dag("t>x t>y")


def test_a_background_task_joins_where_it_is_awaited(world: World, loop: str) -> None:
    async def node(state: State) -> State:
        await (RunnableLambda(lambda x: x) | world.model).ainvoke("c")
        background = asyncio.create_task(world.acall("x@p2 is over"))
        await world.acall("p2")
        world.gates.open("p2 is over")
        await background
        await world.acall("z")
        return {"i": 1}

    run_node(world, node)
    assert world.seen.edges() == dag("c>x c>p2 x>z p2>z")


def test_nested_gathers_keep_their_shape(world: World, loop: str) -> None:
    async def pair(name: str) -> None:
        await asyncio.gather(world.acall(name + "1"), world.acall(name + "2"))
        await world.acall(name + "j")

    async def node(state: State) -> State:
        await world.acall("p")
        await asyncio.gather(pair("a"), pair("b"))
        await world.acall("q")
        return {"i": 1}

    run_node(world, node)
    assert world.seen.edges() == dag("p>a1 p>a2 a1>aj a2>aj p>b1 p>b2 b1>bj b2>bj aj>q bj>q")


def test_raw_threads_and_pools_in_a_node(world: World) -> None:
    def node(state: State) -> State:
        world.call("p")
        with ThreadPoolExecutor(2) as pool:
            answers = pool.map(world.call, ["x@all", "y@all", "z"])
            world.gates.open("all")
            list(answers)
        thread = threading.Thread(target=world.call, args=("u",))
        thread.start()
        thread.join()
        world.call("q")
        return {"i": 1}

    run_node(world, node)
    assert world.seen.edges() == dag("p>x p>y p>z x>u y>u z>u u>q")
    assert set(world.seen.nodes().values()) == {"n"}


def test_a_thread_subclass_with_its_own_run_is_followed(world: World) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            world.call("w")

    world.call("p")
    worker = Worker()
    worker.start()
    worker.join()
    world.call("q")
    assert world.seen.edges() == dag("p>w w>q")
    assert "run" not in vars(worker)


def test_threads_do_not_begin_to_inherit_context_variables(world: World) -> None:
    variable = contextvars.ContextVar("of the user", default="unset")
    variable.set("set")
    found = []
    thread = threading.Thread(target=lambda: found.append(variable.get()))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        found.append(pool.submit(variable.get).result())
    assert found == ["unset", "unset"]


def test_a_pool_that_no_hook_knows_is_followed(world: World, loop: str) -> None:
    async def node(state: State) -> State:
        await world.acall("p")
        await anyio.to_thread.run_sync(world.call, "t")  # starts anyio's thread, from in here
        await asyncio.gather(world.acall("x"), world.acall("y"))
        return {"i": 1}

    async def main() -> None:
        await chain_of(n=node).compile().ainvoke({"i": 0}, thread_of("first"))
        await anyio.to_thread.run_sync(world.call, "outside")  # the same thread
        await world.acall("last")

    world.arun(main())
    assert world.seen.edges() == dag("p>t t>x t>y outside>last")
    assert world.seen.programs() == {"first", "main"}


def thread_of(id: str) -> Any:
    return {"configurable": {"thread_id": id}}


def test_a_pool_thread_forgets_the_job_before(world: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        token = world.recorder.enter_program("one")
        pool.submit(world.call, "a").result()
        world.recorder.exit_program(token)
        token = world.recorder.enter_program("two")
        pool.submit(world.call, "b").result()
        world.recorder.exit_program(token)
    assert world.seen.edges() == dag("")
    assert world.seen.programs() == {"one", "two"}


def test_a_chain_of_tasks_that_spawn_their_successor(world: World, loop: str) -> None:
    async def main() -> None:
        finished = asyncio.Event()

        async def link(i: int) -> None:
            await world.acall(f"c{i}")
            if i < 4:
                tasks.append(asyncio.create_task(link(i + 1)))
            else:
                finished.set()

        tasks = [asyncio.create_task(link(0))]
        await finished.wait()
        await asyncio.gather(*tasks)
        await world.acall("end")

    world.arun(main())
    assert world.seen.edges() == dag("c0>c1 c1>c2 c2>c3 c3>c4 c4>end")


def test_a_task_that_outlives_its_node_joins_after_the_graph(world: World, loop: str) -> None:
    left: list[asyncio.Task[Any]] = []

    async def first(state: State) -> State:
        await world.acall("a")
        left.append(asyncio.create_task(world.acall("bg@b is over")))
        await world.acall("a2")
        return {"i": 1}

    async def second(state: State) -> State:
        await world.acall("b")
        world.gates.open("b is over")
        await left[0]
        return {"i": 2}

    async def main() -> None:
        token = world.recorder.enter_program("p")
        await chain_of(first=first, second=second).compile().ainvoke({"i": 0})
        await world.acall("after")
        world.recorder.exit_program(token)

    world.arun(main())
    assert world.seen.edges() == dag("a>bg a>a2 a2>b b>after bg>after")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_parallel_chain_joins(world: World, loop: str, kind: str) -> None:
    both = RunnableParallel(x=world.model.bind(), y=RunnableLambda(lambda s: s) | world.model)
    chain = RunnableLambda(lambda x: x) | both | RunnableLambda(lambda d: "join") | world.model
    if kind == "sync":  # both calls begin before either ends
        threading.Thread(target=open_when_begun_twice, args=(world, "q"), daemon=True).start()
        chain.invoke("q@both")
    else:
        world.gates.open("both")
        world.arun(chain.ainvoke("q@both"))
    assert world.seen.edges() == dag("q>join q>join")


def open_when_begun_twice(world: World, name: str) -> None:
    while [n for n, _ in list(world.model.seen)].count(name) < 2:
        threading.Event().wait(0.001)
    world.gates.open("both")


def test_plain_python_is_a_sequence_of_the_main_program(world: World) -> None:
    world.call("a")
    world.call("b")
    assert world.seen.edges() == dag("a>b")
    assert world.seen.programs() == {"main"}


def test_plain_asyncio_forks_and_joins(world: World, loop: str) -> None:
    async def main() -> None:
        await world.acall("p")
        await asyncio.gather(world.acall("x"), world.acall("y"))
        await world.acall("z")

    world.arun(main())
    world.call("w")
    assert world.seen.edges() == dag("p>x p>y x>z y>z z>w")


def test_a_call_can_be_streamed(world: World, loop: str) -> None:
    async def main() -> None:
        assert [part.content async for part in world.model.astream("a")]
        assert [part.content for part in world.model.stream("b")]

    world.arun(main())
    assert world.seen.edges() == dag("a>b")
    assert all(call is not None for _, call in world.model.seen)
