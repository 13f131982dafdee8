"""``ChatAutellix``: a LangChain chat model over the engine in this process, without HTTP."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from operator import itemgetter
from typing import Any, Literal, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    BaseRunManager,
    CallbackManagerForLLMRun,
)
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    convert_to_openai_messages,
)
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, ConfigDict, Field

from ..runtime.protocols import (
    ChatBackend,
    achat_backend,
    chat_backend,
    prepare_chat_backend,
)
from .structured_answers import answer_parser

_PROVIDER = "autellix"
# Bound by LangChain for tracing only; the engine does not know them.
_NOT_FOR_THE_ENGINE = ("ls_structured_output_format", "strict", "stream")


class ChatAutellix(BaseChatModel):
    """A chat model served by the engine of this process.

    Under ``autellix run`` it uses the run's engine. In a plain ``python agent.py`` the first call
    starts one from ``AUTELLIX_*``, shared by the process and stopped at exit.

    Args:
        model: the engine's model; None for whatever the engine serves.
        temperature, top_p, seed, max_tokens: sampling; None leaves the model's default.
        stop: strings that end the answer.
        model_kwargs: further fields of the request, as vLLM's chat completions take them.

    Example:
        ``ChatAutellix(temperature=0).invoke("What is the capital of France?")``
    """

    model_config = ConfigDict(populate_by_name=True)

    model_name: str | None = Field(default=None, alias="model")
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    model_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "autellix-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name, **self._sampling()}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = _PROVIDER
        return params

    def _sampling(self) -> dict[str, Any]:
        names = ("temperature", "top_p", "seed", "max_tokens")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def model_post_init(self, context: Any) -> None:
        """Begin to record: the callbacks of the first call are set up before it comes here."""
        super().model_post_init(context)
        prepare_chat_backend()

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, extra: dict[str, Any]
    ) -> dict[str, Any]:
        """The request's body in the OpenAI form."""
        body = {"messages": convert_to_openai_messages(messages), **self._sampling()}
        body |= {**self.model_kwargs, **extra}
        for name in _NOT_FOR_THE_ENGINE:
            body.pop(name, None)
        if stops := (stop or self.stop):
            body["stop"] = stops
        if (limit := body.pop("max_tokens", None)) is not None:
            body.setdefault("max_completion_tokens", limit)  # the older name is deprecated
        body["model"] = body.get("model") or self.model_name
        return body

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body = self._request(messages, stop, kwargs)
        backend = chat_backend(body["model"])
        return _result(backend.loop.run(backend.complete(body, _call_id(run_manager, backend))))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body = self._request(messages, stop, kwargs)
        backend = await achat_backend(body["model"])
        return _result(
            await backend.loop.arun(backend.complete(body, _call_id(run_manager, backend)))
        )

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        body = self._request(messages, stop, kwargs)
        backend = chat_backend(body["model"])
        with closing(
            backend.loop.iterate(backend.stream(body, _call_id(run_manager, backend)))
        ) as events:
            for chunk in filter(None, map(_chunk, events)):
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        body = self._request(messages, stop, kwargs)
        backend = await achat_backend(body["model"])
        async with aclosing(
            backend.loop.aiterate(backend.stream(body, _call_id(run_manager, backend)))
        ) as events:
            async for event in events:
                chunk = _chunk(event)
                if chunk is None:
                    continue
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: dict[str, Any] | str | bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Give the model tools; with ``tool_choice`` it must use one, by guided decoding.

        Args:
            tools: functions, pydantic classes, LangChain tools or OpenAI tool schemas.
            tool_choice: "auto", "none", "any"/"required"/True (some tool), or a tool's name.
            strict: kept in the schema; arguments follow the schema in any case.
        """
        if tool_choice is True or tool_choice == "any":
            tool_choice = "required"
        elif isinstance(tool_choice, str) and tool_choice not in ("auto", "none", "required"):
            tool_choice = {"type": "function", "function": {"name": tool_choice}}
        if tool_choice:
            kwargs["tool_choice"] = tool_choice
        schemas = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        return cast(
            "Runnable[LanguageModelInput, AIMessage]", super().bind(tools=schemas, **kwargs)
        )

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """A model that answers in the form of ``schema``, by guided decoding.

        Args:
            schema: a pydantic class, TypedDict or JSON schema; None only with "json_mode".
            include_raw: answer {"raw", "parsed", "parsing_error"} instead of the parsed value.
            method: "json_schema" and "function_calling" follow the schema; "json_mode" only
                promises valid JSON.
            strict: accepted for compatibility; the schema always holds.
        """
        if method == "function_calling":
            return super().with_structured_output(
                cast("dict[str, Any] | type", schema), include_raw=include_raw, **kwargs
            )
        function = convert_to_openai_tool(schema)["function"] if schema is not None else None
        if method == "json_mode" or function is None:
            response_format: dict[str, Any] = {"type": "json_object"}
        else:
            wanted = {"name": function["name"], "schema": function["parameters"]}
            response_format = {"type": "json_schema", "json_schema": wanted}
        model = self.bind(
            response_format=response_format,
            ls_structured_output_format={"kwargs": {"method": method}, "schema": function},
            **kwargs,
        )
        parser = answer_parser(schema)
        if not include_raw:
            return cast("Runnable[LanguageModelInput, Any]", model | parser)
        parsed = RunnablePassthrough.assign(
            parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
        )
        unparsed = RunnablePassthrough.assign(parsed=lambda _: None)
        return cast(
            "Runnable[LanguageModelInput, Any]",
            RunnableMap(raw=model)
            | parsed.with_fallbacks([unparsed], exception_key="parsing_error"),
        )


def _call_id(run_manager: BaseRunManager | None, backend: ChatBackend) -> str:
    """The call's id: that of its callback run.

    LangChain gives no manager where it streams messages out of a graph; the recorder knows then.
    """
    if run_manager is not None:
        return str(run_manager.run_id)
    return backend.current_call() or str(uuid.uuid4())


def _usage(usage: Mapping[str, Any] | None) -> UsageMetadata | None:
    if not usage:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return UsageMetadata(
        input_tokens=usage["prompt_tokens"],
        output_tokens=usage.get("completion_tokens") or 0,
        total_tokens=usage["total_tokens"],
        input_token_details=InputTokenDetails(cache_read=cached),
    )


def _metadata(event: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {
        "model_name": event.get("model"),
        "model_provider": _PROVIDER,
        "finish_reason": finish_reason,
    }


def _result(reply: Mapping[str, Any]) -> ChatResult:
    """A whole reply of the OpenAI form as LangChain's result."""
    usage = _usage(reply.get("usage"))
    generations = []
    for choice in reply["choices"]:
        message = choice["message"]
        calls, invalid = [], []
        for raw in message.get("tool_calls") or []:
            try:
                calls.append(parse_tool_call(raw, return_id=True))
            except Exception as error:  # whatever the parser dislikes is an invalid call
                invalid.append(make_invalid_tool_call(raw, str(error)))
        metadata = _metadata(reply, choice.get("finish_reason"))
        if choice.get("logprobs"):
            metadata["logprobs"] = choice["logprobs"]
        answer = AIMessage(
            content=message.get("content") or "",
            tool_calls=[call for call in calls if call],
            invalid_tool_calls=invalid,
            response_metadata=metadata,
            usage_metadata=usage,
        )
        generations.append(ChatGeneration(message=answer, generation_info=metadata))
    return ChatResult(generations=generations)


def _chunk(event: Mapping[str, Any]) -> ChatGenerationChunk | None:
    """One event of the OpenAI stream as LangChain's chunk; None for one without content."""
    if not event["choices"]:
        usage = _usage(event.get("usage"))
        message = AIMessageChunk(content="", usage_metadata=usage, chunk_position="last")
        return ChatGenerationChunk(message=message) if usage else None
    choice = event["choices"][0]
    delta = choice["delta"]
    tool_chunks = [
        tool_call_chunk(
            name=(call.get("function") or {}).get("name"),
            args=(call.get("function") or {}).get("arguments"),
            id=call.get("id"),
            index=call.get("index"),
        )
        for call in delta.get("tool_calls") or []
    ]
    finish = choice.get("finish_reason")
    if not (delta.get("content") or tool_chunks or finish):
        return None
    message = AIMessageChunk(
        content=delta.get("content") or "",
        tool_call_chunks=tool_chunks,
        response_metadata=_metadata(event, finish) if finish else {},
    )
    return ChatGenerationChunk(message=message)
