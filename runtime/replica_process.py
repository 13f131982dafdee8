"""What runs inside a replica's engine-core process: the scheduler, and a guard against orphans.

vLLM imports this module there by name (``scheduler_cls``).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

from ..scheduler.vllm_adapter import ProgramScheduler

_guarded = False


def end_with_parent() -> None:
    """End this process when its parent ends, however that ends (SIGKILL included).

    vLLM's workers watch the engine core in the same way, so they end with it.
    """
    global _guarded
    parent = multiprocessing.parent_process()
    if parent is None or _guarded:
        return
    _guarded = True

    def watch(sentinel: int) -> None:
        wait([sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(
        target=watch, args=(parent.sentinel,), name="autellix-parent", daemon=True
    ).start()


class ReplicaScheduler(ProgramScheduler):
    """The program scheduler as a replica runs it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        end_with_parent()
        super().__init__(*args, **kwargs)
