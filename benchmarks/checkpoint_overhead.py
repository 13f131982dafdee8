"""What a checkpoint costs more with ``AutellixSaver`` than without, on SQLite on disk.

    python -m benchmarks.checkpoint_overhead --json benchmarks/results/checkpoint_overhead.json

Both sides put the same checkpoints (a conversation of 20 to 30 messages) into stores of their own,
each checkpoint first on one side and then on the other, the first side changing every time. The
wrapped side is a running thread with a finished call between any two checkpoints, so its account is
another one each time. What a finished call costs (booking its receipt: table, trace, account and
its entry in the journal) is no part of a put and measured apart, as ``receipt_us``. A put's
figures are medians: its duration, and the processor time that the process took for it, which a
busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from autellix.integrations.checkpoint import KEY, AutellixSaver
from autellix.integrations.checkpoint_stores import astore_of
from autellix.runtime.journal_threads import ThreadAccounts
from autellix.runtime.protocols import CallStart, ThreadLoad
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings
from autellix.scheduler.tickets import Receipt
from benchmarks.result_file import result_document, write_result

MESSAGES = 20
TOOLS = 3
THREAD = "bench"

Put = Callable[[Any, Any, Any, Any], Awaitable[Any]]


def checkpoint(number: int) -> tuple[Any, Any, Any]:
    """A checkpoint as an agent of some length has it, its metadata and its new versions."""
    made = empty_checkpoint()
    count = MESSAGES + number % 10
    messages = [
        AIMessage(f"{'The sea is wide and the ships are many. ' * 5}{n}") for n in range(count)
    ]
    made["channel_values"] = {"messages": messages}
    made["channel_versions"] = {"messages": f"{number:032}"}
    made["id"] = f"{number:08x}-0000-6000-8000-000000000000"
    return made, {"source": "loop", "step": number, "parents": {}}, dict(made["channel_versions"])


class Thread:
    """A thread that runs in a session and has tools of its own."""

    def __init__(self, folder: Path, store: str) -> None:
        self.session = Session(Settings(quiet=True, journal=folder / "journal.sqlite"))
        use_session(self.session)
        self.programs, self.store, self.calls = self.session.programs, store, 0
        self.programs.program_started(THREAD, "bench")
        load = ThreadLoad(store=store, thread=THREAD, checkpoint=None, snapshot=None)
        self.programs.thread_loaded(THREAD, load)
        threads: ThreadAccounts = self.programs.threads
        chance = random.Random(1)
        for number in range(300):
            took_s = 0.3 * chance.lognormvariate(0.0, 0.5)
            threads.tool_finished(THREAD, f"x{number}", f"tool {number % TOOLS}", took_s)
        self.receipt_s: list[float] = []

    def call(self) -> None:
        """One more finished call."""
        self.calls += 1
        call = f"c{self.calls}"
        self.programs.call_started(
            CallStart(program=THREAD, call=call, kind="llm", name="m", node=None, parents=())
        )
        self.programs.ticket(call)
        began = time.perf_counter()
        self.programs.receipt(
            Receipt(
                program=THREAD, call=call, service_s=0.1, wait_s=0.1, levels=(1,), preemptions=0
            )
        )
        self.receipt_s.append(time.perf_counter() - began)
        self.programs.served(call)
        self.programs.call_ended(call, "done", None)

    def metadata(self, metadata: Any, id: str) -> Any:
        """What a graph run does to a checkpoint's metadata."""
        account = self.programs.thread_snapshot(THREAD, self.store, THREAD)
        assert account is not None
        metadata[KEY] = account
        self.programs.thread_written(THREAD, self.store, THREAD, id, account["calls"])
        return metadata

    def close(self) -> None:
        """End the session."""
        use_session(None)
        self.session.close()


async def measure(bare: Put, wrapped: Put, thread: Thread, puts: int) -> dict[str, Any]:
    """Both sides in turns; medians, and what one has over the other."""
    config: Any = {"configurable": {"thread_id": THREAD, "checkpoint_ns": ""}}
    times: dict[str, list[float]] = {"bare": [], "autellix": []}
    cpu: dict[str, list[float]] = {"bare": [], "autellix": []}
    for number in range(puts):
        made, metadata, new = checkpoint(number)
        thread.call()
        for side in list(times) if number % 2 else reversed(times):
            began, used = time.perf_counter(), time.process_time()
            if side == "bare":
                await bare(config, made, dict(metadata), new)
            else:
                with_account = thread.metadata(dict(metadata), made["id"])
                await wrapped(config, made, with_account, new)
            times[side].append(time.perf_counter() - began)
            cpu[side].append(time.process_time() - used)
    return {"wall": compared(times), "cpu": compared(cpu)}


def compared(sides: dict[str, list[float]]) -> dict[str, float]:
    """Medians of both sides, microseconds, and what one has over the other."""
    middle = {side: statistics.median(values) * 1e6 for side, values in sides.items()}
    added = statistics.median(
        (ours - bare) * 1e6 for ours, bare in zip(sides["autellix"], sides["bare"], strict=True)
    )
    return {
        "bare_us": middle["bare"],
        "autellix_us": middle["autellix"],
        "added_us": added,
        "added_share": added / middle["bare"],
    }


def sync_puts(folder: Path, puts: int) -> dict[str, Any]:
    """The blocking saver."""
    folder.mkdir()
    paths = (folder / "bare.db", folder / "wrapped.db")
    one, two = (sqlite3.connect(path, check_same_thread=False) for path in paths)
    with closing(one), closing(two):
        bare, wrapped = SqliteSaver(one), AutellixSaver(SqliteSaver(two))
        thread = Thread(folder, asyncio.run(astore_of(wrapped.inner)))

        async def put(saver: Any, *what: Any) -> Any:
            return saver.put(*what)

        try:
            result = asyncio.run(
                measure(lambda *w: put(bare, *w), lambda *w: put(wrapped, *w), thread, puts)
            )
            return {**result, "receipt_us": statistics.median(thread.receipt_s) * 1e6}
        finally:
            thread.close()


async def async_puts(folder: Path, puts: int) -> dict[str, Any]:
    """The asynchronous saver."""
    folder.mkdir()
    async with (
        AsyncSqliteSaver.from_conn_string(str(folder / "bare.db")) as bare,
        AsyncSqliteSaver.from_conn_string(str(folder / "wrapped.db")) as inner,
    ):
        wrapped = AutellixSaver(inner)
        await bare.setup()
        await inner.setup()
        thread = Thread(folder, await astore_of(inner))
        try:
            return await measure(bare.aput, wrapped.aput, thread, puts)
        finally:
            thread.close()


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--puts", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        blocking = sync_puts(Path(folder) / "sync", args.puts)
        awaited = asyncio.run(async_puts(Path(folder) / "async", args.puts))
    write_result(args.json, result_document(puts=args.puts, sync=blocking, asynchronous=awaited))


if __name__ == "__main__":
    main()
