"""Settings of a run: from the command line, the environment and defaults, in that order.

Every option has an environment variable, ``AUTELLIX_`` and the option's name in capitals.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from autellix.errors import SettingsError

from ..scheduler.balancers import BALANCER_NAMES, DEFAULT_BALANCER
from ..scheduler.config import SchedulerConfig
from ..scheduler.policies import POLICIES

POLICY_NAMES = tuple(policy.name for policy in POLICIES)

ENGINE_KINDS = ("vllm", "ray")
SHORTEST_REFRESH_S = 0.1
_NOT_JSON = object()
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run is made of.

    Attributes:
        model: None for the embedded model, else any name or path that vLLM serves.
        engine: kind of back end; one of ``ENGINE_KINDS``.
        engine_args: arguments of vLLM's engine, by name.
        model_map: the engine's model by the names that programs give it.
        kv_host_gib: host memory that keeps KV, GiB; 0 does without, None leaves it to the machine.
        policy: scheduling policy; one of ``POLICY_NAMES``.
        admission: whether only programs whose KV fits the cache together run calls; None leaves it
            to the policy.
        replicas: how many engines share the calls.
        ray_address: HOST:PORT of a Ray cluster's head, or "auto" for this machine's; None leaves it
            to RAY_ADDRESS, and without that to a cluster of the run's own. For the engine "ray".
        ray_wait: how long to wait for room in the cluster, seconds; None waits shortly, and not at
            all where the whole cluster has too little.
        balancer: which of them serves a call; one of ``BALANCER_NAMES``.
        checkpointer: where graphs that bring no checkpointer keep their threads: "memory",
            "sqlite:PATH" or "postgres:URL"; None gives them none.
        journal: file that keeps what threads have used up; None is the user's own.
        trace: file for the trace document, None for none.
        record_content: whether the trace, and spans, hold what calls ask and are answered.
        live: whether to show the live view in place of the progress line; None does where there is
            a terminal to show it on.
        refresh: time between two pictures of the live view, seconds.
        quiet: no progress line and no table at the end.
        debug: tracebacks and the engine's own log on the terminal.
    """

    model: str | None = None
    engine: str = "vllm"
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    model_map: Mapping[str, str] = field(default_factory=dict)
    kv_host_gib: float | None = None
    policy: str = "default"
    admission: bool | None = None
    replicas: int = 1
    ray_address: str | None = None
    ray_wait: float | None = None
    balancer: str = DEFAULT_BALANCER
    checkpointer: str | None = None
    journal: Path | None = None
    trace: Path | None = None
    record_content: bool = False
    live: bool | None = None
    refresh: float = 1.0
    quiet: bool = False
    debug: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ENGINE_KINDS:
            raise SettingsError(
                f"There is no engine {self.engine!r}; choose one of: {', '.join(ENGINE_KINDS)}."
            )
        if self.policy not in POLICY_NAMES:
            raise SettingsError(
                f"There is no policy {self.policy!r}; choose one of: {', '.join(POLICY_NAMES)}."
            )

        if not SHORTEST_REFRESH_S <= self.refresh < float("inf"):
            raise SettingsError(
                f"--refresh is at least {SHORTEST_REFRESH_S} seconds, got {self.refresh:g}."
            )

        if self.kv_host_gib is not None and not 0 <= self.kv_host_gib < float("inf"):
            raise SettingsError(
                f"--kv-host-gib is a number of GiB from 0 on, got {self.kv_host_gib:g}."
            )
        self._check_cluster()
        if self.replicas < 1:
            raise SettingsError(f"--replicas must be at least 1, got {self.replicas}.")
        if self.balancer not in BALANCER_NAMES:
            raise SettingsError(
                f"There is no balancer {self.balancer!r}; choose one of: "
                f"{', '.join(BALANCER_NAMES)}."
            )

    def _check_cluster(self) -> None:
        for name in ("ray_address", "ray_wait"):
            if getattr(self, name) is not None and self.engine != "ray":
                option = "--" + name.replace("_", "-")
                raise SettingsError(
                    f"{option} is for replicas on a Ray cluster, the engine is {self.engine!r}: "
                    f"add --engine ray, or leave {option} out ({variable_of(name)} too)."
                )
        if self.ray_wait is not None and not 0 <= self.ray_wait < float("inf"):
            raise SettingsError(
                f"--ray-wait is a number of seconds from 0 on, got {self.ray_wait:g}."
            )

    def scheduler_config(self) -> SchedulerConfig:
        """The scheduler's configuration under these settings."""
        return SchedulerConfig(policy=self.policy, admission=self.admission)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Settings from ``AUTELLIX_*`` variables and defaults.

        Raises:
            SettingsError: a variable has a value that cannot be; the message names it.
        """
        environ = os.environ if environ is None else environ
        found = {f.name: raw for f in fields(cls) if (raw := environ.get(variable_of(f.name)))}
        values: dict[str, Any] = dict(found)
        if "engine_args" in found:
            values["engine_args"] = parse_engine_args(found["engine_args"].split())
        if "model_map" in found:
            values["model_map"] = parse_model_map(found["model_map"].split())
        if "kv_host_gib" in found:
            values["kv_host_gib"] = _gib(variable_of("kv_host_gib"), found["kv_host_gib"])
        if "replicas" in found:
            values["replicas"] = _whole(variable_of("replicas"), found["replicas"])
        if "ray_wait" in found:
            values["ray_wait"] = _number(variable_of("ray_wait"), found["ray_wait"])
        for name in ("journal", "trace"):
            if name in found:
                values[name] = Path(found[name])
        if "refresh" in found:
            values["refresh"] = _number(variable_of("refresh"), found["refresh"])
        for name in ("admission", "live", "quiet", "debug", "record_content"):
            if name in found:
                values[name] = _flag(variable_of(name), found[name])
        return cls(**values)

    def merged(self, **given: Any) -> Self:
        """These settings with every given value that is not None in place."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


def variable_of(name: str) -> str:
    """The environment variable of a setting; a repeatable option's name is singular."""
    return "AUTELLIX_" + ("engine_arg" if name == "engine_args" else name).upper()


def parse_engine_args(pairs: list[str]) -> dict[str, Any]:
    """Read ``KEY=VALUE`` pairs; a value is JSON where it parses, else text.

    Args:
        pairs: JSON in which there are blanks may be split at them, as a variable's content is.

    Raises:
        SettingsError: a pair without "=" or with an empty key.
    """
    values: dict[str, Any] = {}
    for pair in _whole_pairs(pairs):
        key, equals, raw = pair.partition("=")
        if not equals or not key:
            raise SettingsError(
                f"--engine-arg takes KEY=VALUE, got {pair!r}; for example max_num_seqs=16."
            )
        value = _json_of(raw)
        if value is _NOT_JSON:
            value = {"True": True, "False": False, "None": None}.get(raw, raw)
        values[key.replace("-", "_")] = value
    return values


def _whole_pairs(pieces: list[str]) -> Iterator[str]:
    """The pairs, those whose JSON was split at its blanks put together again."""
    start = 0
    while start < len(pieces):
        end = start + 1
        if pieces[start].partition("=")[2].startswith(("{", "[", '"')):
            for n in range(start + 1, len(pieces) + 1):
                if _json_of(" ".join(pieces[start:n]).partition("=")[2]) is not _NOT_JSON:
                    end = n
                    break
        yield " ".join(pieces[start:end])
        start = end


def _json_of(raw: str) -> Any:
    try:
        return json.loads(raw)
    except (json.JSONDecodeError, RecursionError):
        return _NOT_JSON


def parse_model_map(pairs: Iterable[str]) -> dict[str, str]:
    """Read ``NAME=TARGET`` pairs.

    Raises:
        SettingsError: a pair without "=", or with nothing on one of its sides.
    """
    names: dict[str, str] = {}
    for pair in pairs:
        name, _, target = pair.partition("=")
        if not name or not target:
            raise SettingsError(
                f"--model-map takes NAME=TARGET, got {pair!r}: the name that programs use, and the "
                "engine's model that answers to it."
            )
        names[name] = target
    return names


def _number(name: str, raw: str) -> float:
    try:
        return float(raw)
    except ValueError:
        raise SettingsError(f"{name} is a number of seconds, got {raw!r}.") from None


def _gib(name: str, raw: str) -> float:
    try:
        return float(raw)
    except ValueError:
        raise SettingsError(f"{name} is a number of GiB, got {raw!r}; for example 16.") from None


def _whole(name: str, raw: str) -> int:
    try:
        return int(raw)
    except ValueError:
        raise SettingsError(f"{name} is a whole number, got {raw!r}.") from None


def _flag(name: str, raw: str) -> bool:
    if raw.lower() in _TRUE:
        return True
    if raw.lower() in _FALSE:
        return False
    raise SettingsError(f"{name} is on or off, got {raw!r}; write 1 or 0.")
