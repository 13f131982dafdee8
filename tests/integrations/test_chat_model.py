"""``ChatAutellix`` on the real engine: what LangChain asks of a chat model, and giving up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

import autellix
from autellix.errors import AutellixError, CallError, ContextLengthError
from autellix.integrations.chat_model import ChatAutellix
from autellix.runtime.session import Session
from autellix.scheduler.service_history import ServiceHistory
from tests.conftest import idle_stats

pytestmark = pytest.mark.usefixtures("session")

PARIS = "What is the capital of France?"
WITHIN_S = 60.0


@pytest.fixture
def model(session: Session) -> ChatAutellix:
    return ChatAutellix(temperature=0, max_tokens=16)


def calls_of(session: Session) -> list[dict]:
    return [call for program in session.record.document()["programs"] for call in program["calls"]]


def test_a_programs_place_counts_its_prompt(session: Session, model: ChatAutellix) -> None:
    places = {}
    for name, prompt in [("short", PARIS), ("long", "Sum up: " + "a word, " * 400)]:
        session.programs.learn_in(ServiceHistory())  # what other tests have taught is not known
        with autellix.program(name):
            model.invoke(prompt, max_tokens=1)
            (entry,) = session.programs.table.programs.values()
            places[name] = entry.place
    assert places["long"] > 5 * places["short"]


# ── the four ways to ask ─────────────────────────────────────────────────────────────────────


def test_all_four_ways_give_the_same_answer(model: ChatAutellix) -> None:
    async def asynchronously() -> tuple[str, str]:
        whole = (await model.ainvoke(PARIS)).text
        return whole, "".join([chunk.text async for chunk in model.astream(PARIS)])

    answer = model.invoke(PARIS).text
    assert "Paris" in answer
    assert "".join(chunk.text for chunk in model.stream(PARIS)) == answer
    assert asyncio.run(asynchronously()) == (answer, answer)


def test_an_answer_says_what_it_cost_and_why_it_ended(model: ChatAutellix) -> None:
    answer = model.invoke(PARIS, max_tokens=3)
    usage = answer.usage_metadata
    assert usage is not None
    assert (usage["output_tokens"], answer.response_metadata["finish_reason"]) == (3, "length")
    assert usage["total_tokens"] == usage["input_tokens"] + 3
    assert answer.response_metadata["model_provider"] == "autellix"


def test_tokens_found_in_the_cache_are_told(model: ChatAutellix) -> None:
    prompt = "Count with me: " + " ".join(map(str, range(60)))
    model.invoke(prompt)
    usage = model.invoke(prompt).usage_metadata
    assert usage is not None
    cached = usage.get("input_token_details", {}).get("cache_read", 0)
    assert 0 < cached <= usage["input_tokens"]


@pytest.mark.parametrize("way", ["stream", "invoke"])
def test_usage_is_the_receipts(session: Session, model: ChatAutellix, way: str) -> None:
    message = model.invoke(PARIS) if way == "invoke" else _sum(list(model.stream(PARIS)))
    usage = message.usage_metadata
    (call,) = calls_of(session)
    assert usage is not None
    assert call["prompt_tokens"] == usage["input_tokens"]
    assert call["output_tokens"] == usage["output_tokens"]
    assert (call["status"], call["levels"][0] >= 1) == ("done", True)
    assert 0 < call["service_s"] + call["wait_s"] <= call["end_s"] - call["start_s"]


def _sum(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    return total


def test_messages_of_every_role_are_understood(model: ChatAutellix) -> None:
    answer = model.invoke(
        [
            SystemMessage("You answer with one word."),
            HumanMessage("Say yes."),
            AIMessage("Yes"),
            HumanMessage(PARIS),
        ]
    )
    assert "Paris" in answer.text


def test_batches_keep_their_order(model: ChatAutellix) -> None:
    answers = model.batch([PARIS, "What is 1 + 1?", PARIS])
    assert answers[0].text == answers[2].text != answers[1].text


# ── options ──────────────────────────────────────────────────────────────────────────────────


def test_stop_ends_the_answer_however_it_is_given(session: Session, model: ChatAutellix) -> None:
    assert "Paris" in model.invoke(PARIS).text
    stopped = ChatAutellix(temperature=0, max_tokens=16, stop=["Paris"])
    answers = [
        stopped.invoke(PARIS),
        model.bind(stop=["Paris"]).invoke(PARIS),
        model.invoke(PARIS, stop=["Paris"]),
    ]
    assert {answer.response_metadata["finish_reason"] for answer in answers} == {"stop"}
    assert not any("Paris" in answer.text for answer in answers)


def test_a_seed_makes_sampling_repeat_itself(session: Session) -> None:
    def tell(seed: int) -> str:
        return ChatAutellix(temperature=1.5, seed=seed, max_tokens=24).invoke("Tell a story.").text

    assert tell(1) == tell(1)
    assert len({tell(1), tell(2), tell(3)}) > 1


def test_further_options_go_to_the_engine(session: Session) -> None:
    model = ChatAutellix(temperature=0, max_tokens=12, model_kwargs={"ignore_eos": True})
    usage = model.invoke("Say yes.").usage_metadata
    assert usage is not None
    assert usage["output_tokens"] == 12


def test_another_models_name_is_served_by_the_engines_and_told_once(
    session: Session, model: ChatAutellix, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [model.invoke(PARIS, model="gpt-4o"), model.bind(model="gpt-4o").invoke(PARIS)]
    served = {answer.response_metadata["model_name"] for answer in answers}
    assert served == {session.record.document()["engine"]["model"]}
    assert caplog.text.count("gpt-4o") == 1


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"temperature": -1}, CallError, "temperature"),
        ({"max_tokens": 5000}, ContextLengthError, "max_model_len"),
        ({"top_p": "much"}, CallError, "top_p"),
    ],
)
def test_what_the_engine_refuses_is_one_paragraph_and_leaves_nothing(
    session: Session, model: ChatAutellix, options: dict, error: type[AutellixError], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        model.invoke(PARIS, **options)
    assert "\n" not in str(raised.value)
    with pytest.raises(error, match=said):
        list(model.stream(PARIS, **options))
    assert [call["status"] for call in calls_of(session)] == ["failed", "failed"]


def test_a_prompt_longer_than_the_context_is_told_so(model: ChatAutellix) -> None:
    with pytest.raises(ContextLengthError, match="Shorten"):
        model.invoke("long " * 3000)


# ── tools and structure ──────────────────────────────────────────────────────────────────────


@tool
def look_up(country: Literal["France", "Japan"], year: int) -> str:
    """Look a country up."""
    return f"{country} in {year}"


@tool
def finish() -> str:
    """End the conversation."""
    return "over"


def is_look_up(call: dict) -> bool:
    args = call["args"]
    return args.keys() == {"country", "year"} and (
        args["country"] in ("France", "Japan") and isinstance(args["year"], int)
    )


@pytest.mark.parametrize("choice", ["required", "any", True])
def test_a_required_tool_is_called_with_arguments_of_its_schema(
    session: Session, choice: str | bool
) -> None:
    model = ChatAutellix(temperature=0, max_tokens=128)
    bound = model.bind_tools([look_up, finish], tool_choice=choice, parallel_tool_calls=False)
    (call,) = bound.invoke("Look up France in 1990.").tool_calls
    assert call["name"] in ("look_up", "finish")
    assert call["id"]
    assert call["name"] == "finish" or is_look_up(call)


def test_a_named_tool_is_called_and_streams_the_same(session: Session) -> None:
    model = ChatAutellix(temperature=0, max_tokens=128)
    bound = model.bind_tools([look_up, finish], tool_choice="look_up")
    answer = bound.invoke("Look up Japan in 2001.")
    streamed = _sum(list(bound.stream("Look up Japan in 2001.")))
    assert [call["name"] for call in answer.tool_calls] == ["look_up"]
    assert is_look_up(answer.tool_calls[0])
    assert [c["args"] for c in streamed.tool_calls] == [c["args"] for c in answer.tool_calls]


def test_a_tool_call_runs_its_tool_and_its_result_goes_back(session: Session) -> None:
    model = ChatAutellix(temperature=0, max_tokens=128)
    asked = model.bind_tools([look_up], tool_choice="look_up").invoke("France, 1990?")
    result = look_up.invoke(asked.tool_calls[0])
    answer = model.invoke([HumanMessage("France, 1990?"), asked, result])
    assert answer.text
    assert [call["kind"] for call in calls_of(session)] == ["llm", "tool", "llm"]


class City(BaseModel):
    """A city."""

    name: str
    people: int


CITY = "Describe Paris as JSON with name and people."


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_follows_the_schema(
    session: Session, method: Literal["json_schema", "function_calling"]
) -> None:
    model = ChatAutellix(temperature=0, max_tokens=64)
    assert isinstance(model.with_structured_output(City, method=method).invoke(CITY), City)
    both = model.with_structured_output(City, method=method, include_raw=True).invoke(CITY)
    assert isinstance(both, dict)
    assert isinstance(both["raw"], AIMessage)
    assert isinstance(both["parsed"], City)
    assert both["parsing_error"] is None


def test_json_mode_gives_json(session: Session) -> None:
    model = ChatAutellix(temperature=0, max_tokens=200)
    chain = model.with_structured_output(None, method="json_mode", include_raw=True)
    answer = chain.invoke('Answer with this JSON: {"name": "Paris"}')
    assert isinstance(answer, dict)
    assert answer["raw"].text.lstrip()[:1] in "{["


def test_an_answer_that_is_cut_off_is_a_parsing_error_not_a_crash(session: Session) -> None:
    model = ChatAutellix(temperature=0, max_tokens=2)
    answer = model.with_structured_output(City, include_raw=True).invoke(CITY)
    assert isinstance(answer, dict)
    assert answer["parsed"] is None
    assert answer["parsing_error"] is not None


class Tale(BaseModel):
    """A tale."""

    text: str


@pytest.mark.parametrize("form", [Tale, Tale.model_json_schema()], ids=["pydantic", "schema"])
def test_half_an_answer_does_not_pass_for_a_whole_one(session: Session, form: Any) -> None:
    model = ChatAutellix(temperature=0, max_tokens=12).with_structured_output(form)
    with pytest.raises(OutputParserException, match="max_tokens"):
        model.invoke("Tell a long tale as JSON.")
    *_, last = model.stream("Tell a long tale as JSON.")
    assert last, "what there is of a stream is shown as it comes"


# ── loops, threads, graphs ───────────────────────────────────────────────────────────────────


def test_a_sync_call_works_inside_a_running_event_loop(model: ChatAutellix) -> None:
    async def inside() -> str:
        return model.invoke(PARIS).text

    assert "Paris" in asyncio.run(inside())


def test_several_threads_with_loops_of_their_own_share_the_engine(
    session: Session, model: ChatAutellix
) -> None:
    answers: dict[int, list[str]] = {}

    async def ask() -> list[str]:
        replies = await asyncio.gather(model.ainvoke(PARIS), model.ainvoke(PARIS))
        return [reply.text for reply in replies]

    def work(number: int) -> None:
        answers[number] = asyncio.run(ask())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 3
    assert all("Paris" in text for texts in answers.values() for text in texts)
    assert len(calls_of(session)) == 6


def test_sixteen_calls_at_once_are_all_answered_on_eight_seats(
    session: Session, model: ChatAutellix
) -> None:
    async def ask() -> list[AIMessage]:
        return await asyncio.gather(*(model.ainvoke(f"Name animal {n}.") for n in range(16)))

    assert all(answer.text for answer in asyncio.run(ask()))
    calls = calls_of(session)
    assert len(calls) == 16
    assert all(call["status"] == "done" and call["service_s"] > 0 for call in calls)


def test_tokens_stream_out_of_a_graph(session: Session, model: ChatAutellix) -> None:
    async def reply(state: MessagesState) -> dict:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node(reply).add_edge(START, "reply").compile()

    async def stream() -> list[tuple[str, str]]:
        parts = graph.astream({"messages": [("user", PARIS)]}, stream_mode="messages")
        return [(chunk.text, where["langgraph_node"]) async for chunk, where in parts]

    parts = asyncio.run(stream())
    assert len(parts) > 2
    assert "Paris" in "".join(text for text, _ in parts)
    assert {node for _, node in parts} == {"reply"}
    (call,) = calls_of(session)
    assert call["node"] == "reply"


# ── giving up ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def endless(session: Session) -> ChatAutellix:
    """Answers until the context is full: some 20 s if nobody stops it."""
    return ChatAutellix(temperature=1, max_tokens=1800, model_kwargs={"ignore_eos": True})


def in_engine(session: Session) -> Callable[[], bool]:
    host = session.host
    return lambda: host.loop.run(host.engine.stats()).running > 0


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not await asyncio.to_thread(condition):
            pass

    await asyncio.wait_for(poll(), WITHIN_S)


def given_up_call(session: Session) -> dict:
    """The one call of the session, once the engine has freed it and its receipt is in."""
    idle_stats(session.host)
    deadline = time.monotonic() + WITHIN_S
    while not (call := calls_of(session)[0])["levels"]:
        assert time.monotonic() < deadline, "the receipt of the call never came"
    return call


def check_was_stopped(call: dict) -> None:
    assert call["status"] == "aborted"
    assert call["service_s"] > 0
    assert 0 < call["output_tokens"] < 1800


def test_cancelling_ainvoke_stops_the_call_in_the_engine(
    session: Session, endless: ChatAutellix
) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(endless.ainvoke("Tell a long story."))
        await until(in_engine(session))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    check_was_stopped(given_up_call(session))


def test_leaving_a_stream_early_stops_the_call_in_the_engine(
    session: Session, endless: ChatAutellix
) -> None:
    for chunk in endless.stream("Tell a long story."):
        if chunk.text:
            break
    check_was_stopped(given_up_call(session))


@pytest.mark.parametrize("how", ["break", "cancel", "timeout"])
def test_leaving_an_async_stream_early_stops_the_call_in_the_engine(
    session: Session, endless: ChatAutellix, how: str
) -> None:
    async def listen(heard: asyncio.Event) -> None:
        stream = endless.astream("Tell a long story.")
        async for _ in stream:
            heard.set()
            if how == "break":
                await stream.aclose()  # type: ignore[attr-defined]
                break

    async def give_up() -> None:
        heard = asyncio.Event()
        if how == "timeout":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(listen(heard), 1.0)
            return
        task = asyncio.create_task(listen(heard))
        await asyncio.wait_for(heard.wait(), WITHIN_S)
        if how == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(give_up())
    call = given_up_call(session)
    assert call["status"] in ("aborted", "done")
    assert 0 < call["output_tokens"] < 1800


def test_cancelling_a_graph_stops_the_call_of_its_node(
    session: Session, endless: ChatAutellix
) -> None:
    async def reply(state: MessagesState) -> dict:
        return {"messages": [await endless.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node(reply).add_edge(START, "reply").compile()

    async def give_up() -> None:
        task = asyncio.create_task(graph.ainvoke({"messages": [("user", "Tell a story.")]}))
        await until(in_engine(session))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    check_was_stopped(given_up_call(session))
    (program,) = session.record.document()["programs"]
    assert program["status"] == "cancelled"
