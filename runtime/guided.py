"""Keeps guided decoding from running in circles."""

from __future__ import annotations

import json
from typing import Any

_WHITESPACE = "max_whitespace_cnt"


def bounded_whitespace(structural_tag: str, at_most: int = 1) -> str:
    """The structural tag of a request's tools, with bounds on the whitespace between JSON tokens.

    JSON allows any amount of it, and a small model that has begun a line of blanks goes on with
    blanks until its tokens are used up.

    Args:
        structural_tag: the tag as vLLM wrote it, JSON.
        at_most: characters of whitespace in a row.
    """
    tag = json.loads(structural_tag)
    _bound(tag, at_most)
    return json.dumps(tag)


def _bound(value: Any, at_most: int) -> None:
    if isinstance(value, list):
        for item in value:
            _bound(item, at_most)
    elif isinstance(value, dict):
        if value.get("type") == "json_schema" and value.get(_WHITESPACE) is None:
            value[_WHITESPACE] = at_most
        for key, item in value.items():
            if key != "json_schema":  # the user's own schema, which may use these words too
                _bound(item, at_most)
