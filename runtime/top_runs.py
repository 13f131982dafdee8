"""Which runs there are on this machine: a small file for each, readable by its user alone."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .engine_start import state_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A run that can be watched.

    Attributes:
        pid: its process.
        born: when that process began, in the kernel's clock ticks since the machine's start; with
            the pid it names the process for good.
        url: where it answers.
        key: lets its user in.
        title: what runs.
        since: when it began, seconds since 1970.
    """

    pid: int
    born: int
    url: str
    key: str
    title: str
    since: float

    @property
    def is_alive(self) -> bool:
        """Whether its process is still there."""
        return _born(self.pid) == self.born


@contextlib.contextmanager
def announced(url: str, key: str, title: str) -> Iterator[None]:
    """Inside, the run can be found; where its file cannot be written, it is watched by URL only."""
    run = KnownRun(
        pid=os.getpid(),
        born=_born(os.getpid()) or 0,
        url=url,
        key=key,
        title=title,
        since=time.time(),
    )
    path: Path | None = None
    with contextlib.suppress(OSError):
        path = _write(run)
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def known_runs() -> list[KnownRun]:
    """The runs of this user, the newest first; files that dead processes have left are removed."""
    runs: list[KnownRun] = []
    for path in _folder().glob("*.json"):
        try:
            if path.lstat().st_uid != os.getuid() or stat.S_IMODE(path.lstat().st_mode) & 0o077:
                continue  # anybody could have written it
            run = KnownRun(**json.loads(path.read_text()))
            alive = run.is_alive
        except (OSError, ValueError, TypeError):
            alive = False
            run = None
        if run is not None and alive:
            runs.append(run)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(runs, key=lambda run: -run.since)


def _folder() -> Path:
    """A folder that is the user's alone: the session's, where there is one."""
    session = os.environ.get("XDG_RUNTIME_DIR")
    home = Path(session) / "autellix" if session and Path(session).is_dir() else state_folder()
    folder = home / "runs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _write(run: KnownRun) -> Path:
    path = _folder() / f"{run.pid}-{run.url.rsplit(':', 1)[-1]}.json"
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(run), file)
    fresh.replace(path)
    return path


def _born(pid: int) -> int | None:
    """When a process began; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything; what follows it is plain.
    state, *rest = text.rpartition(")")[2].split()
    return None if state == "Z" else int(rest[18])
