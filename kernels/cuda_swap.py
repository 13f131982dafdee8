"""Gather and scatter by the CUDA C++ kernels: ``cuda_swap.cu``, launched through the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from autellix.errors import KvMoveError

from .cuda_build import machine_code
from .layout import WORD_BYTES, PagedLayout

CTAS = 8
_THREADS = 512
_RING_THREADS = 32
_RING_BYTES = 8 * 16384  # kSlots * kTile
_RING_SINCE = 90
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CudaKernels:
    """The kernels, loaded into the current context of this thread.

    Args:
        code: machine code from ``cuda_build.machine_code``.
        ring: whether it holds the ring form (sm_90 and newer).
        library: the driver's library.

    Raises:
        KvMoveError: there is no driver, or it refuses the code.
    """

    def __init__(self, code: bytes, *, ring: bool, library: str = "libcuda.so.1") -> None:
        try:
            self._driver = ctypes.CDLL(library)
        except OSError as cause:
            raise KvMoveError(
                f"There is no NVIDIA driver on this machine ({cause}); KV is moved by the CPU here."
            ) from cause
        self.ring = ring
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), code)
        names = ("kv_gather", "kv_scatter")
        self._functions = {name: self._function(module, name) for name in names}
        if ring:
            for name in (f"{name}_ring" for name in names):
                function = self._functions[name] = self._function(module, name)
                self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, _RING_BYTES)

    @classmethod
    def for_device(cls, device: torch.device) -> CudaKernels:
        """Compile, if need be, and load for a GPU of this process."""
        major, minor = torch.cuda.get_device_capability(device)
        architecture = major * 10 + minor
        with torch.cuda.device(device):
            torch.cuda.current_stream(device)  # makes the device's context current
            return cls(machine_code(architecture), ring=architecture >= _RING_SINCE)

    def launch(
        self,
        name: str,
        pointers: tuple[int, ...],
        row: int,
        regions: int,
        blocks: int,
        *,
        ctas: int,
        stream: int,
        ring: bool,
    ) -> None:
        """Queue one kernel; arguments as in ``cuda_swap.cu``."""
        values: list[Any] = [ctypes.c_void_p(pointer) for pointer in pointers]
        values += [ctypes.c_longlong(row), ctypes.c_int(regions), ctypes.c_int(blocks)]
        given = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values)
        )
        grid = (min(ctas, blocks * regions), 1, 1)
        block = (_RING_THREADS if ring else _THREADS, 1, 1)
        self._call(
            "cuLaunchKernel",
            self._functions[f"{name}_ring" if ring else name],
            *map(ctypes.c_uint, (*grid, *block, _RING_BYTES if ring else 0)),
            ctypes.c_void_p(stream),
            given,
            None,
        )

    def _function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(words))
            said = (words.value or b"unknown").decode()
            raise KvMoveError(f"{name} failed with error {code}: {said}.")


class CudaMover:
    """Gather and scatter for one layout; the same face as ``triton_swap.TritonMover``.

    Args:
        layout: pages, strides, offsets and addresses must be multiples of 16 bytes.
        kernels: where they are loaded.
        ctas: thread blocks of a launch.
        ring: use the ring form; by default where there is one.
        stream: handle of the stream to launch on; by default the current one.
    """

    def __init__(
        self,
        layout: PagedLayout,
        kernels: CudaKernels,
        *,
        ctas: int = CTAS,
        ring: bool | None = None,
        stream: Callable[[], int] | None = None,
    ) -> None:
        if not layout.in_words:
            raise KvMoveError(
                "The kernel moves 16-byte words, and a page, stride, offset or address here is no "
                "multiple of 16; such a pool is moved by plain copies."
            )
        self.layout = layout
        self._kernels = kernels
        self._ctas = ctas
        self._ring = kernels.ring if ring is None else ring
        self._stream = stream or (lambda: torch.cuda.current_stream(layout.device).cuda_stream)
        self._tables = tuple(
            torch.tensor(values, dtype=torch.int64, device=layout.device)
            for values in (layout.addresses, layout.strides, layout.pages, layout.offsets)
        )

    def gather(self, blocks: torch.Tensor, stage: torch.Tensor) -> None:
        """Blocks into rows; see ``reference.gather``.

        Args:
            blocks: ``int64[n]`` on the pool's device.
            stage: ``uint8[>= n, row_bytes]``, dense; on the device, or pinned host memory.
        """
        self._launch("kv_gather", blocks, stage)

    def scatter(self, blocks: torch.Tensor, stage: torch.Tensor) -> None:
        """Rows into blocks; see ``reference.scatter``. Blocks must be unique: nobody looks here."""
        self._launch("kv_scatter", blocks, stage)

    def _launch(self, name: str, blocks: torch.Tensor, stage: torch.Tensor) -> None:
        count, row = blocks.numel(), self.layout.row_bytes
        if count == 0:
            return
        if not stage.is_contiguous() or stage.shape[0] < count or stage.shape[1] != row:
            raise KvMoveError(
                f"A stage for {count} blocks is dense uint8[{count}, {row}], got "
                f"{list(stage.shape)} with strides {stage.stride()}."
            )
        if stage.data_ptr() % WORD_BYTES or blocks.dtype != torch.int64:
            raise KvMoveError(
                "The stage starts at a multiple of 16 bytes, and block ids are int64."
            )
        pointers = (*self._tables, blocks, stage)
        self._kernels.launch(
            name,
            tuple(tensor.data_ptr() for tensor in pointers),
            row,
            len(self.layout.regions),
            count,
            ctas=self._ctas,
            stream=self._stream(),
            ring=self._ring,
        )
