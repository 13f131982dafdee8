"""Fixtures of the recorder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integrations.recording import LOOPS, MODES, World, recording


@pytest.fixture
def world() -> Iterator[World]:
    with recording() as world:
        yield world


WAYS = [*((mode, "asyncio") for mode in MODES), ("async", "uvloop"), ("astream", "uvloop")]


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(way))
def mode(request: pytest.FixtureRequest, world: World) -> str:
    """Each way to run a graph; the asynchronous ones on both loops."""
    mode, world.loop = request.param
    return mode


@pytest.fixture(params=list(LOOPS))
def loop(request: pytest.FixtureRequest, world: World) -> str:
    world.loop = request.param
    return world.loop


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of a PostgreSQL that the tests have for themselves."""
    from .postgres_server import NoPostgres, postgres_server

    with ExitStack() as stack:
        try:
            yield stack.enter_context(postgres_server())
        except NoPostgres as missing:
            pytest.skip(str(missing))
