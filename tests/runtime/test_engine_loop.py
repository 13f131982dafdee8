"""The bridge into the engine's event loop: results, errors and cancellation cross it both ways."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing

import pytest

from autellix.errors import EngineStoppedError
from autellix.runtime.engine_loop import EngineLoop

WITHIN_S = 10.0


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    loop = EngineLoop()
    yield loop
    loop.close()


class Source:
    """Counts up for ever; tells when it is under way and when it was closed."""

    def __init__(self, ends_with: Exception | None = None, length: int | None = None) -> None:
        self.closed, self.begun = threading.Event(), threading.Event()
        self.ends_with, self.length = ends_with, length

    async def numbers(self) -> AsyncGenerator[int, None]:
        number = 0
        try:
            while self.length is None or number < self.length:
                yield number
                number += 1
                self.begun.set()
                await asyncio.sleep(0)
            if self.ends_with is not None:
                raise self.ends_with
        finally:
            self.closed.set()


async def name_of_thread() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise ValueError("from inside")


async def run_for_ever(begun: threading.Event, ended: threading.Event) -> None:
    try:
        begun.set()
        await asyncio.Event().wait()
    finally:
        ended.set()


# ── one result ───────────────────────────────────────────────────────────────────────────────


def test_work_runs_on_the_loops_own_thread(loop: EngineLoop) -> None:
    assert loop.run(name_of_thread()) == "autellix-engine"
    assert asyncio.run(loop.arun(name_of_thread())) == "autellix-engine"
    assert not loop.is_current


def test_what_is_called_runs_on_the_loop_later_in_order(loop: EngineLoop) -> None:
    seen: list[object] = []
    inside, outside = threading.Event(), threading.Event()

    async def within() -> None:
        loop.call(seen.append, "first")
        loop.call(seen.append, "second")
        loop.call(inside.set)
        seen.append("before")

    loop.run(within())
    assert inside.wait(WITHIN_S)
    loop.call(lambda: seen.append(loop.is_current))
    loop.call(outside.set)
    assert outside.wait(WITHIN_S)
    assert seen == ["before", "first", "second", True]


def test_errors_come_out_as_they_are(loop: EngineLoop) -> None:
    with pytest.raises(ValueError, match="from inside"):
        loop.run(fail())
    with pytest.raises(ValueError, match="from inside"):
        asyncio.run(loop.arun(fail()))


def test_a_cancelled_caller_cancels_the_work(loop: EngineLoop) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def give_up() -> None:
        task = asyncio.create_task(loop.arun(run_for_ever(begun, ended)))
        await asyncio.to_thread(begun.wait, WITHIN_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert ended.wait(WITHIN_S)


def test_an_interrupted_caller_cancels_the_work(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()
    submit = loop.submit

    def submit_and_interrupt(work):
        future = submit(work)

        def result() -> None:
            begun.wait(WITHIN_S)
            raise KeyboardInterrupt

        monkeypatch.setattr(future, "result", result)
        return future

    monkeypatch.setattr(loop, "submit", submit_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.run(run_for_ever(begun, ended))
    assert ended.wait(WITHIN_S)


def test_a_blocking_call_on_the_loop_itself_is_refused(loop: EngineLoop) -> None:
    async def inside() -> None:
        loop.run(name_of_thread())

    with pytest.raises(EngineStoppedError, match="use the async form"):
        loop.run(inside())


def test_on_the_loop_itself_async_work_is_simply_awaited(loop: EngineLoop) -> None:
    async def inside() -> tuple[str, list[int]]:
        source = Source(length=3)
        numbers = [n async for n in loop.aiterate(source.numbers())]
        return await loop.arun(name_of_thread()), numbers

    assert loop.run(inside()) == ("autellix-engine", [0, 1, 2])


# ── streams ──────────────────────────────────────────────────────────────────────────────────


def test_streams_keep_their_order_and_end(loop: EngineLoop) -> None:
    async def collect() -> list[int]:
        return [n async for n in loop.aiterate(Source(length=5).numbers())]

    assert list(loop.iterate(Source(length=5).numbers())) == [0, 1, 2, 3, 4]
    assert asyncio.run(collect()) == [0, 1, 2, 3, 4]


def test_a_stream_that_fails_gives_what_it_had_and_then_the_error(loop: EngineLoop) -> None:
    seen: list[int] = []

    async def collect() -> None:
        async for number in loop.aiterate(Source(ValueError("late"), length=2).numbers()):
            seen.append(number)

    with pytest.raises(ValueError, match="late"):
        for number in loop.iterate(Source(ValueError("late"), length=2).numbers()):
            seen.append(number)
    with pytest.raises(ValueError, match="late"):
        asyncio.run(collect())
    assert seen == [0, 1, 0, 1]


def test_leaving_a_stream_closes_its_source(loop: EngineLoop) -> None:
    source = Source()
    with closing(loop.iterate(source.numbers())) as numbers:
        assert next(numbers) == 0
    assert source.closed.wait(WITHIN_S)


def test_leaving_an_async_stream_closes_its_source_even_when_the_loop_goes_too(
    loop: EngineLoop, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()

    async def peek() -> None:
        async with aclosing(loop.aiterate(source.numbers())) as numbers:
            assert await anext(numbers) == 0

    asyncio.run(peek())
    assert source.closed.wait(WITHIN_S)
    loop.close()
    assert "never retrieved" not in caplog.text


def test_a_cancelled_reader_closes_the_source(loop: EngineLoop) -> None:
    source = Source()

    async def give_up() -> None:
        async def read() -> None:
            async for _ in loop.aiterate(source.numbers()):
                pass

        task = asyncio.create_task(read())
        await asyncio.to_thread(source.begun.wait, WITHIN_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert source.closed.wait(WITHIN_S)


# ── the end ──────────────────────────────────────────────────────────────────────────────────


def test_closing_cancels_what_is_left_and_ends_the_thread() -> None:
    loop = EngineLoop("closing")
    begun, ended = threading.Event(), threading.Event()
    future = loop.submit(run_for_ever(begun, ended))
    begun.wait(WITHIN_S)
    loop.close()
    loop.close()
    assert ended.is_set()
    assert future.cancelled()
    assert "closing" not in [thread.name for thread in threading.enumerate()]


def test_a_busy_loop_is_not_waited_for_longer_than_wanted() -> None:
    loop = EngineLoop()
    begun, release = threading.Event(), threading.Event()

    async def block() -> None:
        begun.set()
        release.wait(WITHIN_S)

    loop.submit(block())
    begun.wait(WITHIN_S)
    loop.close(timeout_s=0.01)
    release.set()


def test_after_the_end_work_is_refused() -> None:
    loop = EngineLoop()
    loop.close()
    with pytest.raises(EngineStoppedError, match="has been stopped"):
        loop.run(name_of_thread())


def test_a_client_that_outlived_its_own_loop_is_not_reported(
    loop: EngineLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def collected(error: str) -> None:
        async def close() -> None:
            raise RuntimeError(error)

        await asyncio.wait({asyncio.create_task(close())})

    for error in ("Event loop is closed", "something else"):
        loop.run(collected(error))
    gc.collect()
    loop.run(asyncio.sleep(0))
    reported = [str(r.exc_info[1]) for r in caplog.records if r.exc_info]
    assert reported == ["something else"]
