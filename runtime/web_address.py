"""What people give as the address and the key of a server, checked before anything is sent."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def web_address(url: str) -> SplitResult | None:
    """The parts of an address, with or without ``http://``; None where it is none."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        named = parts.hostname and not any(map(str.isspace, parts.netloc)) and parts.port != 0
    except ValueError:  # brackets that do not close, a port beyond 65535
        return None
    return parts if parts.scheme in ("http", "https") and named else None


def fits_header(key: str) -> bool:
    """Whether a key can be sent: visible characters of ASCII."""
    return key.isascii() and (not key or key.isprintable())
