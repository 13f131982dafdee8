"""What people give as the address and the key of a server, checked before anything is sent."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from autellix.errors import UsageError


def web_address(url: str) -> SplitResult | None:
    """The parts of an address, with or without ``http://``; None where it is none."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        named = parts.hostname and not any(map(str.isspace, parts.netloc)) and parts.port != 0
    except ValueError:  # brackets that do not close, a port beyond 65535
        return None
    return parts if parts.scheme in ("http", "https") and named else None


def check_key(key: str) -> None:
    """Refuse a key that cannot be sent in a header.

    Raises:
        UsageError: it has other characters than visible ones of ASCII.
    """
    if not (key.isascii() and key.isprintable()):
        raise UsageError("The key in AUTELLIX_KEY has characters that no key has.")
