"""vLLM's own chat front end (templates, tools, guided decoding) over an ``Engine``, without HTTP.

The way of a call: request body -> vLLM renders and tokenises it -> :class:`_EngineFront` turns it
into an :class:`EngineCall` with its ticket -> the engine -> vLLM parses the answer -> reply body.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import State

from autellix.errors import CallError, ContextLengthError

from ..scheduler.tickets import Receipt, Ticket
from .protocols import Engine, EngineCall
from .vllm_names import (
    AsyncLLM,
    ChatCompletionRequest,
    ChatCompletionResponse,
    EngineClient,
    ErrorResponse,
    FlexibleArgumentParser,
    GracefulHTTPError,
    RequestOutput,
    SamplingParams,
    VLLMClientError,
    init_app_state,
    make_arg_parser,
)

ReceiptSink = Callable[[Receipt], None]


class _EngineFront(EngineClient):
    """What vLLM's front end takes for its engine: passes calls on with their tickets."""

    def __init__(self, engine: Engine, borrowed: AsyncLLM) -> None:
        self.engine = engine
        self.vllm_config = borrowed.vllm_config
        self.model_config = borrowed.model_config
        self.renderer = borrowed.renderer
        self.input_processor = borrowed.input_processor
        self._borrowed = borrowed
        self.on_receipt: ReceiptSink = _ignore

    is_running = property(lambda self: self._borrowed.is_running)
    is_stopped = property(lambda self: self._borrowed.is_stopped)
    errored = property(lambda self: self._borrowed.errored)
    dead_error = property(lambda self: self._borrowed.dead_error)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run one call; its receipt goes to the sink, also when it is aborted."""
        for ours in ("priority", "session_id"):
            options.pop(ours, None)
        ticket = Ticket.from_flat(sampling_params.extra_args) or Ticket(
            program=request_id, call=request_id
        )
        ticket = replace(ticket, prompt_tokens=len(prompt.get("prompt_token_ids") or ()))
        sampling_params.extra_args = {**(sampling_params.extra_args or {}), **ticket.to_flat()}
        call = EngineCall(ticket=ticket, prompt=prompt, sampling=sampling_params, options=options)
        receipt: Receipt | None = None
        stream = self.engine.generate(call)
        try:
            async for chunk in stream:
                if chunk.receipt is not None:
                    receipt = chunk.receipt
                    self.on_receipt(receipt)
                yield chunk.output
        finally:
            await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue]
            if receipt is None:
                await asyncio.shield(self._settle(ticket.call))

    async def _settle(self, call_id: str) -> None:
        receipt = await self.engine.abort(call_id)
        if receipt is not None:
            self.on_receipt(receipt)

    async def get_supported_tasks(self) -> Any:
        """What the model can do."""
        return await self._borrowed.get_supported_tasks()

    async def abort(self, request_id: Any) -> None:
        """Abort one call or several."""
        for call_id in [request_id] if isinstance(request_id, str) else list(request_id):
            await self.engine.abort(call_id)

    async def check_health(self) -> None:
        """Raise where the engine is not well."""
        await self._borrowed.check_health()

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing: the engine belongs to the session."""


def _passed_on(name: str) -> Any:
    async def method(self: _EngineFront, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self._borrowed, name)(*args, **kwargs)

    return method


# What is left of vLLM's protocol (profiling, sleeping, LoRA ...) the replica answers itself.
for _name in _EngineFront.__abstractmethods__:
    setattr(_EngineFront, _name, _passed_on(_name))
_EngineFront.__abstractmethods__ = frozenset()


class ChatService:
    """Chat completions in the OpenAI form, in-process."""

    def __init__(self, state: State, front: _EngineFront) -> None:
        self.state = state
        self.model = front.engine.model
        self._front = front
        self._chat = state.openai_serving_chat

    def send_receipts_to(self, sink: ReceiptSink) -> None:
        """From now on every call's receipt goes to ``sink``."""
        self._front.on_receipt = sink

    @classmethod
    async def create(cls, engine: Engine, borrowed: AsyncLLM) -> ChatService:
        """Set vLLM's front end up around ``engine``, with ``borrowed``'s tokenizer and config."""
        parser = make_arg_parser(FlexibleArgumentParser())
        arguments = ["--model", borrowed.model_config.model, "--served-model-name", engine.model]
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        arguments += ["--tool-strict-level", "parameter", "--enable-prompt-tokens-details"]
        args = parser.parse_args(arguments)
        front = _EngineFront(engine, borrowed)
        state = State()
        await init_app_state(front, state, args, await front.get_supported_tasks())
        return cls(state, front)

    async def complete(self, body: Mapping[str, Any], ticket: Ticket) -> dict[str, Any]:
        """Answer a request at once; the reply in the OpenAI form.

        Raises:
            CallError: the request was refused; ContextLengthError where it is too long.
        """
        reply = await self._create({**body, "stream": False}, ticket)
        if not isinstance(reply, ChatCompletionResponse):
            raise _refused(reply)
        return reply.model_dump(mode="json", exclude_none=True)

    async def stream(
        self, body: Mapping[str, Any], ticket: Ticket
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answer in chunks of the OpenAI form; the last one carries the usage."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        events = await self._create({**body, **options}, ticket)
        if not hasattr(events, "__anext__"):
            raise _refused(events)
        try:
            async for event in events:
                data = event.removeprefix("data: ").strip()
                if data == "[DONE]":
                    break
                chunk = json.loads(data)
                if "error" in chunk:
                    raise _call_error(chunk["error"].get("message", data))
                yield chunk
        finally:
            await events.aclose()

    async def _create(self, body: dict[str, Any], ticket: Ticket) -> Any:
        body.setdefault("model", self.model)
        try:
            request = ChatCompletionRequest(
                **body, request_id=ticket.call, vllm_xargs=ticket.to_flat()
            )
            reply = await self._chat.create_chat_completion(request)
        except (ValidationError, TypeError) as cause:
            raise CallError(
                f"The request is not a valid chat request: {_problems(cause)}."
            ) from cause
        except (VLLMClientError, GracefulHTTPError) as cause:
            raise _call_error(str(cause)) from cause
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # vLLM's front end answers a cancelled call with an error reply; a cancel must stay one.
            raise asyncio.CancelledError
        return reply


def _ignore(receipt: Receipt) -> None:
    pass


def _problems(cause: ValidationError | TypeError) -> str:
    if not isinstance(cause, ValidationError):
        return str(cause)
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in cause.errors())


def _refused(reply: Any) -> CallError:
    if isinstance(reply, ErrorResponse):
        return _call_error(reply.error.message)
    return CallError(f"The engine's front end gave an unexpected reply: {type(reply).__name__}.")


def _call_error(text: str) -> CallError:
    if "context length" in text or "maximum model length" in text:
        return ContextLengthError(
            f"The prompt does not fit the model: {text} Shorten it, ask for fewer tokens, or raise "
            "the limit with --engine-arg max_model_len=N where the model allows it."
        )
    return CallError(f"The engine refused the call: {text}")
