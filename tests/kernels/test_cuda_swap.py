"""The CUDA C++ kernels: they compile for GPUs, and run on a CPU against the reference.

No GPU is needed. ``kernel_on_cpu.cpp`` compiles the same source for the CPU and offers the driver's
calls that launch it, so the Python face is tested as well.
"""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from autellix.errors import KvMoveError
from autellix.kernels import cuda_build, reference
from autellix.kernels.cuda_build import SOURCE, compiler_name, find_nvcc, machine_code
from autellix.kernels.cuda_swap import CudaKernels, CudaMover
from autellix.kernels.layout import PagedLayout, byte_view
from tests.kernels.pools import DTYPES, KINDS, layers_of, noise

HERE = Path(__file__).parent
needs_compiler = pytest.mark.skipif(
    compiler_name() is None, reason="no CUDA compiler: neither nvcc nor NVRTC is installed"
)
needs_cxx = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Compile the kernels for this CPU; options may break a rule."""
    folder = tmp_path_factory.mktemp("kernel")

    def compile_(*options: str) -> str:
        target = folder / f"libcuda{len(list(folder.iterdir()))}.so"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
        command += [*options, f"-I{HERE}", f"-I{SOURCE.parent}", "-o", str(target)]
        subprocess.run([*command, str(HERE / "kernel_on_cpu.cpp")], check=True)
        return str(target)

    return compile_


@pytest.fixture(scope="module")
def driver(build) -> str:
    return build()


def mover(layout: PagedLayout, library: str, *, ring: bool, ctas: int = 3) -> CudaMover:
    kernels = CudaKernels(b"", ring=True, library=library)
    return CudaMover(layout, kernels, ring=ring, ctas=ctas, stream=lambda: 77)


@needs_cxx
@pytest.mark.parametrize("ring", [False, True], ids=["registers", "ring"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_and_scatter_are_the_reference(
    driver: str, kind: str, dtype: torch.dtype, ring: bool
) -> None:
    draw = random.Random(kind)
    count = draw.randint(3, 9)
    layers = layers_of(kind, draw.randint(1, 4), count, dtype, 1)
    check(PagedLayout.side_by_side([byte_view(layer) for layer in layers]), driver, ring, draw)


@needs_cxx
@pytest.mark.parametrize("ring", [False, True], ids=["registers", "ring"])
def test_pages_of_different_sizes_longer_than_a_tile(driver: str, ring: bool) -> None:
    sizes = (656 * 16, 132 * 16, 16, 3 * 16384, 5 * 16384 + 48)
    views = [noise(9, size, dtype=torch.uint8, seed=size) for size in sizes]
    layout = PagedLayout.side_by_side(views)
    for seed in range(3):
        check(layout, driver, ring, random.Random(seed), seed=seed)


@needs_cxx
def test_a_slot_is_filled_again_only_when_its_store_has_read_it(build, driver: str) -> None:
    """With one more store allowed to be unread, some run spoils data."""
    layout = PagedLayout.side_by_side([noise(40, 64, dtype=torch.uint8, seed=1)])
    careless = build("-DKV_KEEP=2")

    def sound(library: str) -> bool:
        ctypes.CDLL(library).set_seed(1)
        blocks = torch.randperm(40)
        stage, wanted = torch.zeros((40, 64), dtype=torch.uint8), torch.zeros(40, 64).byte()
        reference.gather(layout, blocks, wanted)
        mover(layout, library, ring=True, ctas=1).gather(blocks, stage)
        return torch.equal(stage, wanted)

    assert sound(driver)
    assert not sound(careless)


@needs_cxx
def test_launches_go_to_the_given_stream(driver: str) -> None:
    layout = PagedLayout.side_by_side([noise(4, 32, dtype=torch.uint8, seed=1)])
    mover(layout, driver, ring=False).gather(torch.tensor([1]), torch.zeros(1, 32).byte())
    assert ctypes.c_void_p.in_dll(ctypes.CDLL(driver), "last_stream").value == 77


@needs_cxx
def test_what_the_kernels_cannot_move_is_refused(driver: str) -> None:
    odd = PagedLayout.side_by_side([torch.zeros((4, 24), dtype=torch.uint8)])
    with pytest.raises(KvMoveError, match="no multiple of 16"):
        mover(odd, driver, ring=False)
    even = PagedLayout.side_by_side([torch.zeros((4, 32), dtype=torch.uint8)])
    with pytest.raises(KvMoveError, match="ids are int64"):
        mover(even, driver, ring=False).gather(
            torch.tensor([1], dtype=torch.int32), torch.zeros(1, 32).byte()
        )


def test_without_a_driver_the_message_says_so() -> None:
    with pytest.raises(KvMoveError, match="no NVIDIA driver"):
        CudaKernels(b"", ring=False, library="libno-such-driver.so.1")


@needs_compiler
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_the_kernels_compile_for(architecture: int, tmp_path: Path) -> None:
    code = machine_code(architecture, cache=tmp_path)
    assert code.startswith(b"\x7fELF")
    names = [b"kv_gather", b"kv_scatter"]
    if architecture >= 90:
        names += [b"kv_gather_ring", b"kv_scatter_ring"]
    assert all(name in code for name in names)
    assert [file.suffix for file in tmp_path.iterdir()] == [".cubin"]
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"kept")
    assert machine_code(architecture, cache=tmp_path) == b"kept", "compiled once"


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
def test_a_compile_error_is_told_in_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.cu"
    bad.write_text("void f() { no_such_name(); }")
    monkeypatch.setattr(cuda_build, "SOURCE", bad)
    with pytest.raises(KvMoveError, match="no_such_name"):
        machine_code(90, cache=tmp_path)


def test_without_a_compiler_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_build, "compiler_name", lambda: None)
    with pytest.raises(KvMoveError, match=r"install nvcc .* Triton's kernels do the same work"):
        machine_code(90, cache=tmp_path)


def check(
    layout: PagedLayout, library: str, ring: bool, draw: random.Random, seed: int = 0
) -> None:
    """Gather some blocks and scatter them to others; all else stays as it was."""
    simulated = ctypes.CDLL(library)
    simulated.set_seed(seed)
    moves = mover(layout, library, ring=ring, ctas=draw.randint(1, 5))
    n = draw.randint(1, layout.blocks)
    source = torch.tensor(draw.sample(range(layout.blocks), n))
    wanted = torch.zeros((n, layout.row_bytes), dtype=torch.uint8)
    reference.gather(layout, source, wanted)
    stage = torch.full((n + 1, layout.row_bytes), 0xAB, dtype=torch.uint8)
    moves.gather(source, stage)
    assert torch.equal(stage[:n], wanted) and (stage[n:] == 0xAB).all()
    pools = [torch.empty(0, dtype=torch.uint8).set_(v.untyped_storage()) for v in layout.regions]
    before = [pool.clone() for pool in pools]
    target = torch.tensor(draw.sample(range(layout.blocks), n))
    reference.scatter(layout, target, wanted)
    after = [pool.clone() for pool in pools]
    for pool, was in zip(pools, before, strict=True):
        pool.copy_(was)
    moves.scatter(target, stage)
    assert all(map(torch.equal, pools, after))
    assert not simulated.rules_broken(), "a bulk copy was misaligned, lost or never waited for"
