"""Somebody who puts the terminal right when this process is killed and cannot do it itself."""

from __future__ import annotations

import contextlib
import os
import subprocess

# The shell in the background is nobody's child, so a program that waits for its own does not see
# it; it has a session of its own, so what ends this process at the terminal does not end it too.
_SCRIPT = """
exec 3<&0 4<&1
modes=$(stty -g <&4)
{ read -r word <&3 || { printf %b "$0"; stty "$modes" <&4; }; } &
"""


class Guard:
    """From its making until it is dismissed, the death of this process restores the terminal.

    Args:
        fd: the terminal.
        sequence: what is written to it then; its modes are set as they are now.
    """

    def __init__(self, fd: int, sequence: str) -> None:
        self._pipe: int | None = None
        reading, writing = os.pipe()
        try:
            subprocess.run(
                ["/bin/sh", "-c", _SCRIPT, "".join(f"\\0{ord(c):o}" for c in sequence)],
                stdin=reading,
                stdout=fd,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
            self._pipe = writing
        except (OSError, subprocess.SubprocessError):
            os.close(writing)  # no shell: then a kill leaves the terminal to the user's `reset`
        finally:
            os.close(reading)

    def dismiss(self) -> None:
        """The terminal has been restored; safe to call twice."""
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            with contextlib.suppress(OSError):
                os.write(pipe, b"done\n")
            os.close(pipe)
