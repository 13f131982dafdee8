"""How much host memory keeps KV, and the engine's argument that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autellix.errors import SettingsError

from .engine_start import is_cpu_build
from .machine import available_memory_gib

_ARGUMENT = "kv_transfer_config"
_SHARE_OF_FREE = 0.5
# Pinning takes time at every start, so more than this only for those who ask for it.
_MOST_GIB = 64


def with_host_tier(
    given: Mapping[str, Any], host_gib: float | None, replicas: int = 1
) -> dict[str, Any]:
    """Engine arguments with the host tier of the KV cache turned on, where it is wanted.

    Args:
        given: arguments of vLLM's engine.
        host_gib: host memory for KV, GiB; 0 turns it off. None is the default: half of the memory
            that is free, at most 64 GiB, where there is a GPU, and nothing on a CPU.
        replicas: how many share it.

    Raises:
        SettingsError: there is not so much memory, or the arguments name a KV connector too.
    """
    if _ARGUMENT in given:
        if host_gib:
            raise SettingsError(
                f"--kv-host-gib and --engine-arg {_ARGUMENT} both say where KV goes; leave one out."
            )
        return dict(given)
    gib = default_host_gib() if host_gib is None else host_gib
    if gib == 0:
        return dict(given)
    check_host_memory(gib)
    from ..kernels.offload import transfer_config

    return {**given, _ARGUMENT: transfer_config(int(gib * 2**30 / replicas))}


def check_host_memory(host_gib: float | None) -> None:
    """Refuse early what the machine does not have; None asks for no more than it has.

    Raises:
        SettingsError: there is not so much memory.
    """
    free = available_memory_gib()
    if host_gib is not None and host_gib > free:
        raise SettingsError(
            f"--kv-host-gib asks for {host_gib:g} GiB of host memory, and {free:.1f} GiB are free. "
            "Ask for less, or write 0 to do without."
        )


def default_host_gib() -> int:
    """Host memory for KV if nothing else is said, GiB."""
    if is_cpu_build():
        return 0
    return min(_MOST_GIB, int(available_memory_gib() * _SHARE_OF_FREE))
