"""Threads for what checkpointers do that may block, apart from those in which programs run."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_threads: ThreadPoolExecutor | None = None


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that may block, and await it.

    Not in the event loop's own threads: those may all be taken by nodes that wait for a model.
    """
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="autellix-checkpoint")
    work = functools.partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
