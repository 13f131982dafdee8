"""Calls that no callback announces: they belong where the code that makes them belongs."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from langchain_core.language_models.llms import BaseLLM
from langchain_core.messages import HumanMessage
from langchain_core.outputs import Generation, LLMResult
from langgraph.graph import START, StateGraph

from autellix.integrations.openai_calls import CALL_HEADER, OpenAICalls
from autellix.integrations.recorder import Recorder
from tests.integrations.recording import State, World, dag


def raw(recorder: Recorder, name: str, status: Any = "done") -> str:
    call = recorder.begin_call(name)
    assert call is not None
    recorder.end_call(call, status)
    return call


def graph_of(node: Any) -> Any:
    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


def test_calls_in_a_row_follow_each_other(world: World) -> None:
    for name in "abc":
        raw(world.recorder, name)
    assert world.seen.edges() == dag("a>b b>c")
    assert world.seen.programs() == {"main"}


def test_a_call_in_a_node_is_the_graphs_and_names_its_node(world: World) -> None:
    def node(state: State) -> State:
        raw(world.recorder, "a")
        world.model.invoke("b")
        raw(world.recorder, "c")
        return {}

    graph_of(node).invoke({"xs": []})
    assert world.seen.edges() == dag("a>b b>c")
    assert len(world.seen.programs()) == 1
    assert "main" not in world.seen.programs()
    assert set(world.seen.nodes().values()) == {"node"}


def test_calls_of_gathered_tasks_are_side_by_side(world: World) -> None:
    async def one(name: str) -> None:
        call = world.recorder.begin_call(name)
        await asyncio.sleep(0)
        world.recorder.end_call(str(call), "done")

    async def main() -> None:
        with_scope = world.recorder.enter_program(None, "both")
        raw(world.recorder, "a")
        await asyncio.gather(one("b"), one("c"))
        raw(world.recorder, "d")
        world.recorder.exit_program(with_scope)

    asyncio.run(main())
    assert world.seen.edges() == dag("a>b a>c b>d c>d")


def test_an_end_is_heard_once_and_only_for_calls_from_outside(world: World) -> None:
    call = world.recorder.begin_call("a")
    assert world.recorder.is_open(str(call))
    world.recorder.end_call(str(call), "failed", "why")
    world.recorder.end_call(str(call), "done")
    world.recorder.end_call("no such call", "done")
    assert world.seen.statuses() == {"a": "failed"}
    assert world.seen.errors[str(call)] == "why"
    assert not world.recorder.is_open(str(call))


def test_a_node_that_ends_ends_its_open_calls(world: World) -> None:
    graph_of(lambda state: world.recorder.begin_call("a") and {}).invoke({"xs": []})
    assert world.seen.statuses() == {"a": "aborted"}


def test_a_call_beside_another_stands_where_that_one_stands(world: World) -> None:
    raw(world.recorder, "a")
    first = str(world.recorder.begin_call("b"))
    second: list[str] = []

    async def elsewhere() -> None:
        second.append(str(world.recorder.begin_call("c", beside=first)))

    asyncio.run(elsewhere())
    for call in (first, *second):
        world.recorder.end_call(call, "done")
    raw(world.recorder, "d")
    assert world.seen.edges() == dag("a>b a>c b>d c>d")


# ── which call a request is ──────────────────────────────────────────────────────────────────


@pytest.fixture
def calls(world: World) -> OpenAICalls:
    return OpenAICalls(
        world.recorder, "http://here/v1", prepare=lambda: None, is_serving=lambda: True
    )


def test_a_request_inside_an_announced_call_is_that_call_once(
    world: World, calls: OpenAICalls
) -> None:
    made: list[Any] = []

    class Asks(type(world.model)):  # type: ignore[misc]
        def _begin(self, messages: list[Any]) -> tuple[str, str]:
            for _ in range(2):
                call = calls.begins("/chat/completions", "gpt")
                made.append(call)
                call.ended(None)
            return super()._begin(messages)

    Asks(gates=world.gates, seen=[], recorder=world.recorder).invoke("a")
    assert [call.wants_usage for call in made] == [True, False]
    assert world.seen.ends == {call.call: "done" for call in made}
    assert made[0].headers == {CALL_HEADER: made[0].call}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_prompt_of_one_generate_is_a_call_of_its_own(
    world: World, calls: OpenAICalls, mode: str
) -> None:
    made: dict[str, str] = {}

    class Asks(type(world.model)):  # type: ignore[misc]
        def _begin(self, messages: list[Any]) -> tuple[str, str]:
            made[messages[-1].content] = calls.begins("/chat/completions", "gpt").call
            return super()._begin(messages)

    model = Asks(gates=world.gates, seen=[], recorder=world.recorder)
    for words in ("a b", "c d", "e"):
        prompts: list[Any] = [[HumanMessage(word)] for word in words.split()]
        if mode == "sync":
            result = model.generate(prompts)
        else:
            result = world.arun(model.agenerate(prompts))
        announced = [str(run.run_id) for run in result.run]
        assert [made[word] for word in words.split()] == announced
    assert set(world.seen.statuses()) == set("abcde"), "no call was made up"


def test_the_prompts_of_one_request_are_the_calls_that_were_announced(
    world: World, calls: OpenAICalls
) -> None:
    made: list[Any] = []

    class Completes(BaseLLM):
        @property
        def _llm_type(self) -> str:
            return "completes"

        def _generate(self, prompts: list[str], *args: Any, **kwargs: Any) -> LLMResult:
            call = calls.begins("/completions", "gpt").call
            made.append(call)
            made.extend(world.recorder.claim_beside(call) for _ in prompts)
            return LLMResult(generations=[[Generation(text=prompt)] for prompt in prompts])

    result = Completes().generate(["a", "b", "c"])
    assert made == [*(str(run.run_id) for run in result.run or ()), None]
    alone = str(world.recorder.begin_call("d"))
    assert world.recorder.claim_beside(alone) is None
    world.recorder.end_call(alone, "done")


@pytest.mark.parametrize(
    ("error", "complete", "status"),
    [
        (None, True, "done"),
        (None, False, "aborted"),
        (asyncio.CancelledError(), True, "aborted"),
        (KeyboardInterrupt(), True, "aborted"),
        (ValueError("bad"), True, "failed"),
    ],
)
def test_the_caller_says_how_a_call_ended(
    world: World, calls: OpenAICalls, error: BaseException | None, complete: bool, status: str
) -> None:
    call = calls.begins("/responses", "gpt")
    assert call is not None
    call.ended(error, complete=complete)
    assert world.seen.statuses() == {"gpt": status}


def test_what_is_no_call_is_left_alone(calls: OpenAICalls, world: World) -> None:
    assert calls.begins("/models", "") is None
    assert calls.is_ours("http://here/v1/")
    assert not calls.is_ours("https://api.openai.com/v1/")
    assert not world.seen.starts


def test_a_task_keeps_its_place_when_a_finalizer_makes_another_in_its_context(world: World) -> None:
    """The collector may run between the context of a task and its turn."""

    async def nothing() -> None:
        pass

    async def steps() -> None:
        await world.acall("a@go")
        await world.acall("b")

    async def main() -> None:
        token, loop = world.recorder.enter_program(None, "both"), asyncio.get_running_loop()
        context = contextvars.copy_context()
        task = loop.create_task(steps(), context=context)
        await world.gates.await_("a began")
        made: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(lambda: made.set_result(loop.create_task(nothing())), context=context)
        await (await made)
        world.gates.open("go")
        await task
        world.recorder.exit_program(token)

    asyncio.run(main())
    assert world.seen.edges() == dag("a>b")
