"""Who may use a server: tenants, known by their keys.

Keys come from a file or from ``AUTELLIX_KEYS``, never from the command line, which everybody on a
machine can read. One tenant a line, words apart by blanks:

    alice  sk-4f0c...            a key, at least 16 characters
    bob    sha256:9b74...  share=2   the key's SHA-256 instead of the key; twice the share
    ops    sk-77aa...  operator  sees everybody's programs, and the metrics

A name may stand on several lines, one for each of its keys. ``#`` begins a comment.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from autellix.errors import SettingsError

_LEAST_KEY = 16
_HASHED = "sha256:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_TENANTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One who may use the server; empty for whoever can reach a server without keys.

    Attributes:
        share: of the engine, against the other tenants' shares, while all of them want it.
        operator: sees everybody's programs, and the metrics.
    """

    name: str
    share: float = 1.0
    operator: bool = False

    def program_of(self, session: str) -> str:
        """Id of the program that a session of the tenant is; no two tenants share one."""
        return f"{self.name}/{session}" if self.name else session


EVERYBODY = Tenant(name="", operator=True)


class Keys:
    """The keys of a server's tenants; keeps their digests only.

    Args:
        tenants: by the SHA-256 of their keys.
    """

    def __init__(self, tenants: dict[bytes, Tenant]) -> None:
        self._tenants = dict(tenants)

    def __len__(self) -> int:
        return len(self._tenants)

    @property
    def tenants(self) -> list[Tenant]:
        """All, by name."""
        return sorted(set(self._tenants.values()), key=lambda tenant: tenant.name)

    def add(self, key: str, tenant: Tenant) -> None:
        """Let the owner of a further key in."""
        self._tenants[_digest(key.encode())] = tenant

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Whose key that is; None for nobody's. Takes as long for any key."""
        sent = _digest(key)
        found: Tenant | None = None
        for digest, tenant in self._tenants.items():
            if hmac.compare_digest(sent, digest):
                found = tenant
        return found

    @classmethod
    def parse(cls, lines: Iterable[str], *, where: str) -> Self:
        """Read them.

        Args:
            where: what they come from, for messages; these never show a key.

        Raises:
            SettingsError: a line is none.
        """
        tenants: dict[bytes, Tenant] = {}
        by_name: dict[str, Tenant] = {}
        for number, line in enumerate(lines, start=1):
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            try:
                digest, tenant = _read(words)
                known = by_name.setdefault(tenant.name, tenant)
                if known != tenant:
                    raise ValueError(f"{tenant.name} has another share or right further up")
                if digest in tenants:
                    raise ValueError("the same key stands further up")
            except ValueError as fault:
                raise SettingsError(
                    f"{where}, line {number}: {fault}. A line is NAME KEY, then share=N or "
                    "operator where wanted."
                ) from None
            tenants[digest] = tenant
        if not tenants:
            raise SettingsError(f"{where} holds no keys; write one NAME KEY a line.")
        if len(by_name) > _MOST_TENANTS:
            raise SettingsError(f"{where} has {len(by_name)} tenants; {_MOST_TENANTS} at most.")
        return cls(tenants)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Read a file of keys.

        Raises:
            SettingsError: it cannot be read, others can read it, or a line of it is wrong.
        """
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as cause:
            reason = getattr(cause, "strerror", None) or str(cause)
            raise SettingsError(
                f"The keys cannot be read from {path}: {reason}. Give a text file of your own, one "
                "NAME KEY a line."
            ) from cause
        keys = cls.parse(text.splitlines(), where=str(path))
        plain = any(
            len(words) > 1 and not words[1].startswith(_HASHED)
            for words in (line.split("#", 1)[0].split() for line in text.splitlines())
        )
        if plain and stat.S_ISREG(mode) and mode & 0o077:
            raise SettingsError(
                f"Others can read the keys in {path}: chmod 600 it, or keep their SHA-256 there."
            )
        return keys


def _read(words: list[str]) -> tuple[bytes, Tenant]:
    if len(words) < 2:
        raise ValueError("it has a name and no key")
    name, key, *more = words
    if _NAME.fullmatch(name) is None:
        raise ValueError("a name has letters, digits, '.', '_' and '-', at most 64 of them")
    if key.startswith(_HASHED):
        if _DIGEST.fullmatch(key.removeprefix(_HASHED)) is None:
            raise ValueError("after sha256: come 64 digits, 0-9 and a-f")
        digest = bytes.fromhex(key.removeprefix(_HASHED))
    elif len(key) < _LEAST_KEY:
        raise ValueError(f"the key has fewer than {_LEAST_KEY} characters")
    else:
        digest = _digest(key.encode())
    tenant = Tenant(name=name)
    for word in more:
        if word == "operator":
            tenant = replace(tenant, operator=True)
        elif word.startswith("share="):
            tenant = replace(tenant, share=_share(word.removeprefix("share=")))
        else:
            raise ValueError("after the key may stand share=N and operator, nothing else")
    return digest, tenant


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.001 <= share <= 1000:
        raise ValueError(f"a share is a number from 0.001 to 1000, got {text!r}")
    return share


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
