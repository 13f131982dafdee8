"""``autellix trace``: show, explain, compare, replay, report and export a trace."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console, RenderableType

from autellix.errors import SettingsError, TraceError, UsageError

from .plain_errors import plain_errors

if TYPE_CHECKING:
    from ..scheduler.engine_model import EngineModel
    from ..tracing.trace import Trace

ExportForm = Literal["perfetto", "mermaid", "graphml", "csv", "otlp"]
_MOST_REPLICAS = 1024

trace_app = typer.Typer(
    help="Show, explain, compare, replay, report and export a trace of a run.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A trace: FILE.json, FILE.json.zst, FILE.json.gz, or FILE.part of a run that lasts.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", envvar="AUTELLIX_JSON", help="The same as JSON.")]
Debug = Annotated[bool, typer.Option(envvar="AUTELLIX_DEBUG", help="Tracebacks.")]


@trace_app.command()
def show(
    file: File,
    program: Annotated[
        str | None,
        typer.Option(
            "--program", envvar="AUTELLIX_PROGRAM", metavar="ID", help="Whose tree. [the longest]"
        ),
    ] = None,
    all_calls: Annotated[
        bool,
        typer.Option("--all", envvar="AUTELLIX_ALL", help="Every call of the tree."),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Programs, the tree of one of them, and its critical path."""
    from ..tracing import show as showing
    from ..tracing.waiting import Waiting

    with _errors(debug):
        trace = _read(file)
        waiting = Waiting(trace)
        chosen = trace.program(program) if program else None
        if as_json:
            _print_json(showing.show_json(waiting))
            return
        console = Console()
        most = None if all_calls else showing.MOST_CALLS
        _print(console, showing.render(waiting, console, program=chosen, most_calls=most))


@trace_app.command()
def why(
    file: File,
    call: Annotated[
        str,
        typer.Argument(metavar="CALL", help="PROGRAM/NUMBER or a call's id, as show lists them."),
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Why a call waited: its whole story, and who was served instead."""
    from ..tracing import why as explaining
    from ..tracing.waiting import Waiting

    with _errors(debug):
        trace = _read(file)
        found = trace.call(call)
        waiting = Waiting(trace)
        if as_json:
            _print_json(explaining.why_json(waiting, found))
        else:
            _print(Console(), explaining.render(waiting, found))


@trace_app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A trace.", show_default=False)],
    b: Annotated[
        Path,
        typer.Argument(metavar="B", help="Another one of the same programs.", show_default=False),
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Two policies on the same programs: what each gained and lost."""
    from ..tracing import diff as comparing

    with _errors(debug):
        found = comparing.diff(_read(a), _read(b))
        if not found.programs:
            raise UsageError(
                f"{a} and {b} have no program in common: neither ids nor names are the same. Give "
                "two traces of the same programs."
            )
        if as_json:
            _print_json(comparing.diff_json(found))
            return
        console = Console()
        names = (a.name, b.name) if a.name != b.name else (str(a), str(b))
        _print(console, comparing.render(found, names, console.width))


@trace_app.command()
def whatif(
    file: File,
    policy: Annotated[
        str,
        typer.Option(
            envvar="AUTELLIX_POLICIES",
            metavar="NAME,...",
            help="Policies to predict. [the recorded one]",
        ),
    ] = "",
    replicas: Annotated[
        str,
        typer.Option(
            envvar="AUTELLIX_WHATIF_REPLICAS",
            metavar="N,...",
            help="Numbers of replicas. [as recorded]",
        ),
    ] = "",
    engine: Annotated[
        str | None,
        typer.Option(
            envvar="AUTELLIX_PRESET",
            metavar="PRESET",
            help="A preset, or a file of calibrate. [fitted to FILE]",
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict other policies and numbers of replicas: the recorded programs in the simulator."""
    from . import what_if_view
    from .what_if import what_if

    with _errors(debug):
        found = what_if(
            _read(file),
            _names(policy),
            _counts(replicas),
            engine=_preset(engine) if engine else None,
        )
        if as_json:
            _print_json(what_if_view.what_if_json(found))
            return
        console = Console()
        _print(console, what_if_view.render(found, console.width))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _counts(text: str) -> list[int]:
    counts = []
    for name in _names(text):
        if not name.isdecimal() or not 1 <= int(name) <= _MOST_REPLICAS:
            raise SettingsError(
                f"--replicas takes whole numbers from 1 to {_MOST_REPLICAS}, such as 1,2,4; got "
                f"{name!r}."
            )
        counts.append(int(name))
    return counts


def _preset(name: str) -> EngineModel:
    from ..scheduler.engine_model import preset_named

    return preset_named(name.removeprefix("sim:"))


@trace_app.command()
def report(
    file: File,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", envvar="AUTELLIX_OUTPUT", metavar="FILE", help="[FILE.html beside it]"
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write one page that shows the whole run; it needs nothing but a browser."""
    from ..tracing.report import write_report

    with _errors(debug):
        path = _beside(output or file.with_name(_stem(file) + ".html"), file)
        write_report(_read(file), file.name, path)
        print(path)


@trace_app.command()
def export(
    file: File,
    to: Annotated[
        ExportForm,
        typer.Option(
            envvar="AUTELLIX_FORMAT",
            help="perfetto is for ui.perfetto.dev; otlp sends spans where OTEL_* says.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            envvar="AUTELLIX_OUTPUT",
            metavar="OUT",
            help="- is stdout. [beside FILE]",
        ),
    ] = None,
    program: Annotated[
        list[str] | None,
        typer.Option(
            "--program",
            envvar="AUTELLIX_PROGRAM",
            metavar="ID",
            help="Only this one, in graphs; repeatable.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write the trace for another tool: Perfetto, Mermaid, GraphML, CSV, or OpenTelemetry."""
    from .trace_exports import ENDINGS, export_text, send_spans

    with _errors(debug):
        trace = _read(file)
        if to == "otlp":
            print(f"{send_spans(trace)} spans sent")
            return
        text = export_text(trace, to, program or [])
        path = output or file.with_name(_stem(file) + ENDINGS[to])
        if str(path) == "-":
            sys.stdout.write(text)
            return
        _beside(path, file)
        try:
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise TraceError(
                f"{path} cannot be written: {error.strerror}; name another file with -o"
            ) from error
        print(path)


def _beside(path: Path, file: Path) -> Path:
    """The path, if writing there leaves the trace as it is."""
    if path.exists() and file.exists() and path.samefile(file):
        raise UsageError(f"{path} is the trace itself; name another file with -o")
    return path


def _stem(file: Path) -> str:
    """The name of a trace without the endings that traces have."""
    name = file.name
    for ending in (".part", ".zst", ".zstd", ".gz", ".json"):
        name = name.removesuffix(ending)
    return name or file.name


# How they read and print.


@contextlib.contextmanager
def _errors(debug: bool) -> Iterator[None]:
    """A file that cannot be used is a wrong argument; whoever reads our output may stop early."""
    with plain_errors(debug, usage=(UsageError, SettingsError, TraceError)):
        try:
            yield
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read(file: Path) -> Trace:
    from ..tracing.trace_file import read_trace

    trace = read_trace(file)
    for loss in trace.losses:
        Console(stderr=True).print(f"{file}: {loss}.", style="yellow", markup=False)
    return trace


def _print(console: Console, shown: RenderableType) -> None:
    """Print what was drawn; letters that the terminal cannot show become question marks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console.print(shown, highlight=False)


def _print_json(values: Any) -> None:
    print(json.dumps(values, indent=2, ensure_ascii=False, default=str))
