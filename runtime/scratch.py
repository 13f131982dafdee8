"""A folder for the temporary files of a replica's processes, their sockets above all.

1. It is removed with its replica. Where this process is killed, the replica's processes see that
   and remove the folder.
2. Where these are killed too, the next start removes it: a folder whose owner lives is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from .replica_process import OWNER_LOCK, SCRATCH_PREFIX

# A socket's path has at most 107 characters, of which its folder's and its own name take 55.
_LONGEST_SOCKET_FOLDER = 50


class Scratch(tempfile.TemporaryDirectory[str]):
    """A fresh folder, locked until it is removed or its owner has ended."""

    def __init__(self) -> None:
        where = _temporary_folder()
        _remove_abandoned(where)
        super().__init__(prefix=SCRATCH_PREFIX, dir=where, ignore_cleanup_errors=True)
        # Locked before it has the name by which others look for it.
        unnamed = Path(self.name) / f".{OWNER_LOCK}"
        self._lock = unnamed.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(unnamed.with_name(OWNER_LOCK))

    def cleanup(self) -> None:
        """Remove the folder; safe to call twice."""
        super().cleanup()
        self._lock.close()


def _temporary_folder() -> Path:
    where = tempfile.gettempdir()
    if len(where) > _LONGEST_SOCKET_FOLDER and os.access("/tmp", os.W_OK):
        where = "/tmp"
    return Path(where)


def _remove_abandoned(where: Path) -> None:
    """Remove the folders of our form whose lock nobody holds: their runs were killed."""
    for lock in where.glob(f"{SCRATCH_PREFIX}*/{OWNER_LOCK}"):
        with contextlib.suppress(OSError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
