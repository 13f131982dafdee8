"""What every process of a replica runs first: a guard against orphans and slow ends.

multiprocessing imports a child's main module before anything else; a replica's processes get this
one in place of the user's script (:class:`~.engine_start.EngineProcesses`), and so do the
processes that they start themselves. It must stay light: it is in the way of every start.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import getpass
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path

SCRATCH_VARIABLE = "VLLM_RPC_BASE_PATH"  # where vLLM puts its sockets
SCRATCH_PREFIX = "autellix-"
OWNER_LOCK = "owner"  # in that folder; held while the process lives that made it
# An engine that has nothing to do ends in order within a second.
_GRACE_S = 2
_LOOK_AGAIN_S = 0.02
_OWNER_LOOKS = 25  # an ending owner's lock goes a moment after the owner


def end_with_parent() -> None:
    """End this process when its parent ends, however that ends (SIGKILL included)."""
    threading.Thread(target=_watch, name="autellix-parent", daemon=True).start()


def _watch() -> None:
    while (parent := multiprocessing.parent_process()) is None:
        time.sleep(_LOOK_AGAIN_S)  # known only after the main module has been imported
    wait([parent.sentinel])
    _remove_scratch()
    # First in order, so that shared memory is given back. The alarm ends what hangs: unlike a
    # thread it works in an interpreter that is being taken apart.
    signal.alarm(_GRACE_S)
    os.kill(os.getpid(), signal.SIGTERM)


def keep_files_in_scratch() -> None:
    """Temporary files of this process go where they are removed, however it ends.

    What torch compiles stays where it is: the next run uses it again.
    """
    scratch = _scratch()
    if scratch is not None:
        # Named as torch itself would name it.
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        tempfile.tempdir = str(scratch)


def _scratch() -> Path | None:
    scratch = Path(os.environ.get(SCRATCH_VARIABLE, ""))
    return scratch if scratch.name.startswith(SCRATCH_PREFIX) else None


def _remove_scratch() -> None:
    """Remove the folder of temporary files if it is the owner that has ended.

    Where a parent in between was killed, an engine core, other replicas still use it.
    """
    if (scratch := _scratch()) is None:
        return
    for _ in range(_OWNER_LOOKS):
        with contextlib.suppress(OSError), (scratch / OWNER_LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(scratch, ignore_errors=True)
            return
        time.sleep(_LOOK_AGAIN_S)


def _end_now() -> None:
    """Leave without taking the interpreter apart, which takes seconds with torch in it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__mp_main__":
    end_with_parent()
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        keep_files_in_scratch()
    atexit.register(_end_now)
