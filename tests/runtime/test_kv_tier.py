"""The host tier on the real engine: what comes back from it, what receipts say, what is freed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

from autellix.runtime.engine_host import EngineHost
from autellix.runtime.gated_replica import GatedReplica
from autellix.runtime.protocols import EngineCall
from autellix.runtime.vllm_replica import VllmReplica
from autellix.scheduler.kv_home import PERSON_S
from autellix.scheduler.tickets import Receipt, Ticket

BLOCK = 32
PROMPT = [1000 + i * 7 for i in range(7 * BLOCK + 5)]


class OnEngine:
    """Calls to the shared engine, one after the other."""

    def __init__(self, host: EngineHost) -> None:
        self.host = host
        replica: Any = host.engine.slots[0].replica  # type: ignore[attr-defined]
        self.replica: VllmReplica = (
            replica.replica if isinstance(replica, GatedReplica) else replica
        )
        self._calls = 0

    def ask(self, program: str, prompt: list[int]) -> tuple[list[int], Receipt]:
        """The answer's tokens and the receipt of one call."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._calls += 1
        ticket = Ticket(program=program, call=f"{program}/{self._calls}", prompt_tokens=len(prompt))
        sampling = SamplingParams(
            max_tokens=12,
            ignore_eos=True,
            temperature=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=dict(ticket.to_flat()),
        )

        async def run() -> tuple[list[int], Receipt]:
            call = EngineCall(ticket=ticket, prompt={"prompt_token_ids": prompt}, sampling=sampling)
            (chunk,) = [chunk async for chunk in self.host.engine.generate(call)]
            assert chunk.receipt is not None
            return list(chunk.output.outputs[0].token_ids), chunk.receipt

        return self.host.loop.run(run())

    def empty_the_device(self) -> None:
        self.host.loop.run(self.replica.forget_prefixes())

    def tell(self, what: str, *about: Any) -> Any:
        (done,) = self.host.loop.run(self.replica._ask("autellix_tell", [(what, *about)]))
        return done


@pytest.fixture
def on_engine(engine_host: EngineHost) -> OnEngine:
    return OnEngine(engine_host)


def test_what_the_device_has_lost_comes_from_the_host_and_the_receipt_says_so(
    on_engine: OnEngine,
) -> None:
    on_engine.ask("kv", PROMPT)
    hit, from_device = on_engine.ask("kv", PROMPT)
    on_engine.empty_the_device()
    loaded, from_host = on_engine.ask("kv", PROMPT)
    assert from_device.cached_tokens == from_host.cached_tokens == 7 * BLOCK
    assert (from_device.swapped_in_tokens, from_host.swapped_in_tokens) == (0, 7 * BLOCK)
    assert from_device.recomputed_tokens == from_host.recomputed_tokens == 0
    assert loaded == hit
    on_engine.tell("forget", "kv")


def test_an_ended_program_leaves_nothing_in_the_host(on_engine: OnEngine) -> None:
    prompt = [token + 1 for token in PROMPT]
    on_engine.ask("over", prompt)
    on_engine.tell("forget", "over")
    on_engine.empty_the_device()
    _, receipt = on_engine.ask("over", prompt)
    assert (receipt.cached_tokens, receipt.swapped_in_tokens) == (0, 0)
    on_engine.tell("forget", "over")


def test_who_is_away_keeps_its_kv_where_there_is_room(on_engine: OnEngine) -> None:
    prompt = [token + 2 for token in PROMPT]
    on_engine.ask("away", prompt)
    for absence_s in ((), (1.0, 2.0, 3.0), PERSON_S):
        assert on_engine.tell("away", "away", list(absence_s)) == "keep"
    on_engine.empty_the_device()
    _, receipt = on_engine.ask("away", prompt)
    assert receipt.swapped_in_tokens == 7 * BLOCK
    on_engine.tell("forget", "away")


def test_the_state_of_the_engine_tells_of_its_host_tier(on_engine: OnEngine) -> None:
    stats = on_engine.host.loop.run(on_engine.host.engine.stats_of_replicas())[0]
    assert stats.kv_host_tokens > 0 and stats.kv_host_usage is not None
    assert 0.0 <= stats.kv_host_usage <= 1.0
