"""Compiles ``cuda_swap.cu`` when it is first needed, and keeps the result.

Either compiler does: NVRTC, which comes with PyTorch's CUDA builds, or ``nvcc`` where it is
installed. Neither links anything: the result is machine code that the driver loads.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from autellix.errors import KvMoveError

SOURCE = Path(__file__).with_name("cuda_swap.cu")
_OPTIONS = ("-std=c++17", "-lineinfo")


def machine_code(architecture: int, *, cache: Path | None = None) -> bytes:
    """The kernels for a GPU architecture.

    Args:
        architecture: as in "sm_90": 90.
        cache: folder that keeps results; by default the user's cache folder.

    Raises:
        KvMoveError: there is no compiler, or it fails; the message says what it said.
    """
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(home) / "autellix" / "kernels"
    name = compiler_name()
    if name is None:
        raise KvMoveError(
            "There is no CUDA compiler: install nvcc (pip install nvidia-cuda-nvcc "
            "nvidia-cuda-crt nvidia-cuda-runtime nvidia-nvvm) or a PyTorch built for CUDA, which "
            "brings NVRTC. Triton's kernels do the same work."
        )
    text = SOURCE.read_bytes()
    digest = hashlib.sha256(text + f"{architecture} {name} {_OPTIONS}".encode()).hexdigest()[:16]
    kept = cache / f"swap-sm_{architecture}-{digest}.cubin"
    if kept.is_file():
        return kept.read_bytes()
    compile_: Callable[[int], bytes] = _by_nvcc if name == find_nvcc() else _by_nvrtc
    code = compile_(architecture)
    cache.mkdir(parents=True, exist_ok=True)
    # Several ranks may compile at the same time: each writes a file of its own, the last one stays.
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as part:
        part.write(code)
    Path(part.name).replace(kept)
    return code


def compiler_name() -> str | None:
    """The compiler that would be used; None where there is none."""
    return find_nvcc() or _find_nvrtc()


def find_nvcc() -> str | None:
    """Path of ``nvcc``: from CUDA_HOME, the search path, or the wheels of the CUDA toolkit."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [Path(home) / "bin" / "nvcc"] if home else []
    if (found := shutil.which("nvcc")) is not None:
        places.append(Path(found))
    places += [folder / "bin" / "nvcc" for folder in _wheel_folders()]
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)


def _find_nvrtc() -> str | None:
    for folder in _wheel_folders():
        for library in sorted((folder / "lib").glob("libnvrtc.so.*")):
            return str(library)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libnvrtc.so" in line:
            return line.split(maxsplit=5)[-1]
    return None


def _wheel_folders() -> list[Path]:
    spec = find_spec("nvidia")
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    return [folder for root in roots for folder in sorted(root.glob("cu*")) if folder.is_dir()]


def _by_nvcc(architecture: int) -> bytes:
    nvcc = find_nvcc()
    assert nvcc is not None
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "swap.cubin"
        command = [nvcc, *_OPTIONS, "-cubin", f"-arch=sm_{architecture}", "-o", str(target)]
        done = subprocess.run([*command, str(SOURCE)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise KvMoveError(
                f"nvcc could not compile the kernels for sm_{architecture}: "
                f"{' '.join((done.stderr or done.stdout).split())[:600]}"
            )
        return target.read_bytes()


def _by_nvrtc(architecture: int) -> bytes:
    library = _find_nvrtc()
    assert library is not None
    # NVRTC looks this one up by name alone, which finds it only if it is loaded already.
    for builtins in sorted(Path(library).parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins))
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), SOURCE.read_bytes(), b"cuda_swap.cu", 0, None, None
    )
    try:
        options = [
            *(o.encode() for o in _OPTIONS),
            f"--gpu-architecture=sm_{architecture}".encode(),
        ]
        given = (ctypes.c_char_p * len(options))(*options)
        if nvrtc.nvrtcCompileProgram(program, len(options), given):
            raise KvMoveError(
                f"NVRTC could not compile the kernels for sm_{architecture}: "
                f"{' '.join(_nvrtc_text(nvrtc, program, 'ProgramLog').decode().split())[:600]}"
            )
        return _nvrtc_text(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc_text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.raw
