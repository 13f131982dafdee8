"""``--kv-host-gib``: how much host memory keeps KV, and what the engine is told."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

from autellix.errors import SettingsError
from autellix.runtime import host_tier
from autellix.runtime.host_tier import default_host_gib, with_host_tier
from autellix.runtime.settings import Settings


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tier, "available_memory_gib", lambda: 21.5)


def test_the_tier_is_off_on_a_cpu_unless_asked_for() -> None:
    assert with_host_tier({"max_num_seqs": 4}, None) == {"max_num_seqs": 4}
    assert with_host_tier({}, 0) == {}


def test_on_a_gpu_it_takes_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tier, "is_cpu_build", lambda: False)
    assert default_host_gib() == 10
    monkeypatch.setattr(host_tier, "available_memory_gib", lambda: 1000.0)
    assert default_host_gib() == 64
    monkeypatch.setattr(host_tier, "available_memory_gib", lambda: 1.5)
    assert with_host_tier({}, None) == {}


def test_the_engine_is_told_of_the_plug_in() -> None:
    config = with_host_tier({"max_num_seqs": 4}, 1.5)["kv_transfer_config"]
    assert config.kv_connector == "OffloadingConnector"
    extra = config.kv_connector_extra_config
    assert extra["spec_name"] == "HostTierSpec"
    assert extra["spec_module_path"] == "autellix.kernels.offload"
    assert extra["cpu_bytes_to_use"] == 3 * 2**29
    assert extra["offload_prompt_only"] is False


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"asks for 22 GiB of host memory, and 21\.5 GiB are"):
        with_host_tier({}, 22)


def test_two_connectors_are_refused_and_the_users_own_stays() -> None:
    own = {"kv_transfer_config": {"kv_connector": "Mine"}}
    assert with_host_tier(own, None) == own
    with pytest.raises(SettingsError, match="leave one out"):
        with_host_tier(own, 2)


def test_the_setting_has_a_variable_and_a_range() -> None:
    assert Settings.from_environment({"AUTELLIX_KV_HOST_GIB": "2.5"}).kv_host_gib == 2.5
    with pytest.raises(SettingsError, match="AUTELLIX_KV_HOST_GIB is a number of GiB, got 'lots'"):
        Settings.from_environment({"AUTELLIX_KV_HOST_GIB": "lots"})
    with pytest.raises(SettingsError, match="GiB from 0 on, got -1"):
        Settings(kv_host_gib=-1)
