"""The hooks: in once, out without a trace, never in the way."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import langchain_core.runnables.config
import langchain_core.tracers.context
import pytest
import uvloop
from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop, SyncPregelLoop

from autellix.integrations.recorder import Recorder
from autellix.integrations.strands import Strand
from tests.integrations.recording import Seen, State, World, chain_of, dag


def hooked_names() -> list[Any]:
    return [
        asyncio.BaseEventLoop.create_task,
        uvloop.Loop.__dict__.get("create_task"),
        ThreadPoolExecutor.submit,
        threading.Thread.start,
        contextvars.copy_context,
        langchain_core.runnables.config.copy_context,
        list(langchain_core.tracers.context._configure_hooks),
        *(
            loop.__dict__.get(name)
            for loop in (PregelLoop, SyncPregelLoop, AsyncPregelLoop)
            for name in ("put_writes", "_suppress_interrupt")
        ),
    ]


def test_uninstall_puts_everything_back() -> None:
    before = hooked_names()
    recorder = Recorder(Seen())
    recorder.install()
    during = hooked_names()
    recorder.install()
    assert hooked_names() == during, "a second install changes nothing"
    assert during[:6] != before[:6]
    recorder.uninstall()
    recorder.uninstall()
    assert hooked_names() == before


def test_a_hook_that_someone_wrapped_stays_and_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    original = threading.Thread.start
    recorder = Recorder(Seen())
    recorder.install()
    ours = threading.Thread.start

    def theirs(thread: threading.Thread) -> None:
        ours(thread)

    monkeypatch.setattr(threading.Thread, "start", original)  # what the test goes back to
    monkeypatch.setattr(threading.Thread, "start", theirs)
    recorder.uninstall()
    assert threading.Thread.start is theirs
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(vars(thread).get("run")))
    thread.start()
    thread.join()
    assert found == [None], "nothing was put around the thread's work"
    monkeypatch.undo()
    threading.Thread.start = original  # type: ignore[method-assign]


def test_a_second_recorder_takes_the_place_of_the_first(world: World) -> None:
    world.call("a")
    seen = Seen()
    second = Recorder(seen)
    second.install()
    world.call("b")
    second.close_main()
    second.uninstall()
    world.call("c")
    assert len(world.seen.starts) == 1
    assert len(seen.starts) == 1
    world.recorder.install()
    world.call("d")
    assert world.seen.edges() == dag("a>d")


def test_the_handler_is_seen_in_threads_that_nobody_hooked(world: World) -> None:
    import _thread

    finished = threading.Event()

    def raw() -> None:
        world.call("raw")
        finished.set()

    _thread.start_new_thread(raw, ())
    assert finished.wait(20)
    assert list(world.seen.ends.values()) == ["done"]


def test_the_running_call_is_known_in_every_path(world: World, mode: str) -> None:
    world.run(chain_of(n=world.node("a", "b")).compile(), {"xs": []}, mode)
    world.run(world.model, "bare", mode) if mode in ("sync", "async") else None
    told = world.seen.named()
    assert [told[call] for _, call in world.model.seen] == [name for name, _ in world.model.seen]
    assert world.recorder.current_call() is None


def test_a_fault_of_the_observer_never_reaches_the_program(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("observer is broken")

    world.seen.call_started = broken  # type: ignore[method-assign]
    world.seen.call_ended = broken  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, logger="autellix"):
        world.call("a")
        world.call("b")
    assert len(caplog.records) == 1, "logged once"
    assert "observer is broken" in caplog.text


def test_a_fault_of_the_recorder_never_reaches_the_program(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("strands are broken")

    monkeypatch.setattr(world.recorder.tracker._here, "member", broken)
    monkeypatch.setattr(world.recorder.tracker._here, "pin", broken)
    with caplog.at_level(logging.WARNING, logger="autellix"):
        graph = chain_of(n=world.node("a")).compile()
        assert graph.invoke({"xs": []}) == {"xs": ["a"]}
        assert world.arun(graph.ainvoke({"xs": []})) == {"xs": ["a"]}
        thread = threading.Thread(target=world.call, args=("b",))
        thread.start()
        thread.join()
    assert len(caplog.records) == 1
    monkeypatch.undo()


def test_a_program_that_outlives_its_run_is_told_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.recorder.install()
    graph = chain_of(n=world.node("late@never")).compile()
    thread = threading.Thread(target=graph.invoke, args=({"xs": []},))
    thread.start()
    world.gates.wait("late began")
    world.recorder.retire()
    told = list(world.seen.events)

    def broken(*args: Any) -> None:
        raise RuntimeError("the run is over")

    world.seen.call_ended = world.seen.program_ended = broken  # type: ignore[method-assign]
    world.gates.open("never")
    thread.join()
    assert world.seen.events == told
    assert not any(world.recorder.tables().values())
    assert not caplog.records


def test_uvloop_imported_later_is_hooked_and_never_imported_by_us() -> None:
    script = """
import sys, asyncio
from autellix.integrations.recorder import Recorder
from autellix.integrations.strands import Strand
class Nobody:
    def __getattr__(self, name): return lambda *args: None
recorder = Recorder(Nobody())
recorder.install()
assert "uvloop" not in sys.modules
import uvloop
recorder.exit_program(recorder.enter_program("p"))
assert "create_task" in vars(uvloop.Loop)
recorder.uninstall()
assert "create_task" not in vars(uvloop.Loop)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_an_unknown_langgraph_is_named_with_the_mend() -> None:
    script = """
import langgraph.pregel._loop as loop
del loop.PregelLoop.put_writes
from autellix.errors import VersionError
try:
    import autellix.integrations.recorder
except VersionError as error:
    assert "put_writes is gone" in str(error) and "pip install" in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_many_programs_leave_nothing_behind(world: World, mode: str) -> None:
    def inner(state: State) -> State:
        (world.model | (lambda message: message.content)).invoke("x")
        return {"i": 1}

    graph = chain_of(a=world.node("a"), sub=chain_of(n=inner).compile()).compile()
    for _ in range(5):
        world.run(graph, {"xs": []}, mode)
    assert world.recorder.tables() == {"runs": 0, "calls": 0, "programs": 0}
    assert len(world.seen.programs()) == 5


def test_strands_do_not_pile_up(world: World, loop: str) -> None:
    def strands() -> int:
        gc.collect()
        return sum(isinstance(thing, Strand) for thing in gc.get_objects())

    graph = chain_of(a=world.node("a"), b=world.node("b")).compile()

    async def some_of_everything(times: int) -> None:
        for _ in range(times):
            await graph.ainvoke({"xs": []})
            await asyncio.to_thread(graph.invoke, {"xs": []})
            await asyncio.gather(world.acall("x"), asyncio.to_thread(world.call, "y"))

    async def spawn(left: int) -> None:
        await world.acall("c")
        if left:
            heirs.append(asyncio.create_task(spawn(left - 1)))
        else:
            over.set()

    heirs: list[asyncio.Task[None]] = []
    over = asyncio.Event()

    async def main() -> None:
        await some_of_everything(3)
        before = strands()
        await some_of_everything(20)
        assert strands() <= before + 5
        await spawn(50)
        await over.wait()
        await asyncio.gather(*heirs)
        heirs.clear()
        await world.acall("end")
        assert strands() <= before + 5

    world.arun(main())
