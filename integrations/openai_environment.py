"""Environment variables that send a process's OpenAI clients to the endpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

# The second is the older name, which langchain-openai still reads.
URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
KEY_VARIABLE = "OPENAI_API_KEY"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_PAST_PROXIES = ("NO_PROXY", "no_proxy")


@contextmanager
def openai_environment(base_url: str, key: str) -> Iterator[None]:
    """Inside, OpenAI clients of this process and its children talk to ``base_url``.

    Only this process's environment changes, and afterwards it is as it was before.
    """
    wanted = dict.fromkeys(URL_VARIABLES, base_url) | {KEY_VARIABLE: key}
    if any(os.environ.get(name) or os.environ.get(name.lower()) for name in _PROXIES):
        host = urlsplit(base_url).hostname or ""
        for name in _PAST_PROXIES:
            wanted[name] = ",".join(filter(None, (os.environ.get(name), host)))
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            elif name in os.environ:
                del os.environ[name]
