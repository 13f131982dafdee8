"""The official suite of checkpointers: a wrapped saver passes it no less than an unwrapped one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from autellix.integrations.checkpoint import AutellixSaver
from autellix.integrations.checkpoint_provided import provided_saver

from .checkpointing import process

BASE = {"put", "put_writes", "get_tuple", "list", "delete_thread"}


class Stores:
    """Savers of every kind, each with a fresh store."""

    def __init__(self, folder: Path, postgres: Callable[[], str]) -> None:
        self._folder, self._postgres = folder, postgres

    @asynccontextmanager
    async def open(self, kind: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
        if kind == "memory":
            yield InMemorySaver()
        elif kind == "sqlite":
            path = str(self._folder / "threads.db")
            async with AsyncSqliteSaver.from_conn_string(path) as saver:
                yield saver
        elif kind == "postgres":
            async with AsyncPostgresSaver.from_conn_string(self._postgres()) as saver:
                await saver.setup()
                yield saver
        else:
            spec = {
                "memory as provided": lambda: "memory",
                "sqlite as provided": lambda: f"sqlite:{self._folder / 'provided.db'}",
                "postgres as provided": lambda: f"postgres:{self._postgres()}",
            }[kind]()
            with provided_saver(spec) as saver:
                yield saver


KINDS = [
    f"{store}{how}" for how in ("", " as provided") for store in ("memory", "sqlite", "postgres")
]


@pytest.fixture
def stores(tmp_path: Path, request: pytest.FixtureRequest) -> Stores:
    return Stores(tmp_path, lambda: request.getfixturevalue("postgres_url"))


def report(stores: Stores, kind: str, wrap: Callable[[Any], Any]) -> dict[str, bool | None]:
    """Which capabilities were found, and whether each passed."""

    @checkpointer_test(name=kind)
    async def factory() -> AsyncIterator[Any]:
        async with stores.open(kind) as saver:
            yield wrap(saver)

    results = asyncio.run(validate(factory)).results
    failures = [failure for result in results.values() for failure in result.failures or ()]
    assert not failures, failures
    return {name: result.passed for name, result in results.items() if result.detected}


@pytest.fixture(params=["alone", "in a session"])
def surroundings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    if request.param == "alone":
        yield
    else:
        with process(tmp_path / "journal.sqlite"):
            yield


@pytest.mark.parametrize("kind", KINDS)
def test_wrapped_savers_pass_and_have_what_unwrapped_ones_have(
    stores: Stores, kind: str, surroundings: None
) -> None:
    unwrapped = report(stores, kind, lambda saver: saver)
    wrapped = report(stores, kind, AutellixSaver)
    assert wrapped == unwrapped
    assert set(wrapped) >= BASE
    assert all(wrapped.values())


def test_a_saver_with_every_capability_is_wrapped_with_all_of_them(stores: Stores) -> None:
    results = report(stores, "memory", lambda saver: AutellixSaver(EverySaver()))
    assert set(results) == BASE | {"delete_for_runs", "copy_thread", "prune"}
    assert all(results.values())


class EverySaver(InMemorySaver):
    """A saver that can do whatever a saver may be able to do."""

    async def adelete_for_runs(self, run_ids: Any) -> None:
        for thread, spaces in list(self.storage.items()):
            for checkpoints in spaces.values():
                for id, (_, metadata, _) in list(checkpoints.items()):
                    if self.serde.loads_typed(metadata).get("run_id") in run_ids:
                        del checkpoints[id]
            del thread

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for found in reversed(list(self.list({"configurable": {"thread_id": source_thread_id}}))):
            self._copy(found, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)

    def _copy(self, found: Any, thread: str) -> None:
        own = found.config["configurable"]
        parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else ""
        config: Any = {
            "configurable": {
                "thread_id": thread,
                "checkpoint_ns": own["checkpoint_ns"],
                **({"checkpoint_id": parent} if parent else {}),
            }
        }
        versions = found.checkpoint["channel_versions"]
        stored = self.put(config, found.checkpoint, found.metadata, versions)
        for task, channel, value in found.pending_writes or ():
            self.put_writes(stored, [(channel, value)], task)

    def prune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            for checkpoints in self.storage[thread].values():
                for id in sorted(checkpoints)[:-1]:
                    del checkpoints[id]

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self.prune(thread_ids, strategy=strategy)
