"""vLLM's own chat front end (templates, tools, guided decoding) over an ``Engine``, without HTTP.

The way of a call: request body -> vLLM renders and tokenises it -> ``EngineFront`` turns it
into an :class:`EngineCall` with its ticket -> the engine -> vLLM parses the answer -> reply body.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from pydantic import ValidationError
from starlette.datastructures import State

from autellix.errors import AutellixError, CallError

from ..scheduler.tickets import Ticket
from .call_errors import call_error
from .engine_front import (
    ContentSink,
    EngineFront,
    PromptSink,
    ReceiptSink,
    engine_front,
    errors_of_call,
)
from .model_front import ModelFront
from .openai_application import openai_application
from .protocols import Engine
from .start_errors import problems
from .unreadable_requests import refuse_unreadable
from .vllm_names import (
    AsyncLLM,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ErrorResponse,
    FlexibleArgumentParser,
    GracefulHTTPError,
    VLLMClientError,
    init_app_state,
    make_arg_parser,
)


class ChatService:
    """Chat completions in the OpenAI form, in-process.

    Attributes:
        model: what requests call the model.
        borrowed: the replica's client whose tokenizer and configuration are used.
    """

    def __init__(self, state: State, front: EngineFront) -> None:
        self.state = state
        self.model = front.engine.model
        self.borrowed = front.borrowed
        self._front = front
        self._chat = state.openai_serving_chat
        self._application: Any = None

    def send_receipts_to(self, sink: ReceiptSink) -> None:
        """From now on every call's receipt goes to ``sink``."""
        self._front.on_receipt = sink

    def send_prompts_to(self, sink: PromptSink) -> None:
        """From now on ``sink`` completes every call's ticket by its prompt's length in tokens."""
        self._front.on_prompt = sink

    def send_contents_to(self, sink: ContentSink | None) -> None:
        """From now on every call's id, prompt and answer go to ``sink``; None for nowhere."""
        self._front.on_content = sink

    async def settled(self) -> None:
        """Return when the receipts of all calls that were given up are in."""
        await self._front.settled()

    @classmethod
    async def create(cls, engine: Engine, borrowed: AsyncLLM | ModelFront) -> ChatService:
        """Set vLLM's front end up around ``engine``, with ``borrowed``'s tokenizer and config."""
        parser = make_arg_parser(FlexibleArgumentParser())
        arguments = ["--model", borrowed.model_config.model, "--served-model-name", engine.model]
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        arguments += ["--tool-strict-level", "parameter", "--enable-prompt-tokens-details"]
        args = cast("Namespace", parser.parse_args(arguments))
        front = engine_front(engine, borrowed)
        state = State()
        await init_app_state(front, state, args, await front.get_supported_tasks())
        refuse_unreadable(state.online_renderer)
        return cls(state, front)

    def application(self) -> Any:
        """VLLM's own HTTP application over the same front end; made when it is first asked for."""
        if self._application is None:
            self._application = openai_application(self.state)
        return self._application

    async def complete(self, body: Mapping[str, Any], ticket: Ticket) -> dict[str, Any]:
        """Answer a request at once; the reply in the OpenAI form.

        Raises:
            CallError: the request was refused; ContextLengthError where it is too long.
        """
        errors: list[AutellixError] = []
        errors_of_call.set(errors)
        reply = await self._create({**body, "stream": False}, ticket)
        if not isinstance(reply, ChatCompletionResponse):
            raise _refused(reply, errors)
        return reply.model_dump(mode="json", exclude_none=True)

    async def stream(
        self, body: Mapping[str, Any], ticket: Ticket
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answer in chunks of the OpenAI form; the last one carries the usage."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        errors: list[AutellixError] = []
        errors_of_call.set(errors)
        events = await self._create({**body, **options}, ticket)
        if not hasattr(events, "__anext__"):
            raise _refused(events, errors)
        try:
            async for event in events:
                data = event.removeprefix("data: ").strip()
                if data == "[DONE]":
                    break
                chunk = json.loads(data)
                if "error" in chunk:
                    said = call_error(chunk["error"].get("message", data))
                    raise errors[0] if errors else said
                yield chunk
        finally:
            await events.aclose()

    async def _create(self, body: dict[str, Any], ticket: Ticket) -> Any:
        body.setdefault("model", self.model)
        flat: dict[str, Any] = dict(ticket.to_flat())
        try:
            request = ChatCompletionRequest(**body, request_id=ticket.call, vllm_xargs=flat)
            reply = await self._chat.create_chat_completion(request)
        except (ValidationError, TypeError) as cause:
            said = problems(cause) if isinstance(cause, ValidationError) else cause
            raise CallError(f"The request is not a valid chat request: {said}.") from cause
        except (VLLMClientError, GracefulHTTPError) as cause:
            heard = errors_of_call.get()
            raise heard[0] if heard else call_error(str(cause)) from cause
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # vLLM's front end answers a cancelled call with an error reply; a cancel must stay one.
            raise asyncio.CancelledError
        return reply


def _refused(reply: Any, errors: list[AutellixError]) -> AutellixError:
    if errors:
        return errors[0]
    if isinstance(reply, ErrorResponse):
        return call_error(reply.error.message)
    return CallError(f"The engine's front end gave an unexpected reply: {type(reply).__name__}.")
