"""Keeps guided decoding from running in circles.

JSON allows any amount of whitespace between its tokens, and a small model that has begun a line of
blanks goes on with blanks until its tokens are used up. Here every form in which a request can ask
for JSON (a schema, any object, the arguments of tools) gets a bound on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_AT_MOST = 1  # characters of whitespace in a row
_WHITESPACE = "max_whitespace_cnt"
_BACKENDS = ("auto", "xgrammar")  # the others know no such bound


def bound_whitespace(guided: Any, backend: str, is_plain: Callable[[], bool]) -> None:
    """Bound the whitespace of a request that asks for JSON; any other is left as it is.

    Args:
        guided: vLLM's ``StructuredOutputsParams``; changed in place.
        backend: the engine's back end of guided decoding.
        is_plain: whether xgrammar can follow the schema; where it cannot, the request is left to
            vLLM, which tries another back end or says what is wrong with it.
    """
    if guided.structural_tag:
        guided.structural_tag = _bounded(guided.structural_tag)
        return
    if guided.json is None and not guided.json_object:
        return
    if backend not in _BACKENDS or guided.whitespace_pattern is not None or not is_plain():
        return
    schema: Any = {"type": "object"} if guided.json is None else guided.json
    if isinstance(schema, str):
        schema = json.loads(schema)
    content = {"type": "json_schema", "json_schema": schema, _WHITESPACE: _AT_MOST}
    guided.structural_tag = json.dumps({"type": "structural_tag", "format": content})
    guided.json = guided.json_object = None


def _bounded(structural_tag: str) -> str:
    tag = json.loads(structural_tag)
    _bound(tag)
    return json.dumps(tag)


def _bound(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _bound(item)
    elif isinstance(value, dict):
        if value.get("type") == "json_schema" and value.get(_WHITESPACE) is None:
            value[_WHITESPACE] = _AT_MOST
        for key, item in value.items():
            if key != "json_schema":  # the user's own schema, which may use these words too
                _bound(item)
