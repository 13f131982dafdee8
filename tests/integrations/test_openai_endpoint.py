"""Unmodified OpenAI programs under ``autellix run``, on the shared engine."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autellix.errors import SettingsError
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.run_command import RunRequest, run_request
from autellix.runtime.settings import Settings
from tests.conftest import idle_stats

Document = dict[str, Any]
SMALL = "max_tokens=6, temperature=0"


class Runs:
    """Runs scripts; each gives its exit code and its trace."""

    def __init__(self, folder: Path, host: EngineHost) -> None:
        self.folder = folder
        self.host = host

    def __call__(
        self, text: str, *, input: str | None = None, **settings: Any
    ) -> tuple[int, Document]:
        (self.folder / "agent.py").write_text(textwrap.dedent(text).replace("SMALL", SMALL))
        trace = self.folder / "run.json"
        request = RunRequest(target="agent.py", input=input)
        code = run_request(request, Settings(quiet=True, trace=trace, **settings), self.host)
        return code, json.loads(trace.read_text())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_host: EngineHost) -> Iterator[Runs]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = environment()
    yield Runs(tmp_path, engine_host)
    assert environment() == before, "the run has left the environment changed"
    sys.modules.pop("agent", None)
    idle_stats(engine_host)


def environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def calls_of(document: Document) -> list[Document]:
    return [call for program in document["programs"] for call in program["calls"]]


def chain_of(program: Document) -> list[str]:
    """The models of a program whose calls all follow each other, in that order."""
    calls = program["calls"]
    for before, call in pairwise(calls):
        assert [parent["id"] for parent in call["parents"]] == [before["id"]]
    assert calls[0]["parents"] == []
    return [call["name"] for call in calls]


def assert_served(document: Document) -> None:
    """Every call has run in the engine, for the program it is in."""
    for call in calls_of(document):
        assert call["status"] == "done"
        assert call["service_s"] > 0
        assert call["output_tokens"] > 0


# ── every way to call ────────────────────────────────────────────────────────────────────────

RAW = """
    import asyncio, openai

    client = openai.OpenAI()  # set up while the script is imported
    ASK = dict(model="gpt-4o", messages=[{"role": "user", "content": "Say hi."}], SMALL)

    def text_of(chunks):
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    whole = client.chat.completions.create(**ASK)
    assert whole.choices[0].message.content and whole.usage.completion_tokens == 6
    assert "autellix" not in whole.model_dump_json().replace("autellix-engine", "")
    assert not (whole.model_extra or {}).get("kv_transfer_params")

    streamed = text_of(client.chat.completions.create(**ASK, stream=True))
    assert streamed == whole.choices[0].message.content

    for chunk in client.chat.completions.create(**ASK, stream=True):
        if chunk.choices[0].finish_reason:
            break  # the rest of the stream is left unread

    options = {"include_usage": True}
    *_, last = client.chat.completions.create(**ASK, stream=True, stream_options=options)
    assert (last.choices, last.usage.completion_tokens) == ([], 6)

    async def later():
        client = openai.AsyncOpenAI()
        return (
            (await client.chat.completions.create(**ASK)).choices[0].message.content,
            text_of([c async for c in await client.chat.completions.create(**ASK, stream=True)]),
        )

    assert asyncio.run(later()) == (streamed, streamed)
    assert client.completions.create(model="davinci", prompt="One two", SMALL).choices[0].text
    answer = client.responses.create(model="gpt-5", input="Say hi.", max_output_tokens=6)
    assert answer.output_text
    with client.responses.stream(model="gpt-5", input="Say hi.", max_output_tokens=6) as events:
        assert events.get_final_response().usage.output_tokens == 6
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        assert response.parse().usage.completion_tokens == 6
    assert client.chat.completions.with_raw_response.create(**ASK).parse().choices
    assert [model.id for model in client.models.list()] == ["MODEL"]
"""


def test_the_raw_sdk_in_all_its_ways_is_one_chain_of_calls(run: Runs) -> None:
    code, document = run(RAW.replace("MODEL", run.host.engine.model))
    assert code == 0
    (program,) = document["programs"]
    assert (program["id"], program["status"]) == ("main", "done")
    assert chain_of(program) == ["gpt-4o"] * 6 + ["davinci", "gpt-5", "gpt-5", "gpt-4o", "gpt-4o"]
    assert_served(document)


GUIDED = """
    import json, openai
    from autellix import ChatAutellix

    client = openai.OpenAI()
    SCHEMA = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    BLANKS = BIASED
    ASK = dict(model="m", messages=[{"role": "user", "content": "Go."}], max_tokens=60)
    FORM = {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA, "strict": True}}

    def chat(**more):
        made = client.chat.completions.create(**ASK, logit_bias=BLANKS, **more)
        return made.choices[0].message.content

    answers = [
        chat(response_format=FORM),
        chat(extra_body={"structured_outputs": {"json": SCHEMA}}),
        client.completions.create(
            model="m", prompt="Go.", max_tokens=60, logit_bias=BLANKS,
            extra_body={"structured_outputs": {"json": json.dumps(SCHEMA)}},
        ).choices[0].text,
        ChatAutellix(max_tokens=60, model_kwargs={"logit_bias": BLANKS, "response_format": FORM})
        .invoke("Go.").text,
    ]
    for answer in answers:
        assert set(json.loads(answer)) == {"a", "b"}, answer
"""


def test_blanks_are_bounded_in_every_form_of_json_that_can_be_asked_for(run: Runs) -> None:
    vocabulary = run.host.chat.state.openai_serving_chat.renderer.get_tokenizer().get_vocab()
    blanks = {str(id): 100 for text, id in vocabulary.items() if not text.strip("Ġ Ċ\t\n")}
    code, document = run(GUIDED.replace("BIASED", repr(blanks)))
    assert code == 0
    assert_served(document)


def test_a_list_of_prompts_is_a_call_each_side_by_side(run: Runs) -> None:
    code, document = run("""
        import openai
        client = openai.OpenAI()
        made = client.completions.create(model="m", prompt=["One two", "A b c"], SMALL)
        assert [choice.index for choice in made.choices] == [0, 1]
        client.completions.create(model="m", prompt="The end", SMALL)
    """)
    assert code == 0
    one, two, after = calls_of(document)
    assert one["parents"] == two["parents"] == []
    assert {parent["id"] for parent in after["parents"]} == {one["id"], two["id"]}
    assert_served(document)


def test_every_prompt_of_a_generate_is_served_as_the_call_that_was_announced(run: Runs) -> None:
    code, document = run("""
        from langchain_core.messages import HumanMessage
        from langchain_openai import ChatOpenAI, OpenAI

        chat, plain = ChatOpenAI(model="chat", SMALL), OpenAI(model="plain", SMALL)
        chat.generate([[HumanMessage("One")], [HumanMessage("Two")], [HumanMessage("Three")]])
        plain.generate(["One", "Two"])
    """)
    assert code == 0
    assert sorted(call["name"] for call in calls_of(document)) == ["OpenAI"] * 2 + ["chat"] * 3
    assert_served(document)


def test_langchain_models_and_raw_calls_share_a_node(run: Runs) -> None:
    code, document = run("""
        import asyncio, openai
        from langchain.chat_models import init_chat_model
        from langchain_openai import ChatOpenAI
        from langgraph.graph import START, MessagesState, StateGraph

        client, aclient = openai.OpenAI(), openai.AsyncOpenAI()

        def ask(name):
            return dict(model=name, messages=[{"role": "user", "content": "Say hi."}], SMALL)

        def first(state):
            client.chat.completions.create(**ask("raw"))
            message = ChatOpenAI(model="lc", SMALL).invoke("Say hi.")
            assert message.usage_metadata["output_tokens"] == 6
            parts = list(init_chat_model("openai:lc2", SMALL).stream("Say hi."))
            assert sum(p.usage_metadata["output_tokens"] for p in parts if p.usage_metadata) == 6
            return {"messages": [message]}

        async def second(state):
            model = ChatOpenAI(model="lc3", SMALL)
            both = [aclient.chat.completions.create(**ask("raw2")), model.ainvoke("Say hi.")]
            await asyncio.gather(*both)
            [part async for part in model.bind(model="lc4").astream("Say hi.")]
            return {}

        graph = StateGraph(MessagesState).add_node(first).add_node(second)
        graph = graph.add_edge(START, "first").add_edge("first", "second").compile()
        asyncio.run(graph.ainvoke({"messages": []}))
    """)
    assert code == 0
    (program,) = document["programs"]
    calls = {call["name"]: call for call in program["calls"]}
    name = {call["id"]: call["name"] for call in program["calls"]}
    parents = {n: {name[p["id"]] for p in call["parents"]} for n, call in calls.items()}
    assert parents == {
        "raw": set(),
        "lc": {"raw"},
        "lc2": {"lc"},
        "raw2": {"lc2"},
        "lc3": {"lc2"},
        "lc4": {"raw2", "lc3"},
    }
    assert {n: call["node"] for n, call in calls.items()} == {
        n: "first" if n in ("raw", "lc", "lc2") else "second" for n in calls
    }
    assert_served(document)


def test_create_agent_by_name_uses_its_tools(run: Runs) -> None:
    code, document = run("""
        from langchain.agents import create_agent

        def weather(city: str) -> str:
            "The weather in a city."
            return f"Fine in {city}."

        agent = create_agent("openai:gpt-4o", tools=[weather], system_prompt="Be brief.")
        last = agent.invoke({"messages": [("user", "Say hi.")]}, {"recursion_limit": 6})
        assert last["messages"][-1]
    """)
    assert code == 0
    (program,) = document["programs"]
    assert program["calls"][0]["name"] == "gpt-4o"
    assert program["calls"][0]["output_tokens"] > 0


def test_two_programs_at_once_keep_their_calls_apart(run: Runs) -> None:
    (run.folder / "tasks.jsonl").write_text('"one"\n"two"\n"three"\n')
    code, document = run(
        """
        import asyncio, openai
        from langchain_openai import ChatOpenAI

        meet = None

        async def main(word):
            global meet
            meet = meet or asyncio.Barrier(3)
            client, model = openai.AsyncOpenAI(), ChatOpenAI(model=word, SMALL)
            ask = [{"role": "user", "content": f"Say {word}."}]
            for _ in range(2):
                await meet.wait()
                await client.chat.completions.create(model=word, messages=ask, SMALL)
                await meet.wait()
                await model.ainvoke(ask)
            return word
        """,
        input="tasks.jsonl",
    )
    assert code == 0
    assert sorted(chain_of(p) for p in document["programs"]) == [
        [word] * 4 for word in ("one", "three", "two")
    ]
    assert_served(document)


def test_threads_and_sync_nodes_keep_their_program(run: Runs) -> None:
    (run.folder / "tasks.jsonl").write_text('"one"\n"two"\n')
    code, document = run(
        """
        import openai
        from concurrent.futures import ThreadPoolExecutor

        def main(word):
            client = openai.OpenAI()
            def ask(n):
                messages = [{"role": "user", "content": f"Say {word} {n}."}]
                return client.chat.completions.create(model=word, messages=messages, SMALL)
            ask(0)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(ask, (1, 2)))
            ask(3)
        """,
        input="tasks.jsonl",
    )
    assert code == 0
    for program in document["programs"]:
        first, *both, last = program["calls"]
        assert len({call["name"] for call in program["calls"]}) == 1
        assert [c["parents"][0]["id"] for c in both] == [first["id"]] * 2
        assert {p["id"] for p in last["parents"]} == {c["id"] for c in both}


# ── what clients may not do, and what they are told ──────────────────────────────────────────


def test_mistakes_are_answered_in_words(run: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run("""
        import openai
        client = openai.OpenAI()
        ask = dict(model="m", messages=[{"role": "user", "content": "a " * 5000}])
        for attempt in (
            lambda: openai.OpenAI(api_key="sk-mine").chat.completions.create(**ask),
            lambda: client.embeddings.create(model="m", input="x"),
            lambda: client.images.generate(prompt="x"),
            lambda: client.chat.completions.create(**ask),
            lambda: client.chat.completions.create(model="m", messages=[], SMALL),
        ):
            try:
                attempt()
            except openai.APIStatusError as error:
                print(error.status_code, error)
    """)
    assert code == 0
    said = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in said] == ["401", "404", "404", "400", "400"]
    assert "OPENAI_API_KEY" in said[0]
    assert "/v1/embeddings is not served" in said[1]
    assert "context length" in said[3]
    assert {call["status"] for call in calls_of(document)} == {"failed"}


def test_what_a_client_says_of_scheduling_changes_nothing(run: Runs) -> None:
    code, document = run("""
        import openai
        extra = {
            "priority": -9,
            "session_id": "someone",
            "vllm_xargs": {"autellix_program": "theirs", "autellix_call": "theirs"},
        }
        ask = [{"role": "user", "content": "Say hi."}]
        openai.OpenAI().chat.completions.create(
            model="m", messages=ask, extra_body=extra, extra_headers={"X-Session-ID": "s"}, SMALL
        )
    """)
    assert code == 0
    assert [program["id"] for program in document["programs"]] == ["main"]
    assert_served(document)


@pytest.mark.parametrize("way", ["timeout", "closed stream", "cancelled task"])
def test_a_call_that_its_client_gives_up_is_aborted_in_the_engine(run: Runs, way: str) -> None:
    code, document = run(f"""
        import asyncio, openai
        way = {way!r}
        ask = dict(model="m", messages=[{{"role": "user", "content": "Count."}}], max_tokens=1500)
        ask["extra_body"] = {{"ignore_eos": True}}
        client = openai.OpenAI(max_retries=0)
        if way == "timeout":
            try:
                client.chat.completions.create(**ask, timeout=0.5)
            except openai.APITimeoutError:
                pass
        elif way == "closed stream":
            with client.chat.completions.create(**ask, stream=True) as stream:
                next(iter(stream))
        else:
            async def main():
                async def ask_on():
                    stream = await openai.AsyncOpenAI().chat.completions.create(**ask, stream=True)
                    async for _ in stream:
                        begun.set()
                begun = asyncio.Event()
                task = asyncio.create_task(ask_on())
                await begun.wait()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            asyncio.run(main())
    """)
    assert code == 0
    (call,) = calls_of(document)
    assert call["status"] == ("failed" if way == "timeout" else "aborted")
    assert call["output_tokens"] < 1500


def test_one_warning_a_name_and_none_for_a_mapped_one(
    run: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    text = """
        import openai
        for name in ("gpt-4o", "gpt-4o", "mine"):
            ask = [{"role": "user", "content": "Say hi."}]
            openai.OpenAI().chat.completions.create(model=name, messages=ask, SMALL)
    """
    assert run(text, model_map={"mine": run.host.engine.model})[0] == 0
    warned = [r.getMessage() for r in caplog.records if "is served by" in r.getMessage()]
    assert [message.split("'")[1] for message in warned] == ["gpt-4o"]


def test_a_map_to_a_model_that_is_not_there_is_refused(run: Runs) -> None:
    with pytest.raises(SettingsError, match=f"no model 'nope'. There is: {run.host.engine.model}"):
        run("print(1)", model_map={"gpt-4o": "nope"})


# ── scripts that do other things ─────────────────────────────────────────────────────────────


def test_a_subprocess_and_a_plain_http_client_are_calls_of_main(run: Runs) -> None:
    code, document = run("""
        import json, os, subprocess, sys, urllib.request

        CHILD = (
            "import openai; ask = [{'role': 'user', 'content': 'Say hi.'}]; "
            "openai.OpenAI().chat.completions.create(model='child', messages=ask, max_tokens=6)"
        )
        subprocess.run([sys.executable, "-c", CHILD], check=True)
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/completions",
            json.dumps({"model": "curl", "prompt": "One two", "max_tokens": 6}).encode(),
            {
                "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
                "Content-Type": "application/json",
            },
        )
        assert json.load(urllib.request.urlopen(request))["usage"]["completion_tokens"] == 6
    """)
    assert code == 0
    (program,) = document["programs"]
    assert (program["id"], program["status"], len(program["calls"])) == ("main", "done", 2)
    assert_served(document)


def test_a_call_while_the_module_is_imported_is_served(run: Runs) -> None:
    code, document = run(
        """
        import openai
        ask = [{"role": "user", "content": "Say hi."}]
        greeting = openai.OpenAI().chat.completions.create(model="m", messages=ask, SMALL)
        def main(word): return greeting.choices[0].message.content
        """,
        input='"x"',
    )
    assert code == 0
    assert len(calls_of(document)) == 1
    assert_served(document)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import openai; openai.OpenAI(); print('no call')", 0),
        ("raise ValueError('bad')", 1),
    ],
)
def test_scripts_without_calls_end_as_they_like(run: Runs, text: str, expected: int) -> None:
    code, document = run(text)
    assert code == expected
    assert calls_of(document) == []


def test_a_script_may_exit_and_run_loops_of_its_own(run: Runs) -> None:
    code, document = run("""
        import asyncio, openai, sys, threading

        async def ask():
            messages = [{"role": "user", "content": "Say hi."}]
            await openai.AsyncOpenAI().chat.completions.create(model="m", messages=messages, SMALL)

        asyncio.run(ask())
        thread = threading.Thread(target=lambda: asyncio.run(ask()))
        thread.start()
        thread.join()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask())
        loop.close()
        sys.exit(4)
    """)
    assert code == 4
    (program,) = document["programs"]
    assert len(chain_of(program)) == 3
    assert_served(document)


def test_a_call_left_running_in_a_thread_ends_with_the_run(run: Runs) -> None:
    code, document = run("""
        import openai, threading
        begun = threading.Event()

        def ask():
            messages = [{"role": "user", "content": "Count."}]
            client = openai.OpenAI(max_retries=0)
            try:
                for _ in client.chat.completions.create(
                    model="m", messages=messages, stream=True, max_tokens=1500,
                    extra_body={"ignore_eos": True},
                ):
                    begun.set()
            except openai.OpenAIError:
                pass

        threading.Thread(target=ask, daemon=True).start()
        begun.wait()
    """)
    assert code == 0
    (call,) = calls_of(document)
    assert call["status"] in ("aborted", "failed")
