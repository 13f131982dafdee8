"""What ``autellix run`` does, from the engine's start to the table at the end."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from autellix.errors import InputError, UsageError

from ..integrations.langgraph_private import is_drained
from ..tracing.summary import summary_table
from .answers import answer_text, how_to_go_on, outcome_json
from .engine_host import EngineHost, check_machine
from .graph_config import read_graph_config
from .inputs import InputLine, read_inputs
from .interrupts import INTERRUPTED, Interrupts
from .launcher import Outcome, failure_text, run_programs
from .openai_route import OpenAIRoute
from .progress import Steps
from .remote_engine import RemoteEngine, connected_host
from .remote_route import RemoteRoute
from .run_threads import RunThreads
from .run_view import run_view
from .run_watch import RunWatch
from .session import Session, use_session
from .settings import Settings
from .targets import Entry, Target, load_program, opened, parse_target, run_script, script_path
from .top_runs import announced

_OF_THE_SERVER = (
    *("model", "engine", "engine_args", "kv_host_gib", "policy", "admission"),
    *("replicas", "balancer", "ray_address", "ray_wait"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What to run.

    Attributes:
        target: as written on the command line; with ``config`` a graph's id, or nothing.
        script_args: arguments of the script, without inputs only.
        input: where the inputs are; None runs the script as it is.
        concurrency: programs at the same time.
        as_json: results as JSON Lines on standard output.
        config: a ``langgraph.json`` that names the graph.
        thread_ids: threads that the inputs run on; without inputs, threads that go on.
        resume: what an ``interrupt()`` of those threads returns, JSON or text.
        connect: URL of a server whose engine is used; None uses one of this process.
        key: of a tenant of that server.
    """

    target: str = ""
    script_args: tuple[str, ...] = ()
    input: str | None = None
    concurrency: int = 8
    as_json: bool = False
    config: Path | None = None
    thread_ids: tuple[str, ...] = ()
    resume: str | None = None
    connect: str | None = None
    key: str = ""


def run_request(request: RunRequest, settings: Settings, host: EngineHost | None = None) -> int:
    """Run it; the exit code: 0 all programs fine, 1 some failed, 130 interrupted.

    Args:
        host: a running engine to use; without, one is started and stopped again.

    Raises:
        UsageError: the target or the inputs cannot be used.
        AutellixError: the engine or the model cannot be used.
    """
    console = Console(stderr=True)
    with ExitStack() as stack:
        stack.enter_context(logging_to(console, settings.debug))
        command = _RunCommand(request, settings, console, stack.enter_context(Interrupts()))
        if request.connect is not None:
            _check_connected(settings)
            host = connected_host(request.connect, request.key)
            stack.callback(host.stop)
        remote = host.engine if host and isinstance(host.engine, RemoteEngine) else None
        if remote is not None:
            settings = settings.merged(policy=remote.policy)
        session = Session(settings, host)
        stack.callback(session.close)
        # The user's modules may set up models when they are imported: they belong to this run.
        session.recorder.install()
        use_session(session)
        stack.callback(use_session, None)
        threads = RunThreads(session, request.thread_ids, request.resume)
        command.threads = stack.enter_context(threads)
        watch = RunWatch(session, title=command.title)
        way = RemoteRoute(session, remote) if remote else OpenAIRoute(session, watch)
        route = stack.enter_context(way)
        # Before the engine, which takes long: a mistake in the target should show at once.
        stack.enter_context(command.environment())
        job = command.prepare()
        if host is None:
            check_machine(settings)
        with Steps("engine", shown=not settings.quiet, console=console) as steps:
            if host is None:
                steps.note("starting, some 20 s on a CPU")
            session.start()
        watch.programs_total = len(command.lines) or None
        # A server can be watched already, by its own name.
        known = nullcontext() if remote else announced(route.url, route.key, command.title)
        with known, run_view(watch, settings, console):
            code = job()
        route.close()
        written = session.finish()
        if not settings.quiet:
            document = session.record.document()
            if document["programs"]:
                console.print(summary_table(document, console.width))
            if written:
                console.print(f"trace: {written}", highlight=False)
    return code


def _check_connected(settings: Settings) -> None:
    """What is the server's to say cannot be said here.

    Raises:
        UsageError: it is.
    """
    plain = Settings()
    for name in _OF_THE_SERVER:
        if getattr(settings, name) != getattr(plain, name):
            option = "--" + ("engine_arg" if name == "engine_args" else name).replace("_", "-")
            raise UsageError(
                f"{option} is the server's to say: give it to `autellix serve`, not with --connect."
            )


class _RunCommand:
    """A run's request, checked, and the two ways to carry it out."""

    def __init__(
        self, request: RunRequest, settings: Settings, console: Console, interrupts: Interrupts
    ) -> None:
        self.request = request
        self.settings = settings
        self.console = console
        self.interrupts = interrupts
        self.threads: RunThreads | None = None
        self.lines: list[InputLine] = read_inputs(request.input)
        self.config = read_graph_config(request.config) if request.config else None
        if self.config is not None:
            self.target = self.config.target(request.target or None)
        else:
            self.target = parse_target(request.target)

    @property
    def title(self) -> str:
        """What runs, for the views."""
        return self.target.path.name if self.target.path else self.target.text

    def environment(self) -> AbstractContextManager[None]:
        """What the target expects around itself."""
        return self.config.applied() if self.config is not None else nullcontext()

    def prepare(self) -> Callable[[], int]:
        """What is to be run, found and imported; calling it runs it and gives the exit code."""
        resumes = self.request.input is None and bool(self.request.thread_ids)
        if self.request.resume is not None and not resumes:
            raise UsageError("--resume answers a thread: give --thread-id, and no --input.")
        if self.request.input is not None or resumes:
            if self.request.script_args:
                raise UsageError(
                    "Arguments after -- are for scripts; with --input there is no script."
                )
            self._check_lines()
            entry = load_program(self.target)
            if self.threads is not None:
                self.lines = self.threads.resumed() if resumes else self.lines
                self.threads.check(entry, self.lines)
            return lambda: self._run_inputs(entry, resumes)
        if self.config or self.target.path is None or self.target.variable is not None:
            raise UsageError(
                f"{self.target.text} is run once per input: give --input with JSON, a file or "
                "- for standard input. Only FILE.py runs without, as a plain script."
            )
        script_path(self.target.path)
        return lambda: self._run_script(self.target)

    def _check_lines(self) -> None:
        """Before an engine starts for nothing."""
        errors = [line.error for line in self.lines if line.error is not None]
        if errors and len(errors) == len(self.lines):
            none = f"None of {len(errors)} lines can be read. The first: " if errors[1:] else ""
            raise InputError(f"{none}{errors[0]}")

    def _run_script(self, target: Target) -> int:
        assert target.path is not None
        self.interrupts.instead = self._suspend_script
        try:
            run_script(target.path, self.request.script_args)
        except SystemExit as leaving:
            return self._exit_code(leaving)
        except KeyboardInterrupt:
            return INTERRUPTED
        except UsageError:
            raise
        except Exception as error:
            if is_drained(error):
                self._note("suspended", f"{target.path.name}: its threads can go on.")
                return INTERRUPTED
            self._say(f"{target.path.name}: {failure_text(error)}", traceback.format_exc())
            return 1
        finally:
            self.interrupts.instead = None
        return 0

    def _suspend_script(self) -> None:
        if self.threads is None or not self.threads.suspend():
            raise KeyboardInterrupt
        self._note("suspending", "after the current step; Ctrl-C again stops at once.")

    def _run_inputs(self, entry: Entry, resumes: bool) -> int:
        async def run_all() -> list[Outcome]:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None

            def stop() -> None:
                if self.threads is not None and self.threads.suspend():
                    self._note("suspending", "after the current step; Ctrl-C again stops at once.")
                else:
                    task.cancel()

            self.interrupts.instead = lambda: loop.call_soon_threadsafe(stop)
            try:
                async with opened(entry) as made:
                    return await run_programs(
                        made,
                        self.lines,
                        concurrency=self.request.concurrency,
                        on_outcome=self._show,
                        threads=self.threads,
                        resumes=resumes,
                    )
            finally:
                self.interrupts.instead = None
                if task.cancelling():
                    # Programs that block their thread: asyncio would wait for them at its end.
                    loop.set_default_executor(ThreadPoolExecutor(max_workers=1))

        statuses = Counter(outcome.status for outcome in asyncio.run(run_all()))
        if statuses["cancelled"]:
            left = f"{statuses['cancelled']} of {len(self.lines)} inputs"
            self._note("interrupted", f"{left} did not come to their end.")
        if statuses["cancelled"] or statuses["suspended"]:
            return INTERRUPTED
        return 1 if statuses["failed"] else 0

    def _show(self, outcome: Outcome) -> None:
        if self.request.as_json:
            print(outcome_json(outcome), flush=True)
        elif outcome.status == "done":
            print(f"{outcome.program}: {answer_text(outcome.output)}", flush=True)
        if outcome.status == "failed":
            who = f" ({outcome.program})" if outcome.program else ""
            self._say(f"line {outcome.line}{who}: {outcome.error}", outcome.trace_back)

        if outcome.status in ("interrupted", "suspended") and not self.settings.quiet:
            self._note(outcome.status, how_to_go_on(outcome, self._command()))

    def _command(self) -> str:
        """The command that runs this target again."""
        parts = ["autellix run", self.request.target]
        parts += ["-c", str(self.request.config)] if self.request.config else []
        if self.settings.checkpointer:
            parts += ["--checkpointer", self.settings.checkpointer]
        return " ".join(part for part in parts if part)

    def _note(self, what: str, text: str) -> None:
        self.console.print(Text.assemble((f"{what}: ", "bold yellow"), text))

    def _say(self, text: str, trace_back: str | None) -> None:
        """One failure, in one paragraph; with its traceback under ``--debug``."""
        hint = "; --debug shows the traceback" if trace_back and not self.settings.debug else ""
        self.console.print(Text.assemble(("failed: ", "bold red"), text, (hint, "dim")))
        if trace_back and self.settings.debug:
            self.console.print(Text(trace_back), soft_wrap=True)

    def _exit_code(self, leaving: SystemExit) -> int:
        """A script's own exit, as Python itself would read it."""
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        self.console.print(str(leaving.code), highlight=False, markup=False)
        return 1


@contextmanager
def logging_to(console: Console, debug: bool) -> Iterator[None]:
    """Inside, our own messages go to the terminal."""
    handler = RichHandler(console=console, show_path=debug, show_time=debug)
    logger = logging.getLogger("autellix")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
