"""What a real run leaves behind: engine facts, texts only where wanted, spans where asked for."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from autellix import program
from autellix.integrations.chat_model import ChatAutellix
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings
from autellix.tracing.trace import Trace
from autellix.tracing.trace_file import read_trace
from tests.conftest import SEATS
from tests.tracing.test_spans import Collector, attributes, http_collector

__all__ = ["http_collector"]
QUESTION = "Say the word umbrella."


def recorded(host: EngineHost, path: Path, *, stream: bool = False, **settings: object) -> Trace:
    """One program of one call, run and read back."""
    session = Session(Settings(quiet=True, trace=path, **settings), host)  # type: ignore[arg-type]
    session.start()
    use_session(session)
    try:
        model = ChatAutellix(max_tokens=12, temperature=0)
        with program("asker"):
            if stream:
                "".join(str(chunk.content) for chunk in model.stream(QUESTION))
            else:
                model.invoke(QUESTION)
    finally:
        session.finish()
        use_session(None)
    return read_trace(path)


def test_a_trace_says_what_its_engine_holds_and_when_it_ran(engine_host: EngineHost, tmp_path):
    trace = recorded(engine_host, tmp_path / "t.json.zst")
    assert trace.engine.seats == SEATS
    assert trace.engine.kv_tokens > trace.engine.token_budget > trace.engine.block_tokens > 0
    assert trace.scheduler["policy"] == trace.policy
    assert trace.started_at == pytest.approx(time.time() - trace.end_s, abs=60)


def test_texts_are_not_in_a_trace(engine_host: EngineHost, tmp_path):
    trace = recorded(engine_host, tmp_path / "t.json")
    assert [call.content for call in trace.calls()] == [None]
    assert "umbrella" not in (tmp_path / "t.json").read_text().lower()


@pytest.mark.parametrize("stream", [False, True], ids=["at once", "streamed"])
def test_texts_are_in_it_where_the_user_wants_them(engine_host: EngineHost, tmp_path, stream):
    trace = recorded(engine_host, tmp_path / "t.json", stream=stream, record_content=True)
    (call,) = trace.calls()
    assert call.content is not None
    assert QUESTION in call.content["prompt"]
    assert "<|im_start|>" in call.content["prompt"]  # as the model read it
    assert 0 < len(call.content["answer"]) < 200
    assert not call.content["answer"].startswith("<|im_start|>")


def test_a_run_sends_its_spans_where_the_variables_say(
    engine_host: EngineHost, tmp_path, http_collector: Collector, monkeypatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", http_collector.url)
    trace = recorded(engine_host, tmp_path / "t.json")
    (call,) = trace.calls()
    spans = {span.name: span for span in http_collector.spans}
    chat = spans[f"chat {trace.engine.model}"]
    assert attributes(chat)["autellix.call"] == call.id
    assert attributes(chat)["gen_ai.usage.output_tokens"] == call.output_tokens
    assert chat.parent_span_id == spans["invoke_workflow asker"].span_id
    assert not any("messages" in name for name in attributes(chat))


def test_a_call_that_was_given_up_keeps_what_had_come(engine_host: EngineHost, tmp_path):
    path = tmp_path / "t.json"
    session = Session(Settings(quiet=True, trace=path, record_content=True), engine_host)
    session.start()
    use_session(session)

    async def give_up() -> None:
        model = ChatAutellix(max_tokens=500, temperature=0)
        with program("asker"):
            stream = model.astream("Count from one to one hundred.")
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]

    try:
        asyncio.run(give_up())
    finally:
        session.finish()
        use_session(None)
    (call,) = json.loads(path.read_text())["programs"][0]["calls"]
    assert call["status"] == "aborted"
    assert "Count from one" in call["content"]["prompt"]
