"""Schemathesis against the server's own description: nothing that it tries is a server's fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from autellix.integrations.openai_endpoint import CALL_ROUTES
from autellix.runtime.engine_host import EngineHost
from autellix.runtime.serving import Server
from tests.runtime.serve_client import Client, serving

EVERYDAY, SLOW = 4, 120


@pytest.fixture(scope="module")
def server(engine_host: EngineHost) -> Iterator[Server]:
    with serving(engine_host, max_sessions=100_000) as server:
        yield server


def _shorten(body: dict[str, Any]) -> None:
    """Most of the time would go into tokens that nobody reads."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if name in body or name != "max_completion_tokens":
            body[name] = 2
    if isinstance(body.get("n"), int):
        body["n"] = min(body["n"], 2)


def attempt(server: Server, examples: int) -> int:
    """Try every operation with so many requests; how many were made."""
    document = Client(server).http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    made = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        def one(case: schemathesis.Case) -> None:
            nonlocal made
            made += 1
            if isinstance(case.body, dict) and case.path in CALL_ROUTES:
                _shorten(case.body)
            response = case.call(timeout=60)
            assert response.status_code < 500, f"{case.operation.label}: {response.text[:500]}"

        one()
    return made


def test_no_request_is_answered_with_a_server_error(server: Server) -> None:
    assert attempt(server, EVERYDAY) > 50


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_request_of_many_is_answered_with_a_server_error(server: Server) -> None:
    assert attempt(server, SLOW) > 1000
