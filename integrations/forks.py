"""Fork points: where a program splits into tasks and threads.

Two kinds. Where the child inherits the parent's context variables (asyncio tasks, copied contexts)
the frontier is pinned in the context just before. Where it inherits nothing (pool jobs, threads)
the work carries where it came from; what the user's code sees in its context does not change.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

_MISSING: Any = object()
_C_MODULE = "_contextvars"


class Forking(Protocol):
    """What the hooks ask of the recorder; neither may raise."""

    def pin(self) -> None:
        """Pin the running strand's frontier in the current context."""
        ...

    def branch(self, *, whole: bool) -> Callable[..., Any]:
        """A runner ``run(function, *args, **kwargs)`` for work that is about to be handed on.

        Args:
            whole: the work is a whole thread, not a job of a pool.
        """
        ...


class ForkHooks:
    """The hooks, put in and taken out as one."""

    def __init__(self, forking: Forking) -> None:
        self._forking = forking
        self._undo: list[Callable[[], None]] = []
        self._live = False
        self._uvloop = False
        self._submitting = threading.local()

    def install(self) -> None:
        """Hook every fork point."""
        if self._live:
            return
        self._live = True
        self._replace(asyncio.BaseEventLoop, "create_task", self._create_task)
        self._replace(ThreadPoolExecutor, "submit", self._submit)
        self._replace(threading.Thread, "start", self._start)
        self._replace_copy_context()
        self.hook_uvloop()

    def hook_uvloop(self) -> None:
        """Hook uvloop too, once the program has imported it; cheap to ask again."""
        if self._live and not self._uvloop and "uvloop" in sys.modules:
            loop = getattr(sys.modules["uvloop"], "Loop", None)
            if loop is not None:  # None while the module is being imported
                self._uvloop = True
                self._replace(loop, "create_task", self._create_task)

    def uninstall(self) -> None:
        """Put everything back as it was; a hook that someone wrapped since stays, idle."""
        self._live = self._uvloop = False
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: type, name: str, around: Callable[[Any], Any]) -> None:
        before = owner.__dict__.get(name, _MISSING)
        after = around(getattr(owner, name))
        setattr(owner, name, after)

        def restore() -> None:
            if owner.__dict__.get(name) is not after:
                return
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(restore)

    def _create_task(self, original: Any) -> Any:
        def create_task(
            loop: Any, coro: Any, *args: Any, context: Any = None, **kwargs: Any
        ) -> Any:
            if context is not None:  # copied before, and pinned then
                return original(loop, coro, *args, context=context, **kwargs)
            if self._live:
                self._forking.pin()
            return original(loop, coro, *args, **kwargs)

        return create_task

    def _submit(self, original: Any) -> Any:
        def submit(
            executor: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
        ) -> Future[Any]:
            if not self._live:
                return original(executor, fn, *args, **kwargs)
            # A thread that the pool starts for this job is no fork of its own.
            self._submitting.now = True
            try:
                return original(executor, self._forking.branch(whole=False), fn, *args, **kwargs)
            finally:
                self._submitting.now = False

        return submit

    def _start(self, original: Any) -> Any:
        def start(thread: Any) -> None:
            if not self._live or getattr(self._submitting, "now", False):
                return original(thread)
            run_in_branch, run = self._forking.branch(whole=True), thread.run
            before = thread.__dict__.get("run", _MISSING)

            def restore() -> None:
                if before is _MISSING:
                    thread.__dict__.pop("run", None)
                else:
                    thread.run = before

            def run_once() -> None:
                restore()
                run_in_branch(run)

            thread.run = run_once
            try:
                original(thread)
            except BaseException:
                restore()
                raise

        return start

    def _replace_copy_context(self) -> None:
        original = contextvars.copy_context

        def copy_context() -> contextvars.Context:
            if self._live:
                self._forking.pin()
            return original()

        _rebind(original, copy_context)
        self._undo.append(lambda: _rebind(copy_context, original))


def _rebind(before: Any, after: Any) -> None:
    """Give every module that holds ``copy_context`` under this name the other function."""
    for name, module in sys.modules.copy().items():  # other threads may import meanwhile
        names = getattr(module, "__dict__", None)
        if name != _C_MODULE and names is not None and names.get("copy_context") is before:
            names["copy_context"] = after
