"""The documents' picture of the live view: a real run, watched as ``autellix top`` does.

    python -m benchmarks.live_screenshot --out docs/images/live.svg

Starts ``autellix run`` on an example with fewer seats than calls, waits until its programs have a
history, and keeps one picture.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from autellix.runtime.top_client import RemoteRun
from autellix.runtime.top_runs import KnownRun, known_runs
from autellix.tracing.live import live_picture
from autellix.tracing.live_rates import Rates
from autellix.tracing.live_state import Choice

EXAMPLE = "examples/tree_search"
SEATS = 4
START_WITHIN_S = 600.0


def main() -> None:
    """Run, watch, keep a picture."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the SVG file")
    parser.add_argument("--width", type=int, default=120)
    parser.add_argument("--height", type=int, default=36)
    parser.add_argument("--calls", type=int, default=30, help="calls that have ended by then")
    given = parser.parse_args()
    command = [sys.executable, "-m", "autellix", "run", f"{EXAMPLE}.py", "--no-live"]
    command += ["--input", f"{EXAMPLE}.jsonl", "--engine-arg", f"max_num_seqs={SEATS}"]
    run = subprocess.Popen(command)
    try:
        remote = _remote(_started(run))
        choice, rates = Choice(), Rates()
        while True:
            snapshot = remote.snapshot()
            rates.take(snapshot)
            if snapshot.calls_done >= given.calls:
                break
            time.sleep(1)
        program = choice.focus(snapshot.programs, snapshot.elapsed_s)
        graph = remote.graph(program) if program else None
        picture = live_picture(
            snapshot, given.width, given.height, graph=graph, choice=choice, rates=rates
        )
        console = Console(
            record=True,
            width=given.width,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
        )
        console.print(picture, end="", soft_wrap=True)
        drawing = console.export_svg(title="autellix run", theme=MONOKAI)
        # No font from the network: any monospaced one will do, as widths are given.
        given.out.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL))
        run.wait()
    finally:
        run.terminate()
        run.wait()


def _started(run: subprocess.Popen[bytes]) -> KnownRun:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline and run.poll() is None:
        found = [known for known in known_runs() if known.pid == run.pid]
        if found:
            return found[0]
        time.sleep(0.5)
    raise SystemExit("the run did not start")


def _remote(known: KnownRun) -> RemoteRun:
    return RemoteRun(known.url, known.key)


if __name__ == "__main__":
    main()
