"""A PostgreSQL of the tests' own: on loopback, in a temporary folder, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

WITHIN_S = 60.0


class NoPostgres(Exception):
    """It is not installed; the message says what to install."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server, give its address, and stop it again."""
    programs = _programs()
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="autellix-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        _run(user, programs / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-E", "UTF8")
        port = _free_port()
        options = ("listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=")
        arguments = [part for option in (*options, "fsync=off") for part in ("-c", option)]
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                **_as(user),
            )
        try:
            url = f"postgresql://tests@127.0.0.1:{port}/postgres"
            _await(server, url, folder / "log")
            yield url
        finally:
            server.send_signal(2)  # a fast shutdown: clients are cut off
            server.wait(WITHIN_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = shutil.which("initdb")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if found is None and not debian:
        raise NoPostgres("PostgreSQL is not installed: apt-get install postgresql")
    return Path(found).parent if found is not None else debian[0].parent


def _user() -> str | None:
    """Whom to run it as: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _as(user: str | None) -> dict[str, object]:
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _run(user: str | None, *command: object) -> None:
    parts = [str(part) for part in command]
    done = subprocess.run(parts, capture_output=True, text=True, cwd="/", **_as(user))  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _await(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
