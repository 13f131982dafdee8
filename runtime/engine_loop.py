"""One background event loop owns the engine; everybody else comes in through this bridge.

Callers may sit in any thread and on any event loop. Cancelling the caller cancels its work here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

from autellix.errors import EngineStoppedError

T = TypeVar("T")

_END = object()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EngineLoop:
    """A thread with an event loop in it, and ways to run things there from outside."""

    def __init__(self, name: str = "autellix-engine") -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(_on_fault)
        self._loop.run_forever()

    @property
    def is_current(self) -> bool:
        """Whether the caller already runs on this loop's thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start ``work`` on the loop without waiting for it."""
        if self._loop.is_closed():
            work.close()
            raise EngineStoppedError("The engine has been stopped; start a new session.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have ``function`` called on the loop soon; nothing where the loop has ended."""
        if self.is_current:  # it need not be woken
            self._loop.call_soon(function, *args)
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and block until it is done; Ctrl-C cancels it.

        Raises:
            EngineStoppedError: when called on the engine's own thread, which would deadlock.
        """
        if self.is_current:
            work.close()
            raise EngineStoppedError(
                "A synchronous call was made on the engine's own event loop and would block it for "
                "ever; use the async form (ainvoke, astream) there."
            )
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` from any event loop; cancelling the caller cancels it."""
        if self.is_current:
            return await work
        return await asyncio.wrap_future(self.submit(work))

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Iterate ``source`` from plain code; closing the iterator closes the source."""
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        pump = self.submit(_pump(source, items.put))
        try:
            while (item := items.get()) is not _END:
                yield item
            pump.result()
        finally:
            pump.cancel()

    async def aiterate(self, source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Iterate ``source`` from another event loop; closing or cancelling closes the source."""
        if self.is_current:
            async for item in source:
                yield item
            return
        home = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()

        def put(item: Any) -> None:
            with contextlib.suppress(RuntimeError):  # who listened has closed their loop since
                home.call_soon_threadsafe(items.put_nowait, item)

        pump = self.submit(_pump(source, put))
        try:
            while (item := await items.get()) is not _END:
                yield item
            await asyncio.wrap_future(pump)
        finally:
            pump.cancel()

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what is left, stop the thread and close the loop; safe to call twice.

        Args:
            timeout_s: how long to wait for a thread that is busy; it then ends by itself.
        """
        if self._loop.is_closed():
            return
        if not self.is_current and self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                cancelling = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
                cancelling.result(timeout_s)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._loop.close()


async def in_thread(work: Callable[[], T], *, name: str) -> T:
    """Run blocking ``work`` in a thread of its own that nobody waits for at the process's end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as cause:
            error = cause
        with contextlib.suppress(RuntimeError):  # the loop has been closed since
            loop.call_soon_threadsafe(resolve, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future


def _on_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
        # HTTP clients close themselves on whatever loop runs where they are collected: one that
        # has outlived its own loop may be collected here, cannot, and is no concern of anyone.
        return
    loop.default_exception_handler(context)


async def _pump(source: AsyncGenerator[T, None], put: Any) -> None:
    try:
        async for item in source:
            put(item)
    finally:
        try:
            await source.aclose()
        finally:
            put(_END)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
