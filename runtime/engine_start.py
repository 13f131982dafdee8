"""Conditions under which a replica's processes start: environment, log file, signals."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import Any

from autellix.errors import EngineStartError

from . import replica_process
from .machine import available_memory_gib, cores
from .process_tree import descendants, environment_of, kill_all
from .replica_process import SCRATCH_VARIABLE
from .scratch import Scratch

# On this few cores, pinning threads to cores only makes processes queue for them.
_FEW_CORES = 8
_LOGS_KEPT = 50
_NO_COMPILING = "TORCHDYNAMO_DISABLE"
# More than a start was seen to take in this process.
_FILE_DESCRIPTORS = 128
# Memory of the engine's processes beside weights and KV cache, measured with the embedded model.
_PROCESSES_GIB = 2.0


def state_folder() -> Path:
    """Folder for logs (XDG state home), created if need be."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(home) / "autellix"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def new_log() -> Path:
    """Where an engine that starts now logs to; of earlier ones the newest are kept."""
    folder = state_folder()
    for old in sorted(folder.glob("engine-*.log"), key=_changed)[: -_LOGS_KEPT + 1]:
        old.unlink(missing_ok=True)
    return folder / f"engine-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # another run has removed it
        return 0.0


def set_engine_environment(*, debug: bool, replicas: int = 1) -> None:
    """Defaults that vLLM reads from the environment when it is imported; the user's own stay.

    Args:
        debug: whether vLLM is to tell what it does.
        replicas: on a CPU they share its cores and its memory.
    """
    defaults = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_LEVEL": "INFO" if debug else "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if is_cpu_build():
        kv_gib = int(available_memory_gib() / 6 / replicas)
        defaults["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, min(4, kv_gib)))
        if replicas > 1:
            defaults["OMP_NUM_THREADS"] = str(max(1, cores() // replicas))
        # Threads that spin for long starve each other as soon as anything else runs here; threads
        # that never do are woken too late, hundreds of times a step. So they spin for some 20 us.
        defaults["GOMP_SPINCOUNT"] = "20000"
        if replicas > 1 or cores() <= _FEW_CORES:
            defaults["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if not debug:
        # What it says while it is imported, before it sets its own handlers up.
        logging.getLogger("vllm").addHandler(logging.NullHandler())


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the one for machines without a GPU."""
    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False


def threads_are_bound() -> bool:
    """Whether vLLM pins its threads to cores."""
    return os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") != "nobind"


def check_memory(replicas: int) -> None:
    """Refuse early, in words, what would otherwise end in the kernel's memory killer.

    Raises:
        EngineStartError: so many replicas do not fit.
    """
    if not is_cpu_build():
        return
    kv_gib = float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 4)
    need, have = replicas * (kv_gib + _PROCESSES_GIB), available_memory_gib()
    if have < need:
        who = "the engine needs" if replicas == 1 else f"{replicas} replicas need"
        raise EngineStartError(
            f"Not enough memory: {who} about {need:.1f} GiB, {replicas * kv_gib:.0f} GiB of them "
            f"for the KV cache, and {have:.1f} GiB are free. Free some, or set "
            "VLLM_CPU_KVCACHE_SPACE to fewer GiB."
        )


def check_file_descriptors() -> None:
    """Refuse a start that would run out of file descriptors half-way.

    The library below vLLM's sockets ends the whole process when it is refused one.

    Raises:
        EngineStartError: too few are left.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        left = allowed - len(list(Path("/proc/self/fd").iterdir()))
    except FileNotFoundError:
        return  # not Linux: not known
    except OSError:
        left = 0
    if left < _FILE_DESCRIPTORS:
        raise EngineStartError(
            f"Only {left} of {allowed} file descriptors are left, and a replica may need "
            f"{_FILE_DESCRIPTORS}. Raise the limit (ulimit -n), or close files and connections."
        ) from OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def log_vllm_to(log: Path) -> None:
    """VLLM's messages of this process go to ``log`` too, not among the program's own output."""
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("vllm")
    logger.handlers = [handler]
    logger.propagate = False


class EngineProcesses:
    """Where the processes of an engine's replicas start; all starts under way share it.

    Processes spawned inside :meth:`starting` know nothing of the terminal or the script:

    1. Ctrl-C goes to every process of the terminal's group; the engine must outlive it long enough
       to be stopped in order. A blocked signal mask is inherited by all descendants.
    2. What is typed is the program's and the live view's: they have no input. Their output goes to
       a log; with ``debug`` it stays on the terminal.
    3. They do not import the user's script: without an ``if __name__ == "__main__"`` it would run
       once more in every process. In its place they import ``replica_process``, which ends them
       when this process ends.
    4. Their sockets and temporary files lie in a folder of their own, not loose among others.
    5. Without ``compiling`` they compile nothing, not even the small functions that vLLM compiles
       when a request first needs them, as for log probabilities: with a C++ compiler that takes
       many seconds, in the middle of a call and of all others.

    Args:
        debug: leave their output on the terminal.
    """

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug
        self._folder = Scratch()
        self._scratch = Path(self._folder.name)
        self._lock = threading.Lock()
        self._starts = 0
        self._conditions = contextlib.ExitStack()
        self._log: Path | None = None

    @contextlib.contextmanager
    def starting(self, *, compiling: bool = True) -> Iterator[Path | None]:
        """Conditions for a start, in this thread and all it spawns; the log that it writes to."""
        with self._lock:
            if not self._starts:
                self._conditions = self._set_conditions(compiling)
            self._starts += 1
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield self._log
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            with self._lock:
                self._starts -= 1
                if not self._starts:
                    self._conditions.close()

    def _set_conditions(self, compiling: bool) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(_main_module_of_children(replica_process.__name__))
        if SCRATCH_VARIABLE not in os.environ:
            os.environ[SCRATCH_VARIABLE] = str(self._scratch)
            stack.callback(os.environ.pop, SCRATCH_VARIABLE, None)
        if not compiling and _NO_COMPILING not in os.environ:
            os.environ[_NO_COMPILING] = "1"
            stack.callback(os.environ.pop, _NO_COMPILING, None)
        self._log = None if self._debug else new_log()
        output = "" if self._log is None else f' >>"{self._log}" 2>&1'
        launcher = self._scratch / "python"
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@" </dev/null{output}\n')
        launcher.chmod(0o700)
        multiprocessing.set_executable(str(launcher))
        stack.callback(multiprocessing.set_executable, sys.executable)
        # Where it does not run yet, the first process would start it, and that unblocks SIGINT.
        resource_tracker.ensure_running()
        return stack

    def close(self) -> None:
        """Remove the folder; the processes have ended, or do now: of a start that was given up."""
        mark = f"{SCRATCH_VARIABLE}={self._scratch}"
        tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
        kill_all(
            pid
            for pid in descendants([os.getpid()])
            if pid != tracker and mark in environment_of(pid)
        )
        self._folder.cleanup()


@contextlib.contextmanager
def _main_module_of_children(module: str) -> Iterator[None]:
    prepare = spawn.get_preparation_data

    def prepare_with_module(name: str) -> dict[str, Any]:
        data = {k: v for k, v in prepare(name).items() if not k.startswith("init_main")}
        return {**data, "init_main_from_name": module}

    spawn.get_preparation_data = prepare_with_module
    try:
        yield
    finally:
        spawn.get_preparation_data = prepare
