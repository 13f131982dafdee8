"""What ``autellix top`` does: shows a run of another process, until one of both ends."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from autellix.errors import AutellixError, UsageError

from ..tracing.live import live_picture
from ..tracing.live_lines import clean
from ..tracing.live_state import Choice
from ..tracing.live_view import TopView
from ..tracing.live_wire import graph_to_wire, program_to_wire, queues_to_wire, run_to_wire
from ..tracing.notation import ascii_text
from ..tracing.progress import progress_text
from .settings import SHORTEST_REFRESH_S
from .top_client import RemoteRun
from .top_runs import KnownRun, known_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRequest:
    """What to watch, and how.

    Attributes:
        run: a URL, or the process id of a run of this machine; empty for the newest run here.
        key: lets its user in; empty for that of a run of this machine.
        refresh_s: time between two pictures, seconds.
        once: one picture only.
        as_json: one snapshot only, as JSON.
    """

    run: str = ""
    key: str = ""
    refresh_s: float = 1.0
    once: bool = False
    as_json: bool = False


def top(request: TopRequest) -> int:
    """Show it; the exit code, which is 0.

    Raises:
        UsageError: there is no such run, or the key is another one.
        AutellixError: there is no run, or it does not answer.
    """
    if not request.refresh_s >= SHORTEST_REFRESH_S:
        raise UsageError(
            f"--refresh is at least {SHORTEST_REFRESH_S} seconds, got {request.refresh_s:g}."
        )
    source = _found(request)
    try:
        if request.as_json:
            print(json.dumps(_document(source), indent=2))
        elif request.once:
            _print_once(source)
        else:
            _watch(source, request.refresh_s)
    finally:
        source.close()
    return 0


def _found(request: TopRequest) -> RemoteRun:
    runs = known_runs()
    if not request.run:
        if not runs:
            raise AutellixError(
                "No run of yours is under way on this machine. Start one with `autellix run`, or "
                "give the URL of one."
            )
        return RemoteRun(runs[0].url, request.key or runs[0].key)
    if request.run.isdigit():
        run = next((run for run in runs if run.pid == int(request.run)), None)
        if run is None:
            raise UsageError(f"There is no run with process id {request.run}. {_listed(runs)}")
        return RemoteRun(run.url, request.key or run.key)
    source = RemoteRun(request.run)
    known = next((run.key for run in runs if run.url == source.url), "")
    return RemoteRun(request.run, request.key or known)


def _listed(runs: list[KnownRun]) -> str:
    if not runs:
        return "No run of yours is under way on this machine."
    return "There are: " + ", ".join(f"{run.pid} ({clean(run.title)})" for run in runs) + "."


def _document(source: RemoteRun) -> dict[str, Any]:
    snapshot = source.snapshot()
    program = Choice().focus(snapshot.programs, snapshot.elapsed_s)
    graph = source.graph(program) if program else None
    return {
        "run": run_to_wire(snapshot),
        "queues": queues_to_wire(snapshot),
        "programs": [program_to_wire(row) for row in snapshot.programs],
        "dag": graph and graph_to_wire(graph),
    }


def _print_once(source: RemoteRun) -> None:
    console = Console()
    snapshot = source.snapshot()
    program = Choice().focus(snapshot.programs, snapshot.elapsed_s)
    graph = source.graph(program) if program else None
    picture = live_picture(snapshot, console.width, max(24, console.height - 1), graph=graph)
    while picture.lines and not picture.lines[-1].cells:
        picture.lines.pop()
    if console.options.ascii_only:
        print(ascii_text(picture.text))
    else:
        console.print(picture, end="", soft_wrap=True)


def _watch(source: RemoteRun, refresh_s: float) -> None:
    source.snapshot()  # a wrong URL or key is said before the screen is taken
    view = TopView(source, console=Console(), refresh_s=refresh_s)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: view.quit())
    try:
        with view:
            view.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    last = view.last
    if last is not None:
        how = "the run has ended" if view.is_over else "it runs on"
        line = f"{progress_text(last, sys.maxsize).plain} · {how}"
        Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)
