"""Programs of this process on a server's engine: ``autellix.connect`` and ``run --connect``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import autellix
from autellix.errors import AutellixError, UsageError
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.run_command import RunRequest, run_request
from autellix.runtime.serving import Server
from autellix.runtime.settings import Settings
from tests.runtime.serve_client import serving

KEY = "sk-alice-0123456789"
KEYS = f"alice {KEY}\nbob sk-bob-0123456789ab"


@pytest.fixture(scope="module")
def server(engine_host: EngineHost) -> Iterator[Server]:
    with serving(engine_host, KEYS) as server:
        yield server


@pytest.fixture
def connection(server: Server) -> Iterator[Any]:
    before = environment()
    with autellix.connect(server.url, KEY) as connection:
        yield connection
    assert environment() == before


def environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def ask(client: openai.OpenAI, model: str = "gpt-4o", **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": "Say hi."}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=6, **more)


def in_order(nodes: list[str]) -> list[str]:
    """Of two nodes side by side either may be the first."""
    first, *beside, last = nodes
    return [first, *sorted(beside), last]


def dags_of(server: Server, name: str) -> list[Any]:
    """The DAGs of the server's programs whose ids end so, and only alice can have any."""
    record = server.run.record
    programs = [p["id"] for p in record.document()["programs"] if p["id"].endswith(name)]
    assert all(program.startswith("alice/") for program in programs)
    return [record.dag(program) for program in programs]


def edges(dag: Any) -> list[tuple[int, int]]:
    place = {call: dag.call(call)["place"] for call in dag.graph}
    return sorted((place[a], place[b]) for a, b in dag.graph.edges)


def test_calls_of_a_program_reach_the_server_with_what_they_follow(
    connection: Any, server: Server
) -> None:
    client = openai.OpenAI()  # told nothing, it goes to the server
    other = openai.AsyncOpenAI(base_url=connection.base_url, api_key=KEY)

    async def both() -> None:
        messages: Any = [{"role": "user", "content": "Say hi."}]
        asked: Any = {"model": "m", "messages": messages, "max_tokens": 6}
        await asyncio.gather(*(other.chat.completions.create(**asked) for _ in range(2)))

    with connection.program("plan"):
        assert ask(client).usage.completion_tokens == 6
        asyncio.run(both())
        chunks = list(ask(client, stream=True))
        assert any(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
    (dag,) = dags_of(server, "plan-1")
    assert edges(dag) == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_what_calls_have_cost_is_recorded_here(connection: Any, server: Server) -> None:
    with connection.program("cost"):
        ask(openai.OpenAI())
        model = autellix.ChatAutellix(max_tokens=6)
        model.invoke("Say hi.")
        list(model.stream("Say hi."))
    connection.session.finish()
    (here,) = connection.session.record.document()["programs"]
    (there,) = dags_of(server, "cost-1")
    assert [call["service_s"] for call in here["calls"]] == pytest.approx(
        [there.call(call)["service_s"] for call in there.graph]
    )
    assert all(call["output_tokens"] == 6 for call in here["calls"])
    assert edges(there) == [(0, 1), (1, 2)]


def test_a_program_that_has_ended_has_no_session_any_more(connection: Any, server: Server) -> None:
    with connection.program("ended"):
        ask(openai.OpenAI())
    connection.session.loop.run(connection.session.host.engine.drain())
    assert not [s for s in server.sessions.all() if s.id.endswith("ended-1")]


def test_a_call_that_is_given_up_is_stopped_there(connection: Any, server: Server) -> None:
    with connection.program("given-up"):
        with ask(openai.OpenAI(), stream=True, extra_body={"ignore_eos": True}) as chunks:
            next(iter(chunks))
        model = autellix.ChatAutellix(max_tokens=1500, model_kwargs={"ignore_eos": True})
        for _ in model.stream("Say hi."):
            break
    connection.session.loop.run(connection.session.host.engine.drain())

    def status() -> str:
        (dag,) = dags_of(server, "given-up-1")
        return dag.call(list(dag.graph)[-1])["status"]

    # The server hears of a connection that was closed a moment later.
    deadline = time.monotonic() + 60
    while status() == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert status() == "aborted"


AGENT = """
    from autellix import ChatAutellix
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph

    model = ChatAutellix(max_tokens=6)

    @tool
    def look(what: str) -> str:
        "Look it up."
        return "nothing"

    def first(state):
        model.invoke("Say hi.")
        look.invoke("it")
        return {}

    def left(state):
        return {"messages": [model.invoke("Say left.")]}

    def right(state):
        return {"messages": [model.invoke("Say right.")]}

    def last(state):
        return {"messages": [model.invoke("Say bye.")]}

    graph = StateGraph(MessagesState)
    for node in (first, left, right, last):
        graph.add_node(node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "left").add_edge("first", "right")
    graph.add_edge(["left", "right"], "last")
    graph = graph.compile()
    graph.invoke({"messages": []})
"""


def test_a_run_records_its_dag_here_and_there(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "agent.py").write_text(textwrap.dedent(AGENT))
    trace = tmp_path / "run.json"
    request = RunRequest(target="agent.py", connect=server.url, key=KEY)
    assert run_request(request, Settings(quiet=True, trace=trace)) == 0
    (program,) = json.loads(trace.read_text())["programs"]
    calls = [call for call in program["calls"] if call["kind"] == "llm"]
    assert in_order([call["node"] for call in calls]) == ["first", "left", "right", "last"]
    assert all(call["service_s"] > 0 for call in calls)
    (dag,) = dags_of(server, program["id"])
    # The tool between the first call and the others is no call there: they follow the first.
    assert edges(dag) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert dag.critical_path_s == pytest.approx(program["critical_path_s"])
    there = [dag.call(call)["node"] for call in dag.graph]
    assert in_order(there) == ["first", "left", "right", "last"]


def test_what_the_server_learns_of_a_graph_it_learns_by_its_name(
    connection: Any, server: Server
) -> None:
    for _ in range(2):
        with connection.program("learner"):
            ask(openai.OpenAI())
    connection.session.loop.run(connection.session.host.engine.drain())
    there = server.run.programs.table.history.names
    assert sum(there["alice/learner"].ends) == 2


def test_what_the_server_has_to_say_cannot_be_said_here(server: Server) -> None:
    request = RunRequest(target="agent.py", connect=server.url, key=KEY)
    with pytest.raises(UsageError, match="--replicas is the server's to say"):
        run_request(request, Settings(replicas=2))


def test_wrong_urls_and_keys_are_told_in_words(server: Server) -> None:
    with pytest.raises(UsageError, match="wants a key of one of its tenants"):
        autellix.connect(server.url, "sk-wrong")
    for key in ("a\nb", "é"):
        with pytest.raises(UsageError, match="has characters that no key has"):
            autellix.connect(server.url, key)
    for url in ("ftp://x", "", " ", "http://[::1", "http://127.0.0.1:99999"):
        said = re.escape(f"{url!r} is no URL of a server; give one like")
        with pytest.raises(UsageError, match=said):
            autellix.connect(url)
    with pytest.raises(AutellixError, match=r"Nothing answers at http://127\.0\.0\.1:1"):
        autellix.connect("http://127.0.0.1:1")


def test_one_connection_at_a_time(connection: Any, server: Server) -> None:
    with pytest.raises(UsageError, match="is connected, already"):
        autellix.connect(server.url, KEY)
