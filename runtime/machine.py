"""What the machine has: cores and memory, as far as this process may use them."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_gib() -> float:
    """Memory that can be taken without swapping, GiB; the container's limit counts."""
    available = _meminfo("MemAvailable")
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is not None and used is not None:
        available = min(available, (limit - used) / 2**30)
    return max(available, 0.0)


def total_memory_gib() -> float:
    """Memory of the machine, GiB."""
    return _meminfo("MemTotal")


def _meminfo(key: str) -> float:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 2**20
    except OSError:
        pass
    pages = "SC_AVPHYS_PAGES" if key == "MemAvailable" else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") / 2**30


def _cgroup(name: str) -> int | None:
    try:
        text = (Path("/sys/fs/cgroup") / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
