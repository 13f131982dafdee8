"""Edges between the tasks of a graph, in every way to run one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from tests.integrations.recording import State, World, chain_of, dag


def test_calls_follow_each_other_inside_a_node_and_over_nodes(world: World, mode: str) -> None:
    world.run(chain_of(a=world.node("a1", "a2"), b=world.node("b1")).compile(), {"xs": []}, mode)
    assert world.seen.edges("order") == dag("a1>a2")
    assert world.seen.edges("trigger") == dag("a2>b1")
    assert world.seen.nodes() == {"a1": "a", "a2": "a", "b1": "b"}


def test_a_barrier_makes_the_short_branch_wait_for_the_long_one(world: World, mode: str) -> None:
    graph = StateGraph(State)
    for name in ("a", "b", "b2", "c", "d"):
        graph.add_node(name, world.node(name))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge("b", "b2")
    graph.add_edge(["b2", "c"], "d")
    world.run(graph.compile(), {"xs": []}, mode)
    assert world.seen.edges() == dag("a>b a>c b>b2 c>b2 b2>d")
    assert world.seen.edges("barrier") == dag("c>b2")


def test_a_node_without_calls_hands_on_what_triggered_it(world: World, mode: str) -> None:
    graph = StateGraph(State)
    for name in ("a", "b", "last"):
        graph.add_node(name, world.node(name))
    graph.add_node("quiet", lambda state: {"i": 1})
    graph.add_edge(START, "a").add_edge(START, "b").add_edge("a", "quiet").add_edge("quiet", "last")
    world.run(graph.compile(), {"xs": []}, mode)
    assert world.seen.edges("trigger") == dag("a>last")
    assert world.seen.edges("barrier") == dag("b>last")


def test_send_fans_out_and_joins(world: World, mode: str) -> None:
    def work(state: State) -> State:
        return {"xs": [world.call(f"w{state['i']}")]}

    async def awork(state: State) -> State:
        return {"xs": [await world.acall(f"w{state['i']}")]}

    graph = StateGraph(State).add_node("plan", world.node("plan"))
    graph.add_node("w", world.both(work, awork)).add_node("reduce", world.node("red"))
    graph.add_edge(START, "plan").add_edge("w", "reduce")
    graph.add_conditional_edges("plan", lambda s: [Send("w", {"i": i}) for i in range(3)], ["w"])
    world.run(graph.compile(), {"xs": []}, mode)
    assert world.seen.edges("trigger") == dag("plan>w0 plan>w1 plan>w2 w0>red w1>red w2>red")
    assert world.seen.edges() == world.seen.edges("trigger")


def test_a_loop_is_a_chain(world: World, mode: str) -> None:
    def turn(state: State) -> State:
        world.call(f"l{state['i']}")
        return {"i": state["i"] + 1}

    async def aturn(state: State) -> State:
        await world.acall(f"l{state['i']}")
        return {"i": state["i"] + 1}

    graph = StateGraph(State).add_node("n", world.both(turn, aturn)).add_edge(START, "n")
    graph.add_conditional_edges("n", lambda s: "n" if s["i"] < 4 else END)
    world.run(graph.compile(), {"i": 0}, mode)
    assert world.seen.edges() == dag("l0>l1 l1>l2 l2>l3")


def test_subgraphs_and_graphs_in_tools_belong_to_the_outer_program(world: World, mode: str) -> None:
    inner = chain_of(s1=world.node("s1"), s2=world.node("s2")).compile()

    @tool
    def deep(q: str) -> str:
        """Run a graph of another thread."""
        inner.invoke({"xs": []}, {"configurable": {"thread_id": "other"}})
        return "ok"

    def use(state: State) -> State:
        deep.invoke("z")
        world.call("after")
        return {"i": 1}

    graph = chain_of(a=world.node("a"), sub=inner, use=use).compile()
    world.run(graph, {"xs": []}, mode, {"configurable": {"thread_id": "mine"}})
    assert world.seen.edges() == dag("a>s1 s1>s2 s2>deep deep>s1 s1>s2 s2>after")
    assert world.seen.edges("order") == dag("deep>s1 s2>after")
    assert world.seen.programs() == {"mine"}


def test_a_second_attempt_follows_the_first(world: World, mode: str) -> None:
    tries = []

    def flaky(state: State) -> State:
        world.call("try")
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("again")
        world.call("ok")
        return {"i": 1}

    graph = StateGraph(State).add_node("p", world.node("p")).add_node("b", world.node("b"))
    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    graph.add_node("n", flaky, retry_policy=policy)
    graph.add_edge(START, "p").add_edge("p", "n").add_edge("n", "b")
    world.run(graph.compile(), {"i": 0}, mode)
    assert world.seen.edges() == dag("p>try try>try try>try try>ok ok>b")
    assert world.seen.edges("trigger") == dag("p>try ok>b")
    attempts = [(name, world.seen.starts[id].attempt) for id, name in world.seen.named().items()]
    assert attempts == [("p", 1), ("try", 1), ("try", 2), ("try", 3), ("ok", 3), ("b", 1)]


def test_a_subgraph_in_a_second_attempt_is_part_of_it(world: World, mode: str) -> None:
    inner = chain_of(s=world.node("s")).compile()
    tries = []

    def fail_once(state: State) -> State:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError("again")
        return {"i": 1}

    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    graph = StateGraph(State)
    graph.add_node("n", inner | RunnableLambda(fail_once), retry_policy=policy)
    graph.add_edge(START, "n")
    world.run(graph.compile(), {"xs": []}, mode)
    assert world.seen.edges() == dag("s>s")
    assert [start.attempt for start in world.seen.starts.values()] == [1, 2]


def test_a_resumed_node_runs_again_from_its_top(world: World, mode: str) -> None:
    def ask(state: State) -> State:
        world.call("ask")
        interrupt("?")
        world.call("got")
        return {"i": 1}

    graph = chain_of(n=ask, b=world.node("b")).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t1"}}
    world.run(graph, {"i": 0}, mode, config)
    world.run(graph, Command(resume=1), mode, config)
    assert world.seen.edges() == dag("ask>ask ask>got got>b")
    assert world.seen.edges("order") == dag("ask>ask ask>got")
    assert world.seen.outcomes() == [("t1", "interrupted"), ("t1", "done")]


def test_the_next_turn_of_a_thread_follows_the_last_calls(world: World, mode: str) -> None:
    graph = StateGraph(State)
    for name in ("x", "y"):
        graph.add_node(name, world.node(name)).add_edge(START, name)
    compiled = graph.compile()
    config = {"configurable": {"thread_id": "t"}}
    world.run(compiled, {"xs": []}, mode, config)
    world.run(compiled, {"xs": []}, mode, config)
    assert world.seen.edges() == dag("x>x x>y y>x y>y")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_functional_api_forks_and_joins(world: World, loop: str, kind: str) -> None:
    @task
    def work(prompt: str) -> str:
        return world.call(prompt)

    @entrypoint()
    def program(x: int) -> str:
        world.call("plan")
        futures = [work(f"t{i}@forked") for i in range(3)]
        world.gates.open("forked")
        for future in futures:
            future.result()
        work("mid").result()
        return world.call("fin")

    @task
    async def awork(prompt: str) -> str:
        return await world.acall(prompt)

    @entrypoint()
    async def aprogram(x: int) -> str:
        import asyncio

        await world.acall("plan")
        await asyncio.gather(*[awork(f"t{i}") for i in range(3)])
        await awork("mid")
        return await world.acall("fin")

    if kind == "sync":
        program.invoke(1)
    else:
        world.arun(aprogram.ainvoke(1))
    assert world.seen.edges() == dag("plan>t0 plan>t1 plan>t2 t0>mid t1>mid t2>mid mid>fin")
    assert world.seen.nodes()["mid"] in ("work", "awork")
    assert world.seen.nodes()["fin"] in ("program", "aprogram")


def test_a_supervisor_and_its_workers_are_one_chain(world: World, mode: str) -> None:
    worker = chain_of(think=world.node("w1"), write=world.node("w2")).compile()

    def decide(state: State) -> Command:
        world.call(f"s{state['i']}")
        return Command(goto="worker" if state["i"] == 0 else END, update={"i": state["i"] + 1})

    async def adecide(state: State) -> Command:
        await world.acall(f"s{state['i']}")
        return Command(goto="worker" if state["i"] == 0 else END, update={"i": state["i"] + 1})

    graph = StateGraph(State)
    graph.add_node("supervisor", world.both(decide, adecide), destinations=("worker", END))
    graph.add_node("worker", worker)
    graph.add_edge(START, "supervisor").add_edge("worker", "supervisor")
    world.run(graph.compile(), {"i": 0}, mode)
    assert world.seen.edges() == dag("s0>w1 w1>w2 w2>s1")
    assert len(world.seen.programs()) == 1


def test_agents_of_a_swarm_hand_over_to_each_other(world: World, mode: str) -> None:
    def agent(name: str, next_: str) -> Any:
        """A graph whose last node hands over to another agent of the graph around it."""
        hand_over = Command(goto=next_, graph=Command.PARENT)

        def leave(state: State) -> Command:
            world.call(f"{name} hands over")
            return hand_over

        async def aleave(state: State) -> Command:
            await world.acall(f"{name} hands over")
            return hand_over

        return chain_of(think=world.node(name), leave=world.both(leave, aleave)).compile()

    swarm = StateGraph(State)
    swarm.add_node("alice", agent("alice", "bob"), destinations=("bob",))
    swarm.add_node("bob", agent("bob", "carol"), destinations=("carol",))
    swarm.add_node("carol", world.node("carol"))
    world.run(swarm.add_edge(START, "alice").compile(), {"xs": []}, mode)
    names = ["alice", "alice hands over", "bob", "bob hands over", "carol"]
    assert world.seen.edges() == Counter(pairwise(names))
    assert world.seen.outcomes()[-1][1] == "done"
