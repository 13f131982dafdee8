"""How the GPU's worker is put together; the GPU itself is a device in host memory here."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")
pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

import torch

from autellix.errors import KvMoveError
from autellix.kernels import offload_gpu
from autellix.kernels.cpu_device import CpuDevice
from autellix.kernels.cuda_device import CudaDevice
from autellix.kernels.offload_gpu import gpu_worker
from autellix.kernels.streams import Path
from autellix.kernels.vllm_names import CPULoadStoreSpec
from tests.kernels.test_host_memory import Registrar
from tests.kernels.test_offload_jobs import caches, device


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the GPU's device was made with."""
    seen: dict[str, Any] = {"registrar": Registrar()}

    def make(target: torch.device, runtime: Any, **options: Any) -> CpuDevice:
        seen.update(options, runtime=runtime)
        return CpuDevice()

    monkeypatch.setattr(offload_gpu, "CudaDevice", make)
    monkeypatch.setattr(offload_gpu, "CudaRuntime", lambda: seen["registrar"])
    monkeypatch.setattr(offload_gpu, "mover_for", lambda target: "mover")
    monkeypatch.setattr(offload_gpu, "_pci_address", lambda target: "0000:00:00.0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda target: "a GPU")
    return seen


def test_it_calibrates_and_moves(made: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    cache = caches([[(0, 32), (1, 32)]])
    with caplog.at_level(logging.INFO, "autellix"):
        worker = gpu_worker(cache, 4, 2)
    assert "KV tier on a GPU" in caplog.text and "staged" in caplog.text
    assert made["runtime"] is made["registrar"] and made["mover"] == "mover"
    was = [tensor.tensor.clone() for tensor in cache.tensors]
    worker.submit_store(1, device([2, 3, 4], [3], [1]), CPULoadStoreSpec([3, 0]))
    worker.submit_load(2, CPULoadStoreSpec([3, 0]), device([5, 6, 7], [3], [1]))
    assert [r.transfer_size for r in worker.get_finished()] == [192, 192]
    for tensor, before in zip(cache.tensors, was, strict=True):
        assert torch.equal(tensor.tensor[5:8], before[2:5])
        assert torch.equal(tensor.tensor[:5], before[:5])
    worker.shutdown()
    assert not made["registrar"].held, "the pool is unpinned at the end"


def test_memory_that_cannot_be_pinned_leaves_vllms_way(
    made: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made["registrar"] = Registrar(accepts=0)
    gpu_worker(caches([[(0, 32), (1, 32)]]), 4, 1).shutdown()
    assert made["runtime"] is None and "could not be pinned" in caplog.text


def test_an_old_cuda_leaves_vllms_way(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise KvMoveError("too old")

    monkeypatch.setattr(offload_gpu, "CudaRuntime", refuse)
    gpu_worker(caches([[(0, 32)]]), 4, 1).shutdown()
    assert made["runtime"] is None and "moves go vLLM's way. too old" in caplog.text


def test_without_its_own_copies_the_device_has_vllms_way_alone() -> None:
    only = CudaDevice(torch.device("cuda"), None, vllm_copy=lambda *_: None)
    assert only.paths == (Path.VLLM,)
    whole = CudaDevice(torch.device("cuda"), Registrar(), vllm_copy=lambda *_: None)  # type: ignore[arg-type]
    assert whole.paths == (Path.BATCH, Path.MAPPED, Path.VLLM)


def test_vllms_way_gets_vllms_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[list[list[int]], bool]] = []

    def select(refs: Any, store: bool, pinned: bool) -> Any:
        def swap(*tables: torch.Tensor, is_src_access_order_any: bool) -> None:
            called.append(([table.tolist() for table in tables], is_src_access_order_any))

        return swap

    monkeypatch.setattr(offload_gpu, "_select_swap_blocks_fn", select)
    copy = offload_gpu._vllm_copy(caches([[(0, 32)]]), pinned=True)
    from tests.kernels.test_runs import copies_of

    copy(copies_of([(8, 64, 16), (24, 96, 16)]), "load", True)
    assert called == [([[64, 96], [8, 24], [16, 16]], True)], "sources, destinations, sizes"
