"""Fixtures of all tests: one real engine that every test of the engine shares."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autellix.runtime.engine_host import EngineHost, engine_processes
from autellix.runtime.protocols import EngineStats
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings

# Few seats and a short context: queues and refusals are easily provoked.
SEATS, CONTEXT = 8, 2048
_IDLE_WITHIN_S = 20.0


def pytest_configure(config: pytest.Config) -> None:
    """The tests' settings are their own, whatever the shell has."""
    for name in [name for name in os.environ if name.startswith("AUTELLIX_")]:
        del os.environ[name]
    state = tempfile.TemporaryDirectory(prefix="autellix-state-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name  # the journal of threads lies there


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the engine is marked so."""
    for item in items:
        if "engine_host" in getattr(item, "fixturenames", ()):
            item.add_marker("engine")


def idle_stats(host: EngineHost) -> EngineStats:
    """The engine's state once the last call has left it, aborted ones included."""
    deadline = time.monotonic() + _IDLE_WITHIN_S
    while (stats := host.loop.run(host.engine.stats())).call_levels:
        assert time.monotonic() < deadline, f"calls stay in the engine: {stats.call_levels}"
    return stats


@pytest.fixture(scope="session")
def engine_host() -> Iterator[EngineHost]:
    """The embedded model on the real engine, with host memory for KV."""
    args = {"max_num_seqs": SEATS, "max_model_len": CONTEXT}
    settings = Settings(quiet=True, engine_args=args, kv_host_gib=0.25)
    host = EngineHost.start(settings, metrics=True)
    yield host
    stats = idle_stats(host)
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    host.stop()
    assert not engine_processes()


@contextmanager
def run_on(host: EngineHost) -> Iterator[Session]:
    """A fresh run on a running engine; at its end nothing is left open anywhere."""
    session = Session(Settings(quiet=True), host)
    session.start()
    use_session(session)
    try:
        yield session
    finally:
        session.finish()
        use_session(None)
    idle_stats(host)
    tables = session.recorder.tables()
    assert (tables["runs"], tables["calls"]) == (0, 0)
    assert not session.programs.table.programs
    assert not [p for p in session.record.document()["programs"] if p["status"] == "running"]


@pytest.fixture
def session(engine_host: EngineHost) -> Iterator[Session]:
    """A run on the shared engine."""
    with run_on(engine_host) as session:
        yield session
