"""The host pool and CUDA's runtime by ctypes, with a runtime of the test's own."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from autellix.errors import KvMoveError
from autellix.kernels.cuda_runtime import CudaRuntime
from autellix.kernels.host_pool import HostPool, node_of_gpu
from autellix.kernels.runs import Copies


class Registrar:
    """Refuses from the n-th piece on."""

    def __init__(self, accepts: int = 10**9) -> None:
        self.accepts = accepts
        self.pieces: list[tuple[int, int]] = []
        self.held: set[int] = set()

    def register(self, address: int, size_bytes: int) -> bool:
        self.pieces.append((address, size_bytes))
        if len(self.pieces) > self.accepts:
            return False
        self.held.add(address)
        return True

    def unregister(self, address: int) -> None:
        self.held.remove(address)


def test_the_pool_is_of_the_exact_size() -> None:
    """vllm 53042: a pinned allocator took 1.92 times the memory."""
    registrar = Registrar()
    pool = HostPool(3, 5 * 4096, registrar=registrar)
    assert pool.pinned and pool.rows.shape == (3, 5 * 4096)
    assert registrar.pieces == [(pool.rows.data_ptr(), 3 * 5 * 4096)]
    pool.close()
    assert not registrar.held and not pool.pinned


def test_it_is_registered_in_pieces_that_end_between_rows() -> None:
    registrar = Registrar()
    pool = HostPool(10, 4096, registrar=registrar, piece_bytes=3 * 4096 + 17)
    base = pool.rows.data_ptr()
    assert registrar.pieces == [(base + i * 12288, min(12288, 40960 - i * 12288)) for i in range(4)]


def test_a_refused_piece_leaves_none_pinned() -> None:
    """vllm 51080: registering 512 GiB failed half-way."""
    registrar = Registrar(accepts=2)
    pool = HostPool(10, 4096, registrar=registrar, piece_bytes=3 * 4096)
    assert not pool.pinned and not registrar.held
    pool.rows.fill_(3)
    assert (pool.rows == 3).all(), "it can be used all the same"


def test_memory_that_cannot_be_had_is_told() -> None:
    with pytest.raises(KvMoveError, match=r"GiB of host memory for KV cannot be had"):
        HostPool(2**40, 2**20)
    with pytest.raises(KvMoveError, match="holds nothing"):
        HostPool(0, 4096)


def test_the_memory_node_is_read_from_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm 30492: host memory on the far node halves the speed."""
    assert node_of_gpu("ffff:ff:ff.0") is None
    from autellix.kernels import host_pool

    monkeypatch.setattr(host_pool, "_DEVICES", tmp_path)
    (tmp_path / "0000:65:00.0").mkdir()
    (tmp_path / "0000:65:00.0" / "numa_node").write_text("1\n")
    assert node_of_gpu("0000:65:00.0") == 1
    (tmp_path / "0000:65:00.0" / "numa_node").write_text("-1\n")
    assert node_of_gpu("0000:65:00.0") is None
    pool = HostPool(2, 4096, node=0)  # the policy is set and taken back
    assert pool.rows.sum() == 0


# ── CUDA's runtime ───────────────────────────────────────────────────────────────────────────

FAKE = r"""
#include <stddef.h>
#include <string.h>
struct Attributes { int order; int source[2]; int destination[2]; unsigned flags; };
int version = VERSION, order = 0, flags = 0, pending = 0, answer = 0, calls = 0;
void* stream = 0;
int cudaRuntimeGetVersion(int* v) { *v = version; return 0; }
int cudaGetLastError(void) { int e = pending; pending = 0; return e; }
const char* cudaGetErrorString(int e) { return e == 2 ? "out of memory" : "?"; }
int cudaMemcpyAsync(void* d, const void* s, size_t n, int kind, void* st) {
  ++calls; stream = st;
  if (kind != 4) return 1;
  memcpy(d, s, n);
  return 0;
}
#ifndef NO_BATCH
int cudaMemcpyBatchAsync(void** d, void** s, size_t* n, size_t count, struct Attributes* a,
                         size_t* first, size_t attributes,
#if VERSION < 13000
                         size_t* failed,
#endif
                         void* st) {
  ++calls;
  if (answer) { pending = answer; return answer; }
  if (attributes != 1 || first[0] != 0) return 1;
  order = a->order; flags = a->flags; stream = st;
  for (size_t i = 0; i < count; ++i) memcpy(d[i], s[i], n[i]);
  return 0;
}
#endif
int cudaHostRegister(void* at, size_t n, unsigned f) { pending = answer; return answer; }
int cudaHostUnregister(void* at) { return 0; }
"""


@pytest.fixture
def fake(tmp_path: Path):
    """Make a runtime of some version; returns its face and the library."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")

    def make(version: int = 13000, *options: str) -> tuple[CudaRuntime, ctypes.CDLL]:
        source, target = tmp_path / "fake.c", tmp_path / f"libcudart{version}{len(options)}.so"
        source.write_text(FAKE)
        command = ["gcc", "-shared", "-fPIC", f"-DVERSION={version}", *options]
        subprocess.run([*command, "-o", str(target), str(source)], check=True)
        return CudaRuntime(str(target)), ctypes.CDLL(str(target))

    return make


def copies_of(target: torch.Tensor, source: torch.Tensor, pieces: int) -> Copies:
    size = source.numel() // pieces
    starts = np.arange(pieces, dtype=np.int64) * size
    return Copies(
        destinations=target.data_ptr() + starts,
        sources=source.data_ptr() + starts,
        sizes=np.full(pieces, size, dtype=np.int64),
    )


def value(library: ctypes.CDLL, name: str) -> int:
    return ctypes.c_int.in_dll(library, name).value


@pytest.mark.parametrize("version", [12080, 13000])
@pytest.mark.parametrize("pieces", [1, 4])
def test_a_batch_is_one_call_in_the_form_of_its_version(fake, version: int, pieces: int) -> None:
    runtime, library = fake(version)
    source, target = torch.arange(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    runtime.copy_batch(copies_of(target, source, pieces), 77, stable_source=False)
    assert torch.equal(source, target)
    assert value(library, "calls") == 1
    assert ctypes.c_void_p.in_dll(library, "stream").value == 77


@pytest.mark.parametrize(("stable", "order"), [(False, 1), (True, 3)])
def test_sources_are_read_in_stream_order_unless_they_are_stable(
    fake, stable: bool, order: int
) -> None:
    """vllm 39306."""
    runtime, library = fake()
    source, target = torch.arange(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    runtime.copy_batch(copies_of(target, source, 2), 77, stable_source=stable)
    assert (value(library, "order"), value(library, "flags")) == (order, 1)


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_the_default_stream_is_refused(fake, stream: int) -> None:
    runtime, library = fake()
    data = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(KvMoveError, match="not moved on the default stream"):
        runtime.copy_batch(copies_of(data, data, 2), stream, stable_source=False)
    with pytest.raises(KvMoveError, match="not moved on the default stream"):
        runtime.copy_one_by_one(copies_of(data, data, 2), stream)
    assert value(library, "calls") == 0


def test_a_missing_name_is_an_error_not_another_copy(fake) -> None:
    """LMCache 4870: a missing symbol fell back to a copy that waited for nobody."""
    runtime, library = fake(13000, "-DNO_BATCH")
    data = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(KvMoveError, match="has no cudaMemcpyBatchAsync"):
        runtime.copy_batch(copies_of(data, data, 2), 77, stable_source=False)
    assert value(library, "calls") == 0


def test_a_refusal_is_told_and_leaves_no_error_behind(fake) -> None:
    runtime, library = fake()
    ctypes.c_int.in_dll(library, "answer").value = 2
    data = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(KvMoveError, match="error 2: out of memory"):
        runtime.copy_batch(copies_of(data, data, 2), 77, stable_source=False)
    assert value(library, "pending") == 0
    assert not runtime.register(4096, 4096)
    assert value(library, "pending") == 0, "vllm 51080: the next call was told of it"


def test_an_old_runtime_is_refused(fake) -> None:
    with pytest.raises(KvMoveError, match=r"runtime 12\.4 cannot copy in batches"):
        fake(12040)


def test_without_a_runtime_the_message_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this process has a CUDA runtime")
    with pytest.raises(KvMoveError, match="No CUDA runtime is loaded"):
        CudaRuntime()
