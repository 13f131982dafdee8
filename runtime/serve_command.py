"""``autellix serve``: parses, calls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import cli_options as options
from .plain_errors import plain_errors

SERVE_EXAMPLES = """[bold]Examples[/bold]

  autellix serve                                 the embedded model, for this machine alone

  autellix serve --model org/name --replicas 2

  autellix serve --host 0.0.0.0 --keys-file keys.txt --tls-cert cert.pem --tls-key key.pem
"""


def serve(
    host: Annotated[
        str, typer.Option(envvar="AUTELLIX_HOST", help="Address to serve at; others need keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="AUTELLIX_PORT", help="0 for any free one.")] = 8000,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            envvar="AUTELLIX_KEYS_FILE",
            metavar="FILE",
            help="Who may use it, NAME KEY a line; or the variable AUTELLIX_KEYS holds the lines.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(envvar="AUTELLIX_TLS_CERT", metavar="FILE", help="For HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(envvar="AUTELLIX_TLS_KEY", metavar="FILE", help="For HTTPS.")
    ] = None,
    session_idle: Annotated[
        float,
        typer.Option(
            envvar="AUTELLIX_SESSION_IDLE",
            metavar="SECONDS",
            help="An idle session is ended after this.",
        ),
    ] = 1800.0,
    max_sessions: Annotated[
        int, typer.Option(envvar="AUTELLIX_MAX_SESSIONS", help="Open sessions of one tenant.")
    ] = 10_000,
    max_calls: Annotated[
        int, typer.Option(envvar="AUTELLIX_MAX_CALLS", help="Calls of one tenant at once.")
    ] = 1_024,
    max_session_calls: Annotated[
        int,
        typer.Option(envvar="AUTELLIX_MAX_SESSION_CALLS", help="Calls of one session in all."),
    ] = 10_000,
    max_connections: Annotated[
        int, typer.Option(envvar="AUTELLIX_MAX_CONNECTIONS", help="Of all clients together.")
    ] = 4_096,
    max_body_mib: Annotated[
        float, typer.Option(envvar="AUTELLIX_MAX_BODY_MIB", help="Size of a request's body.")
    ] = 16.0,
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
    trace: options.Trace = None,
    record_content: options.RecordContent = False,
    quiet: Annotated[bool, typer.Option(envvar="AUTELLIX_QUIET", help="Say nothing.")] = False,
    debug: options.EngineDebug = False,
) -> None:
    """Serve an OpenAI API whose sessions are programs, scheduled as a whole."""
    from .serve_settings import ServeSettings
    from .settings import Settings, parse_engine_args, parse_model_map

    with plain_errors(debug):
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
            trace=trace,
            record_content=record_content,
            quiet=quiet,
            debug=debug,
        )
        serving = ServeSettings(
            host=host,
            port=port,
            keys_file=keys_file,
            session_idle_s=session_idle,
            max_sessions=max_sessions,
            max_calls=max_calls,
            max_session_calls=max_session_calls,
            max_connections=max_connections,
            max_body_mib=max_body_mib,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        from . import serving as server

        code = server.serve_until_stopped(settings, serving)
    if code:
        raise typer.Exit(code)
