"""What ``autellix run`` does, from the engine's start to the table at the end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from autellix.errors import UsageError

from ..tracing.live import LiveView
from ..tracing.summary import summary_table
from ..tracing.view import ProgressView
from .engine_host import EngineHost
from .inputs import InputLine, read_inputs
from .launcher import Outcome, failure_text, run_programs
from .progress import Steps
from .session import Session, use_session
from .settings import Settings
from .targets import Entry, load_program, parse_target, run_script

INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What to run.

    Attributes:
        target: as written on the command line.
        script_args: arguments of the script, without inputs only.
        input: where the inputs are; None runs the script as it is.
        concurrency: programs at the same time.
        as_json: results as JSON Lines on standard output.
    """

    target: str
    script_args: tuple[str, ...] = ()
    input: str | None = None
    concurrency: int = 8
    as_json: bool = False


def run_request(request: RunRequest, settings: Settings, host: EngineHost | None = None) -> int:
    """Run it; the exit code: 0 all programs fine, 1 some failed, 130 interrupted.

    Raises:
        UsageError: the target or the inputs cannot be used.
        AutellixError: the engine or the model cannot be used.
    """
    console = Console(stderr=True)
    _log_to(console, settings.debug)
    lines = read_inputs(request.input)
    target = parse_target(request.target)
    if request.input is None and (target.path is None or target.variable is not None):
        raise UsageError(
            f"{request.target} is run once per input: give --input with JSON, a file or - for "
            "standard input. Only FILE.py runs without, as a plain script."
        )
    if request.input is not None and request.script_args:
        raise UsageError("Arguments after -- are for scripts; with --input there is no script.")
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        # Before the engine, which takes long: a mistake in the target should show at once.
        session = Session(settings, host)
        stack.callback(session.close)
        if request.input is not None:
            session.recorder.install()
            use_session(session)
            entry = load_program(target)
        with Steps("engine", shown=not settings.quiet, console=console) as steps:
            steps.note("starting (some 20 s on a CPU)")
            session.start()
        use_session(session)
        stack.callback(use_session, None)
        with _view(session, settings, console, total=len(lines) or None):
            if request.input is None:
                code = _run_script(target.path, request, settings, console)
            else:
                code = _run_inputs(entry, lines, request, settings, console, interrupts)
        written = session.finish()
        if not settings.quiet:
            document = session.record.document()
            if document["programs"]:
                console.print(summary_table(document, console.width))
            if written:
                console.print(f"trace: {written}", highlight=False)
    return code


def _run_script(
    path: Path | None, request: RunRequest, settings: Settings, console: Console
) -> int:
    assert path is not None
    try:
        run_script(path, request.script_args)
    except SystemExit as leaving:
        return _exit_code(leaving, console)
    except KeyboardInterrupt:
        return INTERRUPTED
    except UsageError:
        raise
    except Exception as error:
        if settings.debug:
            traceback.print_exc()
        _say(console, f"{path.name} failed: {failure_text(error)}", settings)
        return 1
    return 0


def _run_inputs(
    entry: Entry,
    lines: list[InputLine],
    request: RunRequest,
    settings: Settings,
    console: Console,
    interrupts: Interrupts,
) -> int:
    def show(outcome: Outcome) -> None:
        if request.as_json:
            print(json.dumps(_outcome_json(outcome), default=str), flush=True)
        elif outcome.status == "failed":
            who = outcome.program or "not run"
            _say(console, f"line {outcome.line} ({who}): {outcome.error}", settings)
            if settings.debug and outcome.trace_back:
                console.print(Text(outcome.trace_back), soft_wrap=True)
        elif outcome.status == "done":
            print(f"{outcome.program}: {_answer(outcome.output)}", flush=True)

    async def run_all() -> list[Outcome]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        interrupts.instead = lambda: loop.call_soon_threadsafe(task.cancel) and None
        return await run_programs(entry, lines, concurrency=request.concurrency, on_outcome=show)

    outcomes = asyncio.run(run_all())
    statuses = {outcome.status for outcome in outcomes}
    if "cancelled" in statuses:
        return INTERRUPTED
    return 1 if "failed" in statuses else 0


def _say(console: Console, text: str, settings: Settings) -> None:
    hint = "" if settings.debug else "; --debug shows the traceback"
    console.print(Text.assemble(("failed: ", "bold red"), text, (hint, "dim")))


def _answer(output: Any) -> str:
    """What a program returned, in one line for people."""
    if isinstance(output, dict) and output.get("messages"):
        output = getattr(output["messages"][-1], "content", output["messages"][-1])
    if not isinstance(output, str):
        output = json.dumps(output, default=str, ensure_ascii=False)
    return " ".join(output.split())


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "line": outcome.line,
        "program": outcome.program,
        "status": outcome.status,
        "output": _plain(outcome.output),
        "error": outcome.error,
    }


def _plain(value: Any) -> Any:
    """Messages and models as their own dictionaries; the rest as it is."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _exit_code(leaving: SystemExit, console: Console) -> int:
    """A script's own exit, as Python itself would read it."""
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    console.print(str(leaving.code), highlight=False, markup=False)
    return 1


@contextmanager
def _view(
    session: Session, settings: Settings, console: Console, total: int | None
) -> Iterator[None]:
    if settings.quiet:
        yield
    elif settings.live:
        with LiveView(lambda: session.snapshot(total), console=console):
            yield
    else:
        with ProgressView(lambda: session.snapshot(total, with_engine=False), console=console):
            yield


class Interrupts:
    """Ctrl-C and SIGTERM stop cleanly; a second one stops at once.

    The first raises KeyboardInterrupt in the main thread, or calls ``instead`` where that is set:
    an event loop must not be torn in the middle of a step.
    """

    def __init__(self) -> None:
        self.instead: Callable[[], None] | None = None
        self._seen = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: object) -> None:
        if self._seen:
            os._exit(INTERRUPTED)  # the engine's processes end with this one
        self._seen = True
        if self.instead is None:
            raise KeyboardInterrupt
        self.instead()


def _log_to(console: Console, debug: bool) -> None:
    handler = RichHandler(console=console, show_path=debug, show_time=debug)
    logger = logging.getLogger("autellix")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
