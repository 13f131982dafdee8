"""What crosses the network between the pool and a replica on another machine: plain data.

Everything is msgpack of the types below, whose shapes are checked when it is read; nothing is
pickled, so nothing that a client or a model wrote can become code on the other side. A call goes
out once, together with what else the replica is told in that moment. Outputs come back in batches:
all that a replica's calls had to say since the last one was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from autellix.errors import AutellixError, CallError, CallRefusedError, EngineError

from ..scheduler.tickets import Receipt, Ticket
from .protocols import EngineCall, EngineStats
from .vllm_names import CompletionOutput, Logprob, RequestOutput, SamplingParams

# Of a rendered prompt; images and sound are tensors, which do not go over this wire.
_PROMPT_KEYS = {"type", "prompt_token_ids", "prompt", "cache_salt"}
_LOCAL_PROMPT_KEYS = {"arrival_time"}  # a clock of this machine
_TEXT = "token"  # what the front end calls a prompt of text alone
# What an output may hold beside what is carried; it was asked for by the call, so it is no small
# matter to leave out.
_NOT_CARRIED = ("prompt_token_id_logprobs", "lora_request", "ec_transfer_params", "encoder_prompt")
_CHOICE_NOT_CARRIED = ("routed_experts", "lora_request", "sampling_mask", "spec_decode_metrics")

_Position = list[tuple[int, float, int | None, str | None]] | None


class _Call(msgspec.Struct, array_like=True):
    ticket: dict[str, Any]
    prompt: dict[str, Any]
    sampling: SamplingParams
    options: dict[str, Any]


class Begin(msgspec.Struct, array_like=True, tag="begin"):
    """Begin a call. Its bytes are read by themselves, so one that is no call ends alone."""

    call: str
    data: bytes


class Away(msgspec.Struct, array_like=True, tag="away"):
    """See ``Engine.away``."""

    program: str
    absence_s: list[float]


class Forget(msgspec.Struct, array_like=True, tag="forget"):
    """See ``Engine.forget``."""

    program: str


class Returns(msgspec.Struct, array_like=True, tag="returns"):
    """See ``Engine.returns``."""

    program: str


Order = Begin | Away | Forget | Returns


class Choice(msgspec.Struct, array_like=True):
    """New tokens of one choice of an answer, or all of them so far."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: list[_Position] | None = None


class Chunk(msgspec.Struct, array_like=True, tag="chunk"):
    """A piece of a call's answer; after one that is ``finished`` nothing more comes."""

    call: str
    finished: bool
    choices: list[Choice]
    cached_tokens: int | None = None
    receipt: dict[str, Any] | None = None
    prompt_logprobs: list[_Position] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class End(msgspec.Struct, array_like=True, tag="end"):
    """A call has ended without a finished answer; ``kind`` is an error's name, or empty."""

    call: str
    kind: str = ""
    message: str = ""

    @classmethod
    def of(cls, call: str, error: BaseException) -> End:
        """The end of a call by an error."""
        return cls(call, *plain_error(error))

    @property
    def error(self) -> AutellixError | None:
        """What ended it."""
        return error_of(self.kind, self.message) if self.kind else None


class Lost(msgspec.Struct, array_like=True, tag="lost"):
    """The replica's engine has ended by itself: it says nothing any more."""


class Told(msgspec.Struct, array_like=True, tag="told"):
    """What the replica is doing; comes along with what calls have to say."""

    stats: EngineStats


Item = Chunk | End | Lost | Told

_encoder = msgspec.msgpack.Encoder()
_orders = msgspec.msgpack.Decoder(list[Order])
_calls = msgspec.msgpack.Decoder(_Call)
_batches = msgspec.msgpack.Decoder(list[Item])


def plain_error(error: BaseException) -> tuple[str, str]:
    """An error as two texts: its kind and what it says."""
    if isinstance(error, AutellixError):
        return type(error).__name__, str(error)
    return EngineError.__name__, f"The replica failed: {type(error).__name__}: {error}"


def error_of(kind: str, message: str) -> AutellixError:
    """Inverse of :func:`plain_error`; a kind that is not known here is an ``EngineError``."""
    return _kinds(AutellixError).get(kind, EngineError)(message)


def _kinds(base: type[AutellixError]) -> dict[str, type[AutellixError]]:
    kinds = {base.__name__: base}
    for kind in base.__subclasses__():
        kinds |= _kinds(kind)
    return kinds


# ── calls ────────────────────────────────────────────────────────────────────────────────────


def encode_call(call: EngineCall) -> bytes:
    """A call as bytes.

    Raises:
        CallRefusedError: it holds what cannot be sent to another machine.
    """
    prompt = {key: value for key, value in call.prompt.items() if key not in _LOCAL_PROMPT_KEYS}
    options = {key: value for key, value in call.options.items() if value is not None}
    unknown = [*(prompt.keys() - _PROMPT_KEYS), *(k for k, v in options.items() if not _plain(v))]
    if prompt.get("type", _TEXT) != _TEXT:
        unknown.append(f"a prompt of type {prompt['type']}")
    if unknown:
        raise CallRefusedError(
            f"The call has {', '.join(sorted(unknown))}, which is not sent to replicas on other "
            "machines: those take text alone. Serve the model with --engine vllm."
        )
    sent = _Call(dict(call.ticket.to_flat()), prompt, call.sampling, options)
    try:
        return _encoder.encode(sent)
    except (TypeError, OverflowError) as cause:
        raise CallRefusedError(f"The call cannot be sent to another machine: {cause}.") from cause


def encode_orders(orders: Sequence[Order]) -> bytes:
    """What a replica is told in one moment, in order, as bytes."""
    return _encoder.encode(orders)


def decode_orders(data: bytes) -> list[Order]:
    """Inverse of :func:`encode_orders`."""
    return _orders.decode(data)


def decode_call(data: bytes) -> EngineCall:
    """Inverse of :func:`encode_call`.

    Raises:
        CallError: the bytes are no call.
    """
    try:
        sent = _calls.decode(data)
        ticket = Ticket.from_flat(sent.ticket)
    except (msgspec.DecodeError, TypeError, ValueError) as cause:
        raise CallError(f"What came over the network is no call: {cause}.") from cause
    if ticket is None:
        raise CallError("What came over the network is no call: it has no ticket.")
    return EngineCall(
        ticket=ticket, prompt=sent.prompt, sampling=sent.sampling, options=sent.options
    )


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(each) for key, each in value.items())
    return isinstance(value, str | int | float | bool)


# ── outputs ──────────────────────────────────────────────────────────────────────────────────


def chunk_of(call: str, output: RequestOutput, receipt: Receipt | None) -> Chunk:
    """An output as a piece of an answer.

    Raises:
        CallError: it holds what is not sent between machines.
    """
    held = [name for name in _NOT_CARRIED if getattr(output, name, None) is not None]
    for choice in output.outputs:
        held += [name for name in _CHOICE_NOT_CARRIED if getattr(choice, name, None) is not None]
    if held:
        raise CallError(
            f"The answer holds {', '.join(held)}, which is not sent between machines. Ask without, "
            "or serve the model with --engine vllm."
        )
    return Chunk(
        call,
        output.finished,
        [
            Choice(
                choice.index,
                choice.text,
                list(choice.token_ids),
                choice.finish_reason,
                choice.stop_reason,
                choice.cumulative_logprob,
                _positions(choice.logprobs),
            )
            for choice in output.outputs
        ],
        output.num_cached_tokens,
        None if receipt is None else receipt.to_wire(),
        _positions(output.prompt_logprobs),
        output.kv_transfer_params,
    )


def output_of(chunk: Chunk, call: EngineCall) -> RequestOutput:
    """Inverse of :func:`chunk_of`, for the call that it answers."""
    return RequestOutput(
        request_id=chunk.call,
        prompt=call.prompt.get("prompt"),
        prompt_token_ids=call.prompt.get("prompt_token_ids"),
        prompt_logprobs=_logprobs(chunk.prompt_logprobs),
        outputs=[
            CompletionOutput(
                index=choice.index,
                text=choice.text,
                token_ids=choice.token_ids,
                cumulative_logprob=choice.cumulative_logprob,
                logprobs=_logprobs(choice.logprobs),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            for choice in chunk.choices
        ],
        finished=chunk.finished,
        num_cached_tokens=chunk.cached_tokens,
        kv_transfer_params=chunk.kv_transfer_params,
    )


def encode_batch(items: Sequence[Item]) -> bytes:
    """What a replica has to say, as bytes."""
    return _encoder.encode(items)


def decode_batch(data: bytes) -> list[Item]:
    """Inverse of :func:`encode_batch`.

    Raises:
        EngineError: the bytes are no batch.
    """
    try:
        return _batches.decode(data)
    except msgspec.DecodeError as cause:
        raise EngineError(f"What came from the replica cannot be read: {cause}.") from cause


def _positions(logprobs: Any) -> list[_Position] | None:
    if logprobs is None:
        return None
    return [
        None
        if position is None
        else [(token, p.logprob, p.rank, p.decoded_token) for token, p in position.items()]
        for position in logprobs
    ]


def _logprobs(positions: list[_Position] | None) -> Any:
    if positions is None:
        return None
    return [
        None
        if position is None
        else {token: Logprob(logprob, rank, text) for token, logprob, rank, text in position}
        for position in positions
    ]
