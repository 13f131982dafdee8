"""The few calls of CUDA's runtime that PyTorch does not offer, by ctypes: no compiler needed.

The library is the one that PyTorch has loaded into this process; another copy of it would have
another current device. A name that is missing there is an error: a plain copy in its place would
not wait for anybody.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from autellix.errors import KvMoveError

from .runs import Copies

_LEGACY_STREAMS = (0, 1, 2)  # the default stream under its three names
_ORDER_STREAM, _ORDER_ANY = 1, 3
_BESIDE_KERNELS = 1
_MEMCPY_DEFAULT = 4
_REGISTER_PORTABLE = 1
_BATCH_SINCE, _BATCH_WITHOUT_FAIL_INDEX = 12080, 13000


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _CopyAttributes(ctypes.Structure):
    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source", _Location),
        ("destination", _Location),
        ("flags", ctypes.c_uint),
    )


class CudaRuntime:
    """Face of ``libcudart``.

    Args:
        library: path of the shared library; by default the one loaded in this process.

    Raises:
        KvMoveError: no CUDA runtime is loaded, or it is older than 12.8.
    """

    def __init__(self, library: str | None = None) -> None:
        self._lib = ctypes.CDLL(library or _loaded_library())
        version = ctypes.c_int()
        self._call("cudaRuntimeGetVersion", ctypes.byref(version))
        self.version = version.value
        """As CUDA counts: 13000 is 13.0."""
        if self.version < _BATCH_SINCE:
            raise KvMoveError(
                f"CUDA runtime {self.version // 1000}.{self.version % 1000 // 10} cannot copy in "
                "batches; install a PyTorch built for CUDA 12.8 or newer."
            )

    def copy_batch(self, copies: Copies, stream: int, *, stable_source: bool) -> None:
        """Queue copies on a stream in one call, in any order among themselves.

        The arrays of ``copies`` are read during the call only.

        Args:
            copies: device or pinned host addresses.
            stream: handle of a CUDA stream, not the default one.
            stable_source: the sources may be read before earlier work of the stream has ended.

        Raises:
            KvMoveError: CUDA refuses.
        """
        _check_stream(stream)
        count = len(copies)
        if count == 0:
            return
        if count == 1:
            self._call(
                "cudaMemcpyAsync",
                ctypes.c_void_p(int(copies.destinations[0])),
                ctypes.c_void_p(int(copies.sources[0])),
                ctypes.c_size_t(int(copies.sizes[0])),
                ctypes.c_int(_MEMCPY_DEFAULT),
                ctypes.c_void_p(stream),
            )
            return
        order = _ORDER_ANY if stable_source else _ORDER_STREAM
        attributes = _CopyAttributes(source_order=order, flags=_BESIDE_KERNELS)
        first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        old_form = self.version < _BATCH_WITHOUT_FAIL_INDEX
        self._call(
            "cudaMemcpyBatchAsync",
            ctypes.c_void_p(copies.destinations.ctypes.data),
            ctypes.c_void_p(copies.sources.ctypes.data),
            ctypes.c_void_p(copies.sizes.ctypes.data),
            ctypes.c_size_t(count),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            *((ctypes.byref(failed),) if old_form else ()),
            ctypes.c_void_p(stream),
        )

    def copy_one_by_one(self, copies: Copies, stream: int) -> None:
        """Queue copies with a call each: what the paper compares with, for benchmarks."""
        _check_stream(stream)
        for destination, source, size in zip(
            copies.destinations.tolist(),
            copies.sources.tolist(),
            copies.sizes.tolist(),
            strict=True,
        ):
            self._call(
                "cudaMemcpyAsync",
                ctypes.c_void_p(destination),
                ctypes.c_void_p(source),
                ctypes.c_size_t(size),
                ctypes.c_int(_MEMCPY_DEFAULT),
                ctypes.c_void_p(stream),
            )

    def register(self, address: int, size_bytes: int) -> bool:
        """Pin host memory for the device; False where the driver refuses, with no error left."""
        function = self._function("cudaHostRegister")
        code = function(
            ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), ctypes.c_uint(_REGISTER_PORTABLE)
        )
        if code:
            # Else the next call of anybody in this process would be told of it.
            self._function("cudaGetLastError")()
        return code == 0

    def unregister(self, address: int) -> None:
        """Undo :meth:`register`."""
        if self._function("cudaHostUnregister")(ctypes.c_void_p(address)):
            self._function("cudaGetLastError")()

    def _function(self, name: str) -> ctypes._NamedFuncPointer:
        try:
            return getattr(self._lib, name)
        except AttributeError:
            raise KvMoveError(
                f"The CUDA runtime of this process has no {name}; install a PyTorch built for CUDA "
                "12.8 or newer."
            ) from None

    def _call(self, name: str, *arguments: object) -> None:
        code = self._function(name)(*arguments)
        if code:
            self._function("cudaGetLastError")()
            describe = self._function("cudaGetErrorString")
            describe.restype = ctypes.c_char_p
            words = (describe(ctypes.c_int(code)) or b"").decode()
            raise KvMoveError(f"{name} failed with error {code}: {words or 'unknown'}.")


def _check_stream(stream: int) -> None:
    if stream in _LEGACY_STREAMS:
        raise KvMoveError(
            "KV is not moved on the default stream: it would wait for all others, and they for it. "
            "Give a stream of your own."
        )


def _loaded_library() -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libcudart.so" in path:
            return path
    raise KvMoveError(
        "No CUDA runtime is loaded in this process: import a PyTorch built for CUDA first."
    )
