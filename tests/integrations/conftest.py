"""Fixtures of the recorder's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.recording import LOOPS, MODES, World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.recorder.install()
    try:
        yield world
    finally:
        world.recorder.close_main()
        world.recorder.uninstall()
    world.seen.check_antichains()
    assert set(world.seen.ends) == set(world.seen.starts), "a call was never closed"


@pytest.fixture(params=[*((m, "asyncio") for m in MODES), ("async", "uvloop"), ("astream", "uvloop")],
                ids=lambda p: f"{p[0]}-{p[1]}")  # fmt: skip
def mode(request: pytest.FixtureRequest, world: World) -> str:
    """Each way to run a graph; the asynchronous ones on both loops."""
    mode, world.loop = request.param
    return mode


@pytest.fixture(params=list(LOOPS))
def loop(request: pytest.FixtureRequest, world: World) -> str:
    world.loop = request.param
    return world.loop
