"""A wrapped checkpointer is the saver it wraps, and carries the accounts of threads."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, interrupt

from autellix.errors import SettingsError
from autellix.integrations.checkpoint import CHANNEL, KEY, AutellixSaver
from autellix.integrations.checkpoint_provided import provided_saver
from autellix.integrations.checkpoint_stores import astore_of, store_of
from autellix.integrations.checkpoint_watch import wrapping_savers
from autellix.runtime.journal import Journal, ThreadRef

from .checkpointing import ProcessRun, account_of, invoke, on, process
from .test_checkpoint_conformance import EverySaver

METHODS = [
    name
    for name in dir(BaseCheckpointSaver)
    if inspect.isfunction(getattr(BaseCheckpointSaver, name)) and not name.startswith("_")
]


def asking(run: ProcessRun) -> Any:
    return run.chain(a=(1.0,), ask=lambda state: {"xs": [run.call(2.0), interrupt("?")]})


# ── the wrapper ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [InMemorySaver, SqliteSaver, AsyncSqliteSaver, EverySaver])
def test_it_implements_what_the_inner_saver_implements_and_nothing_else(kind: type) -> None:
    inner = kind.__new__(kind)
    wrapper = type(AutellixSaver(inner))
    always = {"get_next_version", "with_allowlist", "get", "aget"}
    for name in METHODS:
        base = getattr(BaseCheckpointSaver, name)
        has, should = (getattr(cls, name) is not base for cls in (wrapper, kind))
        assert name in always or has == should, name


def test_what_else_the_inner_saver_has_is_reached_through_it() -> None:
    inner = SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))
    saver = AutellixSaver(inner)
    saver.setup()
    assert saver.conn is inner.conn
    assert saver.serde is inner.serde
    with pytest.raises(AttributeError):
        _ = saver.no_such_thing


def test_wrapping_twice_is_wrapping_once() -> None:
    saver = AutellixSaver(InMemorySaver())
    assert AutellixSaver(saver) is saver
    assert isinstance(saver, AutellixSaver)
    assert isinstance(saver, BaseCheckpointSaver)


def test_a_saver_without_task_paths_is_not_given_any(tmp_path: Path) -> None:
    class Old(InMemorySaver):
        def put_writes(self, config: Any, writes: Any, task_id: str) -> None:  # type: ignore[override]
            super().put_writes(config, writes, task_id)

    saver = AutellixSaver(Old())
    assert "task_path" not in inspect.signature(saver.put_writes).parameters
    assert "task_path" in inspect.signature(AutellixSaver(InMemorySaver()).put_writes).parameters
    with process(tmp_path / "journal") as run:
        graph = run.chain(a=(1.0,)).compile(checkpointer=saver)
        assert graph.invoke({"xs": []}, on("t"))["xs"] == ["1.0"]


def test_context_managers_give_the_wrapper() -> None:
    saver = AutellixSaver(InMemorySaver())
    with saver as entered:
        assert entered is saver

    async def enter() -> Any:
        async with saver as inside:
            return inside

    assert asyncio.run(enter()) is saver


# ── without a session ────────────────────────────────────────────────────────────────────────


def test_without_a_session_accounts_are_carried_on_as_they_are(tmp_path: Path) -> None:
    saver = AutellixSaver(InMemorySaver())
    with process(tmp_path / "journal.sqlite") as run:
        graph = run.chain(a=(1.0,), b=(2.0,)).compile(checkpointer=saver)
        graph.invoke({"xs": []}, on("t"))
    before = account_of(graph, on("t"))
    graph.update_state(on("t"), {"xs": ["edited"]})
    assert account_of(graph, on("t")) == before


def test_without_a_session_nothing_is_written_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTELLIX_JOURNAL", str(tmp_path / "journal.sqlite"))
    saver = AutellixSaver(InMemorySaver())
    config = saver.put(on("t", checkpoint_ns=""), empty_checkpoint(), {"step": 0}, {})
    found = saver.get_tuple(config)
    assert found is not None
    assert KEY not in found.metadata
    saver.delete_thread("t")
    assert saver.get_tuple(on("t", checkpoint_ns="")) is None
    assert not (tmp_path / "journal.sqlite").exists()


# ── what is stored ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_interrupt_carries_the_account_and_langgraph_does_not_see_it(
    tmp_path: Path, mode: str
) -> None:
    inner = InMemorySaver()
    with process(tmp_path / "journal.sqlite") as run:
        graph = asking(run).compile(checkpointer=AutellixSaver(inner))
        invoke(graph, {"xs": []}, on("t"), mode)
        unwrapped = asking(run).compile(checkpointer=inner)
        stored = inner.get_tuple(on("t", checkpoint_ns=""))
        seen = graph.checkpointer.get_tuple(on("t", checkpoint_ns=""))
    assert [w[1] for w in stored.pending_writes].count(CHANNEL) == 1
    assert CHANNEL not in [w[1] for w in seen.pending_writes]
    assert (stored.metadata[KEY]["calls"], seen.metadata[KEY]["calls"]) == (1, 2)
    # A LangGraph that knows nothing of us goes on with the thread all the same.
    assert invoke(unwrapped, Command(resume="x"), on("t"), mode)["xs"] == ["1.0", "2.0", "x"]


def test_a_snapshot_of_a_newer_version_is_left_alone_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = InMemorySaver()
    with process(tmp_path / "one.sqlite") as run:
        graph = run.chain(a=(1.0,)).compile(checkpointer=AutellixSaver(inner))
        graph.invoke({"xs": []}, on("t"))
    found = inner.get_tuple(on("t", checkpoint_ns=""))
    newer = {**found.metadata, KEY: {**found.metadata[KEY], "v": 7}}
    inner.put(found.parent_config or found.config, found.checkpoint, newer, {})
    with process(tmp_path / "other.sqlite") as run:
        graph = run.chain(a=(1.0,)).compile(checkpointer=AutellixSaver(inner))
        graph.invoke({"xs": []}, on("t"))
        assert run.attained() == [0.0]
    assert "version 7" in caplog.text
    assert "version 1" in caplog.text


@pytest.mark.parametrize("strategy", ["keep_latest", "delete"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_copies_and_prunes_reach_the_journal(tmp_path: Path, strategy: str, mode: str) -> None:
    inner = EverySaver()
    saver = AutellixSaver(inner)
    inner.__dict__["_autellix_store"] = store = "a store of ours"
    with process(tmp_path / "journal.sqlite") as run:
        graph = run.chain(a=(1.0,), b=(2.0,)).compile(checkpointer=saver)
        graph.invoke({"xs": []}, on("t"))
        if mode == "sync":
            saver.copy_thread("t", "copy")
            saver.prune(["t"], strategy=strategy)
        else:
            asyncio.run(saver.acopy_thread("t", "copy"))
            asyncio.run(saver.aprune(["t"], strategy=strategy))
        run.tickets.clear()
        graph.invoke({"xs": []}, on("copy"))
        assert run.attained() == [3.0, 4.0]
        assert run.tickets[0].program_service_s == 3.0
    journal = Journal(tmp_path / "journal.sqlite")
    left = journal.history(ThreadRef(store, "t"))
    assert (left is None) == (strategy == "delete")
    assert left is None or (left.entries, left.account.calls) == (1, 2)
    journal.close()


def test_async_methods_never_touch_the_journal_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[threading.Thread] = []
    for name in ("append", "history", "delete", "copy", "compact"):
        method = getattr(Journal, name)

        def watched(self: Any, *args: Any, _method: Any = method) -> Any:
            used.append(threading.current_thread())
            return _method(self, *args)

        monkeypatch.setattr(Journal, name, watched)

    async def use() -> None:
        path = str(tmp_path / "threads.db")
        async with AsyncSqliteSaver.from_conn_string(path) as inner:
            saver = AutellixSaver(inner)
            config: Any = on("t", checkpoint_ns="")
            await saver.aget_tuple(config)
            config = await saver.aput(config, empty_checkpoint(), {"step": 0}, {})
            await saver.aput_writes(config, [("__interrupt__", "x")], "task")
            await saver.aget_tuple(config)
            await saver.adelete_thread("t")

    with process(tmp_path / "journal.sqlite"):
        asyncio.run(use())
    assert len(used) >= 4
    assert threading.main_thread() not in used


# ── stores ───────────────────────────────────────────────────────────────────────────────────


def test_a_store_is_known_again_by_another_saver(tmp_path: Path) -> None:
    def opened(name: str) -> str:
        with provided_saver(f"sqlite:{tmp_path / name}") as saver:
            return store_of(saver)

    async def awaited(name: str) -> str:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / name)) as saver:
            return await astore_of(saver)

    assert opened("a.db") == asyncio.run(awaited("a.db")) == f"sqlite:{tmp_path / 'a.db'}"
    assert opened("b.db") != opened("a.db")


def test_stores_in_memory_are_all_different() -> None:
    one, other = InMemorySaver(), InMemorySaver()
    nameless = SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))
    stores = [store_of(saver) for saver in (one, other, nameless)]
    assert len(set(stores)) == 3
    assert all(store.startswith("memory:") for store in stores)
    assert store_of(one) == stores[0]


def test_postgres_stores_are_known_by_address_and_database(postgres_url: str) -> None:
    with provided_saver(f"postgres:{postgres_url}") as saver:
        store = store_of(saver)
    assert store.startswith("postgres:127.0.0.1:")
    assert store.endswith("/postgres")


@pytest.mark.parametrize("spec", ["", "sqlite", "sqlite:", "mysql:x", "memory:x", "postgres"])
def test_a_checkpointer_that_there_is_not_is_told_what_there_is(spec: str) -> None:
    with pytest.raises(SettingsError, match="sqlite:PATH"):
        provided_saver(spec)


def test_a_checkpointer_that_cannot_be_opened_is_told_why(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="folder that exists"),
        provided_saver(f"sqlite:{tmp_path / 'nowhere' / 'a.db'}"),
    ):
        pass
    with (
        pytest.raises(SettingsError, match="Check address") as raised,
        provided_saver("postgres:postgresql://me:secret@127.0.0.1:1/none"),
    ):
        pass
    assert "secret" not in str(raised.value)


# ── every graph of the process ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_savers_of_the_users_own_are_wrapped_transparently(tmp_path: Path, mode: str) -> None:
    inner = InMemorySaver()
    with process(tmp_path / "journal.sqlite") as run:
        graph = run.chain(a=(1.0,)).compile(checkpointer=inner)
        stop = wrapping_savers()
        try:
            for _ in range(2):
                invoke(graph, {"xs": []}, on("t"), mode)
            assert graph.checkpointer is inner
            assert account_of(graph, on("t"))["calls"] == 2
        finally:
            stop()
        invoke(graph, {"xs": []}, on("other"), mode)
        assert KEY not in graph.get_state(on("other")).metadata


def test_graphs_without_a_saver_get_the_default_where_they_run_on_a_thread(
    tmp_path: Path,
) -> None:
    default = InMemorySaver()
    with process(tmp_path / "journal.sqlite") as run:
        graph = run.chain(a=(1.0,)).compile()
        never = run.chain(a=(1.0,)).compile(checkpointer=False)
        stop = wrapping_savers(default)
        try:
            graph.invoke({"xs": []})
            never.invoke({"xs": []}, on("never"))
            graph.invoke({"xs": []}, on("t"))
            assert account_of(graph, on("t"))["calls"] == 1
        finally:
            stop()
    threads = {found.config["configurable"]["thread_id"] for found in default.list(None)}
    assert threads == {"t"}
