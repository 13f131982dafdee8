"""Runs a program once per input, several at a time, and collects how each one ended."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..integrations.langgraph_private import is_drained
from .inputs import InputLine
from .program_scope import program
from .run_threads import RunThreads, config_of
from .targets import Entry

_STANDARD_LIBRARY = Path(os.__file__).parent
_RUNTIME = Path(__file__).parent
_OURS = (_RUNTIME, _RUNTIME.parent / "integrations")

OutcomeStatus = Literal["done", "failed", "interrupted", "suspended", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the program of one input ended.

    Attributes:
        line: number of the input line.
        program: id of the program; None for a line that could not be read.
        thread: the LangGraph thread that it ran on; None without a checkpointer.
        output: what the program returned.
        error: what went wrong, one line; None if nothing did.
        trace_back: the program's own traceback, for ``--debug``.
    """

    line: int
    program: str | None
    status: OutcomeStatus
    thread: str | None = None
    output: Any = None
    error: str | None = None
    trace_back: str | None = None


async def run_programs(
    entry: Entry,
    lines: Sequence[InputLine],
    *,
    concurrency: int,
    on_outcome: Callable[[Outcome], None],
    threads: RunThreads | None = None,
    resumes: bool = False,
) -> list[Outcome]:
    """Run ``entry`` on every line, at most ``concurrency`` at a time, in their order.

    A line that cannot be read and a program that raises are outcomes; the others run on.

    Args:
        on_outcome: called as each program ends.
        threads: gives each program its thread; None runs them on none.
        resumes: the programs go on where their threads stand, whatever the lines hold.

    Returns:
        One outcome per line, in the order of the lines. Programs that were under way or not yet
        started when the run was cancelled are "cancelled".
    """
    outcomes: dict[int, Outcome] = {}

    def settle(outcome: Outcome) -> None:
        outcomes[outcome.line] = outcome
        on_outcome(outcome)

    queue = iter(lines)

    async def work() -> None:
        for line in queue:
            if threads is not None and threads.stopping:
                return
            thread = threads.thread_of(entry, line, len(lines)) if threads is not None else None
            start = _Start(entry, line, thread, threads, resumes)
            settle(await _run_line(start))

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(lines)))]
    try:
        await asyncio.gather(*workers)
    except asyncio.CancelledError:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    for line in lines:
        if line.number not in outcomes:
            settle(Outcome(line=line.number, program=None, status="cancelled", error="interrupted"))
    return [outcomes[line.number] for line in lines]


class _Start(NamedTuple):
    """One program, and what it begins with."""

    entry: Entry
    line: InputLine
    thread: str | None
    threads: RunThreads | None
    resumes: bool


async def _run_line(start: _Start) -> Outcome:
    line, thread = start.line, start.thread
    if line.error is not None:
        return Outcome(line=line.number, program=None, status="failed", error=line.error)
    scope = program(start.entry.name, id=thread)
    try:
        async with scope:
            output = await _call(start)
            interrupted = isinstance(output, dict) and output.get("__interrupt__")
            scope.ending = "interrupted" if interrupted else "done"
    except (Exception, asyncio.CancelledError, SystemExit) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the run is given up, not this program alone
        if is_drained(error):
            return Outcome(line=line.number, program=scope.id, status="suspended", thread=thread)
        return Outcome(
            line=line.number,
            program=scope.id,
            thread=thread,
            status="failed",
            error=failure_text(error),
            trace_back=traceback.format_exc(),
        )
    status: OutcomeStatus = "interrupted" if interrupted else "done"
    return Outcome(line=line.number, program=scope.id, thread=thread, status=status, output=output)


async def _call(start: _Start) -> Any:
    entry, value, thread = start.entry, start.line.value, start.thread
    if start.threads is not None and thread is not None:
        value = await start.threads.value_of(entry, start.line, thread, start.resumes)
        return await entry.call.ainvoke(value, config_of(thread))
    if entry.kind == "graph":
        return await entry.call.ainvoke(value)
    if entry.is_async:
        return await entry.call(value)
    return await asyncio.to_thread(entry.call, value)


def failure_text(error: BaseException) -> str:
    """An error in one line: kind, message, and where in the user's own files it was raised."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    place = _own_frame(traceback.extract_tb(error.__traceback__))
    return f"{text} ({place})" if place else text


def _own_frame(frames: Sequence[traceback.FrameSummary]) -> str | None:
    """The innermost frame outside of libraries, as "file.py line 3"."""
    for frame in reversed(frames):
        path = Path(frame.filename)
        in_library = any(path.is_relative_to(p) for p in (_STANDARD_LIBRARY, *_OURS))
        if path.suffix == ".py" and not in_library and "site-packages" not in path.parts:
            return f"{path.name} line {frame.lineno}"
    return None
