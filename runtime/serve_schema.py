"""The document that describes a server's routes (OpenAPI): the engine's own, and ours."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ..integrations.openai_endpoint import CALL_ROUTES
from .client_sessions import ID

_ENGINE_ROUTES = (*CALL_ROUTES, "/v1/models", "/tokenize", "/detokenize", "/health")
_ID = {"type": "string", "pattern": f"^{ID.pattern}$"}
_ERROR = {"$ref": "#/components/schemas/AutellixError"}
# At most 128 characters, each up to four bytes, percent-encoded.
NAME = {
    "type": "string",
    "maxLength": 128 * 12,
    "pattern": "^([A-Za-z0-9._~:@=+/ -]|%[0-9A-Fa-f]{2})*$",
}
_CALL_HEADERS = (
    ("X-Session-ID", "The program that the call belongs to; made on first use.", _ID),
    ("X-Autellix-Call", "An id for the call, for others to name as their parent.", _ID),
    (
        "X-Autellix-Parents",
        "Ids of the calls that this one follows, with commas; empty for none.",
        {"type": "string"},
    ),
    (
        "X-Autellix-Name",
        "Name of the program, where the call is its first; up to 128 characters, percent-encoded.",
        NAME,
    ),
    (
        "X-Autellix-Node",
        "Node of the program's graph that makes the call: the same.",
        NAME,
    ),
)
_NUMBERS = (
    *("age_s", "idle_s", "service_s", "wait_s", "critical_path_s"),
    *("calls_running", "calls_done", "prompt_tokens", "cached_tokens", "output_tokens"),
)


def serve_schema(application: Any) -> dict[str, Any]:
    """The document.

    Args:
        application: the engine's own, which describes itself.
    """
    engine = copy.deepcopy(application.openapi())
    paths = {path: engine["paths"][path] for path in _ENGINE_ROUTES if path in engine["paths"]}
    for path, methods in paths.items():
        for method in methods.values():
            refusals = (400, 404, 408, 413, 415, 429) if "requestBody" in method else ()
            _also(method, refusals if path not in CALL_ROUTES else (*refusals, 409))
    for path in CALL_ROUTES:
        if path in paths:
            parameters = paths[path]["post"].setdefault("parameters", [])
            parameters += [_parameter("header", *header) for header in _CALL_HEADERS]
    paths |= _session_paths() | _watch_paths()
    for path, methods in paths.items():
        if path not in ("/health", "/openapi.json"):
            for method in methods.values():
                _also(method, (401, 403, 405))
    components = engine.get("components", {})
    schemas = {**components.get("schemas", {}), **_schemas()}
    return {
        "openapi": engine["openapi"],
        "info": {"title": "autellix serve", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": _used(paths, schemas),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _session_paths() -> dict[str, Any]:
    one = {"$ref": "#/components/schemas/Session"}
    id = _parameter("path", "id", "Of the session.", {"type": "string"})
    made = {
        "type": "object",
        "properties": {"id": _ID, "name": {"type": "string", "maxLength": 128}},
        "additionalProperties": False,
    }
    body = {"required": True, "content": {"application/json": {"schema": made}}}
    return {
        "/v1/sessions": {
            "post": _operation(
                "Open a session.", one, status=201, refusals=(400, 408, 409, 413, 415, 429)
            )
            | {"requestBody": body},
            "get": _operation(
                "The tenant's own sessions.",
                _page_of("data", one),
                refusals=(400,),
                parameters=_paging(),
            ),
        },
        "/v1/sessions/{id}/calls/{call}": {
            "get": _operation(
                "What a call has cost.",
                {"type": "object"},
                refusals=(404,),
                parameters=[id, _parameter("path", "call", "Of the call.", {"type": "string"})],
            )
        },
        "/v1/sessions/{id}": {
            "get": _operation("One session.", one, refusals=(404,), parameters=[id]),
            "delete": {
                "summary": "End a session, and stop its calls.",
                "parameters": [id],
                "responses": {"204": {"description": "It has ended."}, "404": _refusal()},
            },
        },
    }


def _watch_paths() -> dict[str, Any]:
    thing: dict[str, Any] = {"type": "object"}
    text = {"schema": {"type": "string"}}
    id = _parameter("path", "id", "Of the program.", {"type": "string"})
    page = {**_page_of("programs", thing), "required": ["run", "queues", "programs"]}
    metrics = _operation("Metrics for Prometheus.", None, refusals=())
    metrics["responses"]["200"] = {"description": "The page.", "content": {"text/plain": text}}
    order = _parameter(
        "query", "order", "What comes first.", {"type": "string", "default": "interest"}
    )
    return {
        "/v1/programs": {
            "get": _operation(
                "Programs, totals and queues.",
                page,
                refusals=(400,),
                parameters=[*_paging(), order],
            )
        },
        "/v1/programs/{id}": {
            "get": _operation("A program's DAG.", thing, refusals=(404,), parameters=[id])
        },
        "/v1/queues": {
            "get": _operation(
                "Totals and queues.", thing, refusals=(400,), parameters=[*_paging(), order]
            )
        },
        "/metrics": {"get": metrics},
        "/openapi.json": {"get": _operation("This document.", thing, refusals=())},
    }


def _schemas() -> dict[str, Any]:
    properties = {name: {"type": "number"} for name in _NUMBERS}
    session = {
        "id": {"type": "string"},
        "object": {"const": "session"},
        "name": {"type": "string"},
        **properties,
    }
    error = {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    }
    return {
        "Session": {"type": "object", "properties": session, "required": list(session)},
        "AutellixError": {
            "type": "object",
            "properties": {"error": error},
            "required": ["error"],
        },
    }


def _operation(
    summary: str,
    schema: Mapping[str, Any] | None,
    *,
    status: int = 200,
    refusals: Iterable[int],
    parameters: list[Any] | None = None,
) -> dict[str, Any]:
    reply: dict[str, Any] = {"description": summary}
    if schema is not None:
        reply["content"] = {"application/json": {"schema": schema}}
    made = {"summary": summary, "parameters": parameters or [], "responses": {str(status): reply}}
    _also(made, refusals)
    return made


def _also(operation: dict[str, Any], refusals: Iterable[int]) -> None:
    for status in refusals:
        operation.setdefault("responses", {}).setdefault(str(status), _refusal())


def _refusal() -> dict[str, Any]:
    return {"description": "Refused.", "content": {"application/json": {"schema": _ERROR}}}


def _parameter(where: str, name: str, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": text,
        "schema": schema,
    }


def _paging() -> list[dict[str, Any]]:
    return [
        _parameter(
            "query",
            "limit",
            "How many at most.",
            {"type": "integer", "minimum": 1, "maximum": 1000},
        ),
        _parameter(
            "query",
            "offset",
            "How many are left out before.",
            {"type": "integer", "minimum": 0, "maximum": 999_999_999},
        ),
    ]


def _page_of(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name: {"type": "array", "items": schema},
            "next_offset": {"type": ["integer", "null"]},
        },
        "required": [name],
    }


def _used(paths: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas that paths refer to, directly or through others."""
    found: dict[str, Any] = {}
    todo = [paths]
    prefix = "#/components/schemas/"
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        elif isinstance(value, Mapping):
            reference = value.get("$ref")
            if isinstance(reference, str) and reference.startswith(prefix):
                name = reference.removeprefix(prefix)
                if name not in found and name in schemas:
                    found[name] = schemas[name]
                    todo.append(schemas[name])
            todo += value.values()
    return found
