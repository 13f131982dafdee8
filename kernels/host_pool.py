"""The host's memory for KV rows: of the exact size, near the GPU, and pinned where that works.

1. The memory is mapped anonymously. A pinned allocator would round it up to a power of two.
2. It is touched first under the policy "prefer the GPU's memory node", so a copy does not cross the
   link between processors.
3. It is registered with the driver in pieces that end between rows: some drivers refuse very large
   ones. If one piece is refused, all are given back and the pool stays pageable; moves then go
   vLLM's own way, slower but right.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch

from autellix.errors import KvMoveError

_PIECE_BYTES = 64 * 2**30
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_DEVICES = Path("/sys/bus/pci/devices")
_MPOL_DEFAULT, _MPOL_PREFERRED = 0, 1


class Registrar(Protocol):
    """Pins host memory; ``CudaRuntime`` is one."""

    def register(self, address: int, size_bytes: int) -> bool:
        """Whether it was pinned; leaves no error behind if not."""
        ...

    def unregister(self, address: int) -> None:
        """Undo it."""
        ...


class HostPool:
    """Host memory for ``count`` rows.

    Attributes:
        rows: ``uint8[count, row_bytes]``, dense.
        pinned: whether the device may read and write it directly.

    Args:
        count: rows.
        row_bytes: bytes of a row.
        registrar: pins it; None leaves it pageable.
        node: memory node to take it from; None for any.
        piece_bytes: at most so much is registered at once.

    Raises:
        KvMoveError: the memory cannot be had.
    """

    def __init__(
        self,
        count: int,
        row_bytes: int,
        *,
        registrar: Registrar | None = None,
        node: int | None = None,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        size = count * row_bytes
        if size <= 0:
            raise KvMoveError(
                f"A host pool of {count} rows of {row_bytes} bytes holds nothing; give it more "
                "memory with --kv-host-gib, or 0 to do without."
            )
        try:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as cause:
            raise KvMoveError(
                f"{size / 2**30:.1f} GiB of host memory for KV cannot be had: {cause}. Ask for "
                "less with --kv-host-gib."
            ) from cause
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._registrar = registrar
        self._registered: list[int] = []
        self.rows = torch.frombuffer(self._map, dtype=torch.uint8).view(count, row_bytes)
        with _preferred_node(node):
            self.pinned = registrar is not None and self._register(registrar, piece_bytes)

    def close(self) -> None:
        """Unpin and give the memory back; nothing may be moving, and nobody may use ``rows``."""
        if self._registrar is not None:
            for address in self._registered:
                self._registrar.unregister(address)
        self._registered.clear()
        self.pinned = False
        self.rows = torch.empty((0, 0), dtype=torch.uint8)
        with contextlib.suppress(BufferError):
            self._map.close()

    def _register(self, registrar: Registrar, piece_bytes: int) -> bool:
        count, row_bytes = self.rows.shape
        base, each = self.rows.data_ptr(), max(1, piece_bytes // row_bytes)
        for first in range(0, count, each):
            address = base + first * row_bytes
            if not registrar.register(address, min(each, count - first) * row_bytes):
                for done in reversed(self._registered):
                    registrar.unregister(done)
                self._registered.clear()
                return False
            self._registered.append(address)
        return True


def node_of_gpu(pci_address: str) -> int | None:
    """Memory node next to a PCI device ("0000:65:00.0"); None where the machine has but one."""
    file = _DEVICES / pci_address.lower() / "numa_node"
    try:
        node = int(file.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


@contextlib.contextmanager
def _preferred_node(node: int | None) -> Iterator[None]:
    """Pages that this thread touches first come from the node, while there are any."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if node is None or number is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    bits = ctypes.c_ulong(1 << node)
    libc.syscall(number, _MPOL_PREFERRED, ctypes.byref(bits), ctypes.sizeof(bits) * 8)
    try:
        yield
    finally:
        libc.syscall(number, _MPOL_DEFAULT, None, 0)
