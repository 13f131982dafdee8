"""The command line: parses, calls, prints."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from autellix.errors import UsageError

from . import cli_options as options
from .interrupts import INTERRUPTED
from .plain_errors import PlainGroup, plain_errors
from .serve_command import SERVE_EXAMPLES, serve
from .trace_command import trace_app

app = typer.Typer(
    name="autellix",
    cls=PlainGroup,
    help="Run LLM agents as programs: scheduled as a whole, recorded as a DAG.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_RUN_EXAMPLES = """[bold]Examples[/bold]

  autellix run agent.py                          the script, as python would run it

  autellix run agent.py -- --question "Why?"     the same with arguments of its own

  autellix run agent.py --input tasks.jsonl      its graph, or main(input), once per line

  autellix run agent.py:graph --input '{"messages": [["user", "hi"]]}'

  autellix run -c langgraph.json agent --input tasks.jsonl

  autellix run agent.py --input tasks.jsonl --checkpointer sqlite:threads.db

  autellix run agent.py --connect http://127.0.0.1:8000

  cat tasks.jsonl | autellix run pkg.mod:graph --input - --concurrency 32 --trace run.json
"""

_TOP_EXAMPLES = """[bold]Examples[/bold]

  autellix top                      the newest run on this machine

  AUTELLIX_KEY=... autellix top http://127.0.0.1:8000

  autellix top --once               one picture

  autellix top --json               one snapshot, for programs
"""


def _version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"autellix {importlib.metadata.version('autellix')}")
        except importlib.metadata.PackageNotFoundError:
            print("autellix, from a checkout that is not installed")
        raise typer.Exit


app.add_typer(trace_app, name="trace")
app.command(epilog=SERVE_EXAMPLES)(serve)


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command(epilog=_RUN_EXAMPLES)
def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="FILE.py, FILE.py:NAME or package.module:NAME; with -c a graph's id.",
            show_default=False,
        ),
    ] = "",
    script_args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments of the script.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            envvar="AUTELLIX_CONFIG",
            metavar="FILE",
            help="A langgraph.json that names the graph.",
        ),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            envvar="AUTELLIX_INPUT",
            help="JSON, - for standard input, or a file; JSON Lines are one program a line.",
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(envvar="AUTELLIX_CONCURRENCY", min=1, help="Programs at the same time."),
    ] = 8,
    model: options.Model = None,
    engine: options.Engine = None,
    engine_arg: options.EngineArg = None,
    model_map: options.ModelMap = None,
    kv_host_gib: options.KvHostGib = None,
    policy: options.Policy = None,
    admission: options.Admission = None,
    replicas: options.Replicas = None,
    ray_address: options.RayAddress = None,
    ray_wait: options.RayWait = None,
    balancer: options.Balancer = None,
    checkpointer: Annotated[
        str | None,
        typer.Option(
            envvar="AUTELLIX_CHECKPOINTER",
            metavar="STORE",
            help="memory, sqlite:PATH or postgres:URL, for graphs that bring none.",
        ),
    ] = None,
    thread_id: Annotated[
        list[str] | None,
        typer.Option(
            envvar="AUTELLIX_THREAD_ID",
            metavar="ID",
            help="Thread to run on; without --input it goes on. Repeatable.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            envvar="AUTELLIX_RESUME",
            metavar="ANSWER",
            help="What the thread's interrupt() returns: JSON or text.",
        ),
    ] = None,
    journal: options.Journal = None,
    trace: options.Trace = None,
    record_content: options.RecordContent = False,
    connect: Annotated[
        str | None,
        typer.Option(
            envvar="AUTELLIX_CONNECT",
            metavar="URL",
            help="Use the engine of a server, with the key in AUTELLIX_KEY where it has keys.",
        ),
    ] = None,
    live: Annotated[
        bool | None,
        typer.Option(
            "--live/--no-live",
            envvar="AUTELLIX_LIVE",
            help="Show programs and queues. [on a terminal]",
        ),
    ] = None,
    refresh: Annotated[
        float | None,
        typer.Option(
            envvar="AUTELLIX_REFRESH", metavar="SECONDS", help="Between two pictures. [1]"
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", envvar="AUTELLIX_JSON", help="Results as JSON Lines on stdout."),
    ] = False,
    quiet: Annotated[
        bool, typer.Option(envvar="AUTELLIX_QUIET", help="No progress line, no table.")
    ] = False,
    debug: options.EngineDebug = False,
) -> None:
    """Run a program, or one per input, on an engine that schedules programs as a whole."""
    from .run_command import RunRequest, run_request
    from .settings import Settings, parse_engine_args, parse_model_map

    with plain_errors(debug):
        if not target and config is None:
            raise UsageError(
                "Nothing to run. Write autellix run FILE.py, FILE.py:NAME, package.module:NAME, or "
                "-c langgraph.json; autellix run --help shows examples."
            )
        settings = Settings().merged(
            model=model,
            engine=engine,
            engine_args=parse_engine_args(engine_arg or []),
            model_map=parse_model_map(model_map or []),
            kv_host_gib=kv_host_gib,
            policy=policy,
            admission=admission,
            replicas=replicas,
            ray_address=ray_address,
            ray_wait=ray_wait,
            balancer=balancer,
            checkpointer=checkpointer,
            journal=journal,
            trace=trace,
            record_content=record_content,
            live=live,
            refresh=refresh,
            quiet=quiet,
            debug=debug,
        )
        request = RunRequest(
            target=target,
            script_args=tuple(script_args or ()),
            input=input,
            concurrency=concurrency,
            as_json=as_json,
            config=config,
            thread_ids=tuple(thread_id or ()),
            resume=resume,
            connect=connect,
            key=os.environ.get("AUTELLIX_KEY", ""),
        )
        code = run_request(request, settings)
    _leave(code)


_CALIBRATE_EXAMPLES = """[bold]Examples[/bold]

  autellix calibrate                             measure the embedded model, some two minutes

  autellix calibrate --output here.json          and keep it: --engine sim:here.json of benchmarks

  autellix calibrate --model org/name --engine-arg max_num_seqs=32 --json > measured.json
"""


@app.command(epilog=_CALIBRATE_EXAMPLES)
def calibrate(
    model: options.Model = None,
    engine_arg: options.EngineArg = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            envvar="AUTELLIX_OUTPUT",
            metavar="FILE.json",
            help="Write the preset there.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            envvar="AUTELLIX_CALIBRATE_NAME", help="Name of the preset.", show_default="the model's"
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", envvar="AUTELLIX_JSON", help="The preset and all that was measured on stdout."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option(envvar="AUTELLIX_QUIET", help="No progress.")] = False,
    debug: options.EngineDebug = False,
) -> None:
    """Measure the engine's steps on this machine, and model it for the simulator.

    Step time = a + b * prompt tokens + c * calls + d * tokens of KV, and the attention of long
    prompts, fitted to steps of many shapes. Leave the machine to it meanwhile.
    """
    from .calibrate import calibrate as measure
    from .calibrate import check_output, report, write_preset
    from .settings import Settings, parse_engine_args

    with plain_errors(debug):
        check_output(output)
        settings = Settings(
            model=model,
            engine_args=parse_engine_args(engine_arg or []),
            quiet=quiet,
            debug=debug,
        )
        done = measure(settings, Console(stderr=True), name=name)
        if output is not None:
            write_preset(done, output)
        if as_json:
            print(json.dumps(done.document, indent=1))
        else:
            report(done, Console())
            if output is not None:
                print(f"written: {output}")


@app.command(epilog=_TOP_EXAMPLES)
def top(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[URL]",
            help="Of a run, or its process id; without, the newest run on this machine.",
            show_default=False,
        ),
    ] = "",
    key: Annotated[
        str, typer.Option(envvar="AUTELLIX_KEY", help="Key of a run that is not yours here.")
    ] = "",
    refresh: Annotated[
        float,
        typer.Option(envvar="AUTELLIX_REFRESH", metavar="SECONDS", help="Between two pictures."),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", envvar="AUTELLIX_ONCE", help="One picture, then leave.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="AUTELLIX_JSON", help="One snapshot as JSON.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Watch a run that is under way in another process."""
    from .top_command import TopRequest
    from .top_command import top as watch

    with plain_errors(debug):
        code = watch(TopRequest(run=run, key=key, refresh_s=refresh, once=once, as_json=as_json))
    raise typer.Exit(code)


@app.command()
def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", envvar="AUTELLIX_JSON", help="Findings as JSON.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Check this machine, and say how to mend what is wrong."""
    from .doctor import exit_code, render, run_doctor, to_json

    with plain_errors(debug):
        findings = run_doctor()
        if as_json:
            print(to_json(findings))
        else:
            render(findings, Console())
        code = exit_code(findings)
    raise typer.Exit(code)


def _leave(code: int) -> None:
    """Exit; after an interruption without waiting for threads that programs have left behind."""
    sys.stdout.flush()
    sys.stderr.flush()
    others = set(threading.enumerate()) - {threading.main_thread()}
    if code == INTERRUPTED and not all(thread.daemon for thread in others):
        os._exit(code)
    if code:
        raise typer.Exit(code)
