"""Options that several commands have: each is written once, with its environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str | None,
    typer.Option(envvar="AUTELLIX_MODEL", help="Any model vLLM serves. [embedded model]"),
]
Engine = Annotated[
    str | None,
    typer.Option(
        envvar="AUTELLIX_ENGINE",
        help="vllm, on this machine, or ray, on the machines of a Ray cluster. [vllm]",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        envvar="AUTELLIX_RAY_ADDRESS",
        metavar="HOST:PORT",
        help="Head of the Ray cluster, or auto. [RAY_ADDRESS; else this machine alone]",
    ),
]
RayWait = Annotated[
    float | None,
    typer.Option(
        envvar="AUTELLIX_RAY_WAIT",
        metavar="SECONDS",
        help="How long to wait for room in the Ray cluster, as for an autoscaler. [20]",
    ),
]
EngineArg = Annotated[
    list[str] | None,
    typer.Option(
        envvar="AUTELLIX_ENGINE_ARG",
        metavar="KEY=VALUE",
        help="Argument of vLLM's engine; repeatable (in the variable, blanks lie between).",
    ),
]
ModelMap = Annotated[
    list[str] | None,
    typer.Option(
        envvar="AUTELLIX_MODEL_MAP",
        metavar="NAME=TARGET",
        help="Which model answers to a name that programs use; repeatable.",
    ),
]
KvHostGib = Annotated[
    float | None,
    typer.Option(
        envvar="AUTELLIX_KV_HOST_GIB",
        metavar="N",
        help="Host memory that keeps KV, GiB. [half of what is free; 0 without a GPU]",
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        envvar="AUTELLIX_POLICY",
        help="default, fcfs, program-fcfs, mlfq, plas, atlas, adaptive or gittins. [default]",
    ),
]
Admission = Annotated[
    bool | None,
    typer.Option(
        "--admission/--no-admission",
        envvar="AUTELLIX_ADMISSION",
        help="Run only programs whose KV fits the cache, once it thrashes. [by policy]",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(envvar="AUTELLIX_REPLICAS", help="Engines that share the calls. [1]"),
]
Balancer = Annotated[
    str | None,
    typer.Option(
        envvar="AUTELLIX_BALANCER",
        help="Which of them serves a call: expected-cost, program, least-used or round-robin. "
        "[expected-cost]",
    ),
]
Journal = Annotated[
    Path | None,
    typer.Option(
        envvar="AUTELLIX_JOURNAL",
        help="Keeps what threads have used up. [in the user's state folder]",
    ),
]
Trace = Annotated[
    Path | None, typer.Option(envvar="AUTELLIX_TRACE", help="Write a trace to this file.")
]
RecordContent = Annotated[
    bool,
    typer.Option(
        "--record-content",
        envvar="AUTELLIX_RECORD_CONTENT",
        help="Keep prompts and answers in the trace and in spans.",
    ),
]
EngineDebug = Annotated[
    bool, typer.Option(envvar="AUTELLIX_DEBUG", help="Tracebacks and the engine's own log.")
]
Debug = Annotated[bool, typer.Option(envvar="AUTELLIX_DEBUG", help="Tracebacks.")]
