"""What vLLM's front end takes for its engine: passes calls on to an ``Engine``, with tickets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from autellix.errors import AutellixError, CallError, CallRefusedError

from ..scheduler.tickets import Receipt, Ticket
from .answer_text import AnswerText
from .guided import bound_whitespace
from .model_front import ModelFront
from .protocols import Engine, EngineCall
from .served_call import ServedCall, served_call
from .vllm_names import (
    AsyncLLM,
    EngineClient,
    EngineDeadError,
    RequestOutput,
    SamplingParams,
    VLLMClientError,
    validate_xgrammar_grammar,
)

log = logging.getLogger("autellix")

ReceiptSink = Callable[[Receipt], None]
ContentSink = Callable[[str, str, str], None]
PromptSink = Callable[[Ticket, int], Ticket]

# vLLM's front end turns what its engine raises into words; a list that is set here gets the error.
errors_of_call: ContextVar[list[AutellixError] | None] = ContextVar("errors_of_call", default=None)


def _ignore(receipt: Receipt) -> None:
    pass


def _with_length(ticket: Ticket, prompt_tokens: int) -> Ticket:
    return ticket._replace(prompt_tokens=prompt_tokens)


def _length_of(prompt: Any) -> int:
    """Tokens of a rendered prompt, which may be given as embeddings."""
    ids = prompt.get("prompt_token_ids")
    embeddings = None if ids else prompt.get("prompt_embeds")
    return len(ids or ()) if embeddings is None else len(embeddings)


def _fits_nothing(output: RequestOutput) -> bool:
    """Whether a guided call has ended because its grammar left nothing to say."""
    return output.finished and any(each.finish_reason == "error" for each in output.outputs)


class EngineFront(EngineClient):
    """An ``Engine`` as vLLM's own front end sees one; make it with :func:`engine_front`.

    Args:
        engine: runs the calls.
        borrowed: a replica's client, or what stands in for one, whose tokenizer, configuration and
            side services are used.
    """

    def __init__(self, engine: Engine, borrowed: AsyncLLM | ModelFront) -> None:
        self.engine = engine
        self.vllm_config = borrowed.vllm_config
        self.model_config = borrowed.model_config
        self.renderer = borrowed.renderer
        self.input_processor = borrowed.input_processor
        self.borrowed = borrowed
        self._tasks: Any = None
        self.on_receipt: ReceiptSink = _ignore
        self.on_prompt: PromptSink = _with_length
        self.on_content: ContentSink | None = None
        self._settling: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        """Whether the engine takes calls."""
        return self.engine.is_serving

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has ended."""
        return not self.engine.is_serving

    @property
    def errored(self) -> bool:
        """Whether the engine cannot serve any more; a lost replica alone is mended."""
        return not self.engine.is_serving

    @property
    def dead_error(self) -> BaseException:
        """What is raised where the engine has ended."""
        return EngineDeadError()

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run one call; its receipt goes to the sink, also when it is aborted."""
        for ours in ("priority", "session_id"):
            options.pop(ours, None)
        extra = sampling_params.extra_args or {}
        served = served_call.get()
        given = _ticket(served, extra)
        ticket = given or Ticket(program=request_id, call=request_id)
        ticket = self.on_prompt(ticket, _length_of(prompt))
        sampling_params.extra_args = {**extra, **ticket.to_flat()}
        guided = sampling_params.structured_outputs
        if guided is not None:
            backend = self.vllm_config.structured_outputs_config.backend
            bound_whitespace(guided, backend, partial(_xgrammar_takes, sampling_params))
        stream = self.engine.generate(
            EngineCall(ticket=ticket, prompt=prompt, sampling=sampling_params, options=options)
        )
        receipt: Receipt | None = None
        answer = AnswerText(pieces=sampling_params.output_kind.name == "DELTA")
        try:
            async for chunk in stream:
                if self.on_content is not None:
                    answer.take(chunk.output)
                if chunk.receipt is not None:
                    receipt = chunk.receipt
                    self.on_receipt(receipt)
                    if served is not None and chunk.output.finished:
                        served.answered(ticket.call)
                if guided is not None and _fits_nothing(chunk.output):
                    raise CallRefusedError(
                        "No text fits the structure that was asked for: its schema, grammar or "
                        "pattern allows no token at some point. Ask for one that texts can have."
                    )
                yield chunk.output
        except AutellixError as error:
            if (heard := errors_of_call.get()) is not None:
                heard.append(error)
            if isinstance(error, CallRefusedError):
                # In vLLM's words, so that its application answers 400.
                raise VLLMClientError(str(error)) from error
            raise
        finally:
            await stream.aclose()
            if self.on_content is not None:
                self.on_content(ticket.call, self._prompt_text(prompt), answer.text)
            if receipt is None or given is None:
                settling = asyncio.create_task(self._settle(ticket, receipt, alone=given is None))
                self._settling.add(settling)
                settling.add_done_callback(self._settling.discard)
                await asyncio.shield(settling)

    def _prompt_text(self, prompt: Any) -> str:
        """The prompt as the model reads it."""
        if isinstance(text := prompt.get("prompt"), str):
            return text
        tokenizer = self.renderer.tokenizer
        return tokenizer.decode(prompt.get("prompt_token_ids") or []) if tokenizer else ""

    async def _settle(self, ticket: Ticket, receipt: Receipt | None, *, alone: bool) -> None:
        """Fetch the receipt of a call that ended early; one that came alone ends its program."""
        if receipt is None:
            await self._fetch_receipt(ticket.call)
        if alone:
            self.engine.forget(ticket.program)

    async def _fetch_receipt(self, call_id: str) -> None:
        try:
            receipt = await self.engine.abort(call_id)
        except Exception as error:  # whatever a dying engine says: its calls have no receipts
            log.debug("no receipt for call %s: %s", call_id, error)
            return
        if receipt is not None:
            self.on_receipt(receipt)

    async def settled(self) -> None:
        """Return when receipts of calls that ended early are in, and programs of one call over."""
        if self._settling:
            await asyncio.wait(self._settling)

    async def get_supported_tasks(self) -> Any:
        """What the model can do; asked once, of a replica that may be lost later."""
        if self._tasks is None:
            self._tasks = await self.borrowed.get_supported_tasks()
        return self._tasks

    async def abort(self, request_id: Any) -> None:
        """Abort one call or several."""
        for call_id in [request_id] if isinstance(request_id, str) else list(request_id):
            await self.engine.abort(call_id)

    async def check_health(self) -> None:
        """Raise where the engine is not well."""
        if self.errored:
            raise self.dead_error

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing: the engine belongs to its host."""


def engine_front(engine: Engine, borrowed: AsyncLLM | ModelFront) -> EngineFront:
    """A front over ``engine``.

    What is left of vLLM's protocol (profiling, sleeping, LoRA ...) goes to ``borrowed``.
    """
    missing = {name: _passed_on(name) for name in EngineFront.__abstractmethods__}
    complete: Any = type("EngineFront", (EngineFront,), missing)
    return complete(engine, borrowed)


def _ticket(served: ServedCall | None, extra: Mapping[str, Any]) -> Ticket | None:
    """The ticket of a call; None for one that came without: it is a program of its own."""
    if served is None:
        return Ticket.from_flat(extra)
    try:
        return served.ticket()
    except CallError as refused:
        # In vLLM's words, so that its application answers 400 wherever this is raised.
        raise VLLMClientError(str(refused)) from refused


def _xgrammar_takes(sampling: SamplingParams) -> bool:
    try:
        validate_xgrammar_grammar(sampling)
    except (VLLMClientError, ValueError):
        return False
    return True


def _passed_on(name: str) -> Callable[..., Any]:
    async def method(self: EngineFront, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.borrowed, name)(*args, **kwargs)

    return method
