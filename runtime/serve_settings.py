"""What a server is made of, beside the engine behind it."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from autellix.errors import SettingsError

from .bounded_http import Bounds
from .http_server import LOOPBACK, Address
from .tenants import Keys

KEYS_VARIABLE = "AUTELLIX_KEYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Options of ``autellix serve`` that are not the engine's.

    Attributes:
        host, port: where to serve; port 0 is any that is free.
        keys_file: who may use it; None for ``AUTELLIX_KEYS``, and without either for everybody who
            reaches it, which has to be this machine alone.
        session_idle_s: a session in which nothing happens for so long is ended, seconds.
        max_sessions: open sessions of one tenant.
        max_calls: calls of one tenant at once.
        max_session_calls: calls of one session, from its first to its last.
        max_connections: connections of all clients together.
        max_body_mib: size of a request's body, MiB.
        tls_cert, tls_key: files for HTTPS.
        bounds: of each connection.
        body_s: time in which a request's body has to be complete, seconds.
    """

    host: str = LOOPBACK
    port: int = 8000
    keys_file: Path | None = None
    session_idle_s: float = 1800.0
    max_sessions: int = 10_000
    max_calls: int = 1_024
    max_session_calls: int = 10_000
    max_connections: int = 4_096
    max_body_mib: float = 16.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    bounds: Bounds = field(default_factory=Bounds)
    body_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.host.strip():
            raise SettingsError(
                f"--host is an address of this machine, such as {LOOPBACK}, or 0.0.0.0 for all "
                "that it has; it is empty."
            )
        if not 0 <= self.port <= 65_535:
            raise SettingsError(f"--port is from 0 to 65535, got {self.port}.")
        if not 0 < self.session_idle_s < float("inf"):
            raise SettingsError(
                f"--session-idle is a number of seconds above 0, got {self.session_idle_s:g}."
            )
        for name in ("max_sessions", "max_calls", "max_session_calls", "max_connections"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise SettingsError(f"{option} is at least 1, got {getattr(self, name)}.")
        if not 0 < self.max_body_mib <= 1024:
            raise SettingsError(f"--max-body-mib is from 0 to 1024, got {self.max_body_mib:g}.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("--tls-cert and --tls-key belong together: give both or neither.")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise SettingsError(f"There is no file {path} for TLS.")
        if self.tls_cert is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
            except (ssl.SSLError, OSError) as cause:
                raise SettingsError(
                    f"{self.tls_cert} and {self.tls_key} are no certificate with its key "
                    f"({cause}). Give both as PEM files."
                ) from cause

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def address(self) -> Address:
        """Where to serve, within bounds."""
        return Address(
            host=self.host,
            port=self.port,
            bounds=self.bounds,
            connections=self.max_connections,
            certificate=self.tls_cert,
            certificate_key=self.tls_key,
        )

    @property
    def max_body_bytes(self) -> int:
        """Size of a request's body, bytes."""
        return int(self.max_body_mib * 1024 * 1024)

    def keys(self, environ: MutableMapping[str, str] | None = None) -> Keys | None:
        """Who may use the server; None for everybody who reaches it.

        ``AUTELLIX_KEYS`` is taken out of the environment, which processes inherit.

        Raises:
            SettingsError: the keys are wrong, or there are none and other machines reach it.
        """
        environ = os.environ if environ is None else environ
        given = environ.pop(KEYS_VARIABLE, "")
        if self.keys_file is not None:
            return Keys.of_file(self.keys_file)
        if given.strip():
            return Keys.parse(given.replace(";", "\n").splitlines(), where=KEYS_VARIABLE)
        if not self.is_local:
            raise SettingsError(
                f"Other machines reach {self.host}, so who may use the server must be said: give "
                f"--keys-file FILE or {KEYS_VARIABLE}, one NAME KEY a line. Without keys it serves "
                f"this machine alone: --host {LOOPBACK}."
            )
        return None
