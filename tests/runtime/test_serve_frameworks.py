"""Agents of other frameworks and processes on a server: each is a program, call by call."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.serving import Server
from tests.runtime.serve_client import Client, serving

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ROOT / ".venv-frameworks" / "bin" / "python"
KEY = "sk-alice-0123456789"


@pytest.fixture(scope="module")
def server(engine_host: EngineHost) -> Iterator[Server]:
    with serving(engine_host, f"alice {KEY}") as server:
        yield server


def run(server: Server, python: Path | str, text: str) -> None:
    """Run a script in a process of its own, which knows the server's address and key only."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {
        "URL": f"{server.url}/v1",
        "KEY": KEY,
        "MODEL": server.run.host.engine.model,
        "AUTOGEN_DISABLE_RUNTIME_TRACING": "true",
    }
    head = "import os; URL, KEY, MODEL = (os.environ[n] for n in ('URL', 'KEY', 'MODEL'))\n"
    script = head + textwrap.dedent(text)
    done = subprocess.run(
        [str(python), "-c", script], env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr[-3000:]


def program(server: Server, name: str) -> list[dict[str, Any]]:
    calls = Client(server, KEY).program(f"alice/{name}")
    assert all(call["state"] == "done" and call["tokens"] > 0 for call in calls)
    return calls


def assert_chain(calls: list[dict[str, Any]], length: int) -> None:
    assert len(calls) == length
    parents = [[place for place, _ in call["parents"]] for call in calls]
    assert parents == [[], *([place] for place in range(length - 1))]


def test_the_openai_client(server: Server) -> None:
    run(
        server,
        sys.executable,
        """
        import openai

        client = openai.OpenAI(
            base_url=URL, api_key=KEY, default_headers={"X-Session-ID": "openai-client"}
        )
        ask = dict(model=MODEL, messages=[{"role": "user", "content": "Hi."}], max_tokens=4)
        made = client.chat.completions.with_raw_response.create(**ask)
        assert made.headers["x-autellix-call"] and made.headers["x-session-id"] == "openai-client"
        options = {"include_usage": True}
        *_, last = client.chat.completions.create(**ask, stream=True, stream_options=options)
        assert last.usage.completion_tokens == 4
        assert client.responses.create(model=MODEL, input="Hi.", max_output_tokens=4).output_text
        try:
            client.chat.completions.create(**{**ask, "max_tokens": -1})
        except openai.BadRequestError:
            pass
        try:
            openai.OpenAI(base_url=URL, api_key="sk-nobodys-0123456").models.list()
        except openai.AuthenticationError:
            pass
        """,
    )
    calls = Client(server, KEY).program("alice/openai-client")
    assert_chain(calls, 4)
    assert [call["state"] for call in calls] == ["done", "done", "done", "failed"]


def test_chat_openai_of_langchain(server: Server) -> None:
    run(
        server,
        sys.executable,
        """
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(
            base_url=URL, api_key=KEY, model=MODEL, max_tokens=150, temperature=0,
            default_headers={"X-Session-ID": "langchain"},
        )

        @tool
        def look(what: str) -> str:
            "Look it up."
            return what

        assert model.invoke("Say hi.").usage_metadata["output_tokens"] > 0
        called = model.bind_tools([look], tool_choice="required").invoke("Look up the weather.")
        assert called.tool_calls[0]["name"] == "look"
        assert "".join(part.text for part in model.stream("Say bye."))
        """,
    )
    assert_chain(program(server, "langchain"), 3)


def test_plain_http_of_the_standard_library(server: Server) -> None:
    run(
        server,
        sys.executable,
        """
        import json, urllib.request

        def ask(content):
            request = urllib.request.Request(f"{URL}/chat/completions", method="POST")
            request.add_header("Authorization", f"Bearer {KEY}")
            request.add_header("Content-Type", "application/json")
            request.add_header("X-Session-ID", "plain")
            messages = [{"role": "user", "content": content}]
            body = json.dumps({"messages": messages, "max_tokens": 4}).encode()
            return json.load(urllib.request.urlopen(request, body))["choices"][0]["message"]

        ask(ask("Hi.")["content"])
        """,
    )
    assert_chain(program(server, "plain"), 2)


other_frameworks = pytest.mark.skipif(
    not FRAMEWORKS.exists(), reason="make test-frameworks installs them"
)


@pytest.mark.slow
@other_frameworks
def test_autogen(server: Server) -> None:
    run(
        server,
        FRAMEWORKS,
        """
        import asyncio
        from autogen_agentchat.agents import AssistantAgent
        from autogen_agentchat.conditions import MaxMessageTermination
        from autogen_agentchat.teams import RoundRobinGroupChat
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        info = dict(
            vision=False, function_calling=False, json_output=False, structured_output=False,
            family="unknown",
        )
        client = OpenAIChatCompletionClient(
            model=MODEL, base_url=URL, api_key=KEY, model_info=info, max_tokens=8,
            default_headers={"X-Session-ID": "autogen"},
        )

        async def main():
            team = RoundRobinGroupChat(
                [AssistantAgent("one", client), AssistantAgent("two", client)],
                termination_condition=MaxMessageTermination(4),
            )
            result = await team.run(task="Say hi.")
            assert len(result.messages) == 4
            await client.close()

        asyncio.run(main())
        """,
    )
    assert_chain(program(server, "autogen"), 3)


@pytest.mark.slow
@other_frameworks
def test_llama_index(server: Server) -> None:
    run(
        server,
        FRAMEWORKS,
        """
        from llama_index.core.llms import ChatMessage
        from llama_index.llms.openai_like import OpenAILike

        llm = OpenAILike(
            model=MODEL, api_base=URL, api_key=KEY, is_chat_model=True, max_tokens=6,
            default_headers={"X-Session-ID": "llama-index"},
        )
        assert llm.chat([ChatMessage(role="user", content="Hi.")]).message.content
        assert [part.delta for part in llm.stream_chat([ChatMessage(role="user", content="Hi.")])]
        """,
    )
    assert_chain(program(server, "llama-index"), 2)


@pytest.mark.slow
@other_frameworks
def test_dspy(server: Server) -> None:
    run(
        server,
        FRAMEWORKS,
        """
        import dspy

        lm = dspy.LM(
            f"openai/{MODEL}", api_base=URL, api_key=KEY, max_tokens=16, cache=False,
            extra_headers={"X-Session-ID": "dspy"},
        )
        assert lm("Say hi.")
        assert lm(messages=[{"role": "user", "content": "Say bye."}])
        """,
    )
    assert_chain(program(server, "dspy"), 2)
