"""The vLLM replica keeps the contract of engines, and says what is wrong with its arguments."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

import pytest

from autellix.errors import EngineStartError, SettingsError
from autellix.runtime import engine_start
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.models import resolve_model
from autellix.runtime.protocols import EngineCall, EngineChunk
from autellix.runtime.start_errors import start_error
from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.tickets import Ticket
from tests.conftest import CONTEXT, SEATS, idle_stats
from tests.runtime.engine_contract import EngineContract, EngineUnderTest

vllm_arguments = pytest.importorskip("autellix.runtime.vllm_arguments")


class VllmPrompts:
    def call(self, ticket: Ticket, prompt_tokens: int, max_tokens: int, delta: bool) -> EngineCall:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        sampling = SamplingParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            temperature=0,
            output_kind=RequestOutputKind.DELTA if delta else RequestOutputKind.CUMULATIVE,
            extra_args=dict(ticket.to_flat()),
        )
        seed = sum(map(ord, ticket.call))
        tokens = [1000 + (seed * 31 + i * 7) % 20000 for i in range(prompt_tokens)]
        return EngineCall(ticket=ticket, prompt={"prompt_token_ids": tokens}, sampling=sampling)

    def new_tokens(self, chunk: EngineChunk, delta: bool) -> int:
        return len(chunk.output.outputs[0].token_ids)


def the_replica(host: EngineHost) -> Any:
    """The engine's only replica, without what stands before it."""
    found: Any = host.engine.slots[0].replica  # type: ignore[attr-defined]
    return getattr(found, "replica", found)


class TestVllmReplica(EngineContract):
    @pytest.fixture
    def on_engine(self, engine_host: EngineHost) -> EngineUnderTest:
        return EngineUnderTest(engine_host.engine, VllmPrompts(), CONTEXT, engine_host.loop.run)

    def test_no_reply_shows_the_receipt(self, on_engine: EngineUnderTest) -> None:
        async def outputs() -> list[Any]:
            call = on_engine.prompts.call(Ticket(program="p", call="shown/0"), 20, 4, True)
            return [chunk.output async for chunk in on_engine.engine.generate(call)]

        assert [output.kv_transfer_params for output in on_engine(outputs())][-1] is None


def test_the_pool_is_told_of_steps_and_calls_without_asking(engine_host: EngineHost) -> None:
    pool = engine_host.engine
    ticket = Ticket(program="told", call="told", prompt_tokens=40)
    call = VllmPrompts().call(ticket, 40, 30, True)
    seen: list[int] = []

    async def serve() -> None:
        async for _ in pool.generate(call):
            seen.append(pool.told[0].running)

    engine_host.loop.run(serve())
    idle_stats(engine_host)
    (told,) = pool.told
    assert max(seen) == 1
    assert (told.state, told.running, told.waiting) == ("serving", 0, 0)
    assert told.step_s > 0
    assert told.seats == SEATS


def test_what_is_told_at_once_goes_in_one_message_in_order(
    engine_host: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = the_replica(engine_host)
    ask, asked = replica._ask, []

    async def noting(method: str, *args: Any) -> Any:
        asked.append((method, *args, await ask(method, *args)))

    monkeypatch.setattr(replica, "_ask", noting)

    async def tell() -> None:
        replica.away("a", (1.0, 2.0))
        replica.returns("a")
        replica.forget("a")
        await asyncio.gather(*replica._telling)
        replica.forget("b")
        await asyncio.gather(*replica._telling)

    engine_host.loop.run(tell())
    assert asked == [
        (
            "autellix_tell",
            [("away", "a", [1.0, 2.0]), ("returns", "a"), ("forget", "a")],
            ["keep", None, None],
        ),
        ("autellix_tell", [("forget", "b")], [None]),
    ]


# ── before it starts ─────────────────────────────────────────────────────────────────────────


def arguments(**given: Any) -> Any:
    # A folder that is there: offline, vLLM looks a name up in the hub's cache at once.
    model = str(Path(__file__).parent)
    return vllm_arguments.engine_args(model, given, SchedulerConfig(), served_name="name")


def test_what_was_given_wins_over_the_defaults() -> None:
    assert arguments(max_num_seqs=3).max_num_seqs == 3
    assert arguments().served_model_name == ["name"]
    assert arguments().additional_config == {"autellix": SchedulerConfig().to_dict()}


def test_an_unknown_argument_is_told_the_nearest() -> None:
    with pytest.raises(SettingsError, match="'max_num_seq'; did you mean 'max_num_seqs'"):
        arguments(max_num_seq=3)
    with pytest.raises(SettingsError, match="no engine argument 'zzz'"):
        arguments(zzz=3)


def test_what_autellix_sets_is_not_for_others() -> None:
    with pytest.raises(SettingsError, match="scheduler_cls is set by Autellix"):
        arguments(scheduler_cls="Other")


def test_too_little_memory_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_start, "available_memory_gib", lambda: 2.5)
    monkeypatch.setattr(engine_start, "is_cpu_build", lambda: True)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    with pytest.raises(EngineStartError) as raised:
        engine_start.check_memory(1)
    message = str(raised.value)
    assert "6.0 GiB" in message
    assert "2.5 GiB are free" in message
    assert "VLLM_CPU_KVCACHE_SPACE" in message


def test_a_replica_is_not_started_without_file_descriptors_to_spare() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 60, hard))
    try:
        with pytest.raises(EngineStartError, match="file descriptors are left"):
            engine_start.check_file_descriptors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    engine_start.check_file_descriptors()


def test_replicas_get_the_devices_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_arguments.current_platform, "is_cpu", lambda: False)
    monkeypatch.setattr(vllm_arguments, "device_count", lambda: 4)
    devices = vllm_arguments.devices_of
    two = {"tensor_parallel_size": 2}
    assert [devices(index, 2, two) for index in range(2)] == [[0, 1], [2, 3]]
    assert [devices(index, 4, {}) for index in range(4)] == [[0], [1], [2], [3]]
    # More replicas than devices share them; one replica, or devices by hand, are left to vLLM.
    assert [devices(index, 6, {}) for index in (4, 5)] == [[0], [1]]
    assert devices(0, 1, two) is None
    assert devices(0, 2, {"device_ids": [3]}) is None
    monkeypatch.setattr(vllm_arguments.current_platform, "is_cpu", lambda: True)
    assert devices(0, 2, {}) is None


@pytest.mark.parametrize(
    ("raised", "log", "said"),
    [
        (
            "Engine core initialization failed. See root cause above.",
            "(EngineCore pid=1) ERROR 01-01 00:00:00 [core.py:1] ValueError: No available memory "
            "for the cache blocks. Try increasing `gpu_memory_utilization`.",
            "Not enough memory",
        ),
        (
            "Repo id must be in the form 'namespace/repo_name': 'a/b/c'.",
            "",
            "There is no model 'some/model'",
        ),
        (
            "Engine core initialization failed.",
            "Traceback ...\nRuntimeError: the machine is on fire\n",
            "the machine is on fire",
        ),
    ],
)
def test_a_failed_start_names_the_cause_from_the_log(
    tmp_path: Path, raised: str, log: str, said: str
) -> None:
    file = tmp_path / "engine.log"
    file.write_text(log)
    message = str(start_error("some/model", RuntimeError(raised), file))
    assert said in message
    assert str(file) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"dtype": "nonsense"}, "does not take its arguments: dtype: Input should be 'auto'"),
        ({"max_model_len": 10**8}, "does not take its arguments: User-specified max_model_len"),
    ],
)
def test_arguments_that_the_engine_refuses_are_wrong_usage(
    argument: dict[str, Any], said: str
) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    with pytest.raises(ValueError) as refused:
        AsyncEngineArgs(model=str(resolve_model()), **argument).create_engine_config()
    error = start_error("small", refused.value, None)
    assert isinstance(error, SettingsError)
    assert said in str(error)
    assert "pydantic" not in str(error)
