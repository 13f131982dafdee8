"""What crosses the network comes out as it went in, and nothing else gets through."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from autellix.errors import CallError, ContextLengthError, EngineError, ReplicaLostError
from autellix.runtime.protocols import EngineCall
from autellix.scheduler.tickets import Decision, Receipt, Ticket

ray_wire = pytest.importorskip("autellix.runtime.ray_wire", reason="needs vLLM")


def call(**given: Any) -> EngineCall:
    from vllm.sampling_params import (
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )

    ticket = Ticket(program="p", call="p/1", attained_s=1.5, prompt_tokens=3, course=(1.0, 2.0))
    sampling = SamplingParams(
        temperature=0.3,
        seed=7,
        stop=["END"],
        max_tokens=9,
        logprobs=2,
        logit_bias={5: 1.0},
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=StructuredOutputsParams(json={"type": "object"}),
        extra_args=dict(ticket.to_flat()),
    )
    prompt = {"type": "token", "prompt_token_ids": [1, 2, 3], "arrival_time": 12.5}
    return EngineCall(**{"ticket": ticket, "prompt": prompt, "sampling": sampling} | given)


def output() -> Any:
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput

    choice = CompletionOutput(
        index=1,
        text="né",
        token_ids=[7, 8],
        cumulative_logprob=-0.25,
        logprobs=[{7: Logprob(-0.1, 1, "n"), 9: Logprob(-2.0, 2, None)}, {8: Logprob(-0.15)}],
        finish_reason="stop",
        stop_reason=42,
    )
    return RequestOutput(
        request_id="p/1",
        prompt=None,
        prompt_token_ids=[1, 2, 3],
        prompt_logprobs=[None, {2: Logprob(-1.0, 4, "x")}],
        outputs=[choice],
        finished=True,
        num_cached_tokens=2,
        kv_transfer_params={"k": [1, "v"]},
    )


RECEIPT = Receipt(
    program="p",
    call="p/1",
    service_s=0.5,
    wait_s=0.1,
    levels=(1, 2),
    preemptions=1,
    decisions=(Decision(1.0, "arrival", 1, "new"),),
)


def test_a_call_comes_out_as_it_went_in() -> None:
    sent = call()
    came = ray_wire.decode_call(ray_wire.encode_call(sent))
    assert came.ticket == sent.ticket
    assert came.sampling == sent.sampling
    assert came.prompt == {"type": "token", "prompt_token_ids": [1, 2, 3]}


def test_options_that_say_nothing_are_not_sent() -> None:
    options = {"priority": 3, "trace_headers": {"a": "b"}, "lora_request": None}
    came = ray_wire.decode_call(ray_wire.encode_call(call(options=options)))
    assert came.options == {"priority": 3, "trace_headers": {"a": "b"}}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"prompt": {"prompt_token_ids": [1], "multi_modal_data": object()}}, "multi_modal_data"),
        ({"prompt": {"type": "multimodal", "prompt_token_ids": [1]}}, "type multimodal"),
        ({"options": {"lora_request": object()}}, "lora_request"),
    ],
)
def test_what_is_no_text_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(CallError, match=f"{named}.*--engine vllm"):
        ray_wire.encode_call(call(**given))


class Code:
    """What must not run anywhere."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x01", pickle.dumps(Code())])
def test_bytes_that_are_no_call_are_refused(data: bytes) -> None:
    with pytest.raises(CallError, match="no call"):
        ray_wire.decode_call(data)
    with pytest.raises(EngineError, match="cannot be read"):
        ray_wire.decode_batch(data)


def test_an_output_comes_out_as_it_went_in() -> None:
    batch = ray_wire.encode_batch([ray_wire.chunk_of("p/1", output(), RECEIPT)])
    (chunk,) = ray_wire.decode_batch(batch)
    assert Receipt.from_wire(chunk.receipt) == RECEIPT
    came, sent = ray_wire.output_of(chunk, call()), output()
    assert vars(came) == vars(sent)


def test_what_an_answer_holds_and_cannot_be_sent_is_not_left_out_in_silence() -> None:
    odd = output()
    odd.outputs[0].routed_experts = [[1]]
    with pytest.raises(CallError, match="routed_experts"):
        ray_wire.chunk_of("p/1", odd, None)


@pytest.mark.parametrize(
    "error", [ContextLengthError("too long"), ReplicaLostError("gone"), CallError("no")]
)
def test_an_error_is_the_same_error_on_the_other_side(error: Exception) -> None:
    end = ray_wire.End.of("p/1", error)
    (came,) = ray_wire.decode_batch(ray_wire.encode_batch([end]))
    assert (type(came.error), str(came.error)) == (type(error), str(error))


def test_an_error_of_a_kind_not_known_here_is_one_of_the_engine() -> None:
    assert type(ray_wire.error_of("SystemExit", "x")) is EngineError
    assert type(ray_wire.error_of("annotations", "x")) is EngineError
    assert "KeyError" in str(ray_wire.End.of("c", KeyError("k")).error)


def test_a_call_that_ended_without_an_error_has_none() -> None:
    assert ray_wire.End("p/1").error is None
