"""What the live view costs: processor time of a picture, drawn on a real terminal.

    python -m benchmarks.live_view --out benchmarks/results/live_view.json

All programs are live, each with calls that run, queue, or have ended; between two pictures some
calls end and others begin. A picture is everything that the view's thread does: the snapshot from
the record, the DAG of the program that is shown, the layout, and what is written to the terminal.
The engine's answer is given, as it costs the engine's process and not the view.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import random
import statistics
import struct
import termios
import time
from pathlib import Path
from threading import Thread

from rich.console import Console

from autellix.runtime.protocols import EngineStats
from autellix.runtime.run_watch import engine_calls, replica_row
from autellix.scheduler.tickets import Receipt
from autellix.tracing.events import CallEnded, CallStarted, ProgramStarted, RunStarted
from autellix.tracing.live_view import LiveView
from autellix.tracing.record import RunRecord
from autellix.tracing.snapshot import ProgramGraph, RunSnapshot

from .result_file import result_document, write_result

SIZES = ((80, 24), (120, 40), (200, 60))
LEVELS = 8
STEPS = 12  # calls of each program that have ended
NODES = ("plan", "search", "write", "judge")


class Crowd:
    """A run of many live programs; satisfies ``RunSource``."""

    def __init__(self, programs: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.record = RunRecord()
        self.record.apply(
            RunStarted(clock_s=0.0, engine="vllm", model="m", replicas=2, policy="atlas")
        )
        self.now_s = 1.0
        self._live: dict[str, str] = {}  # program -> its open call
        self._calls = 0
        for number in range(programs):
            program = f"agent-{number}"
            self.record.apply(ProgramStarted(at_s=1.0, program=program, name="agent"))
            self._live[program] = self._begin(program, None)
        for _ in range(STEPS):
            for program in list(self._live):
                self._step(program)

    def go_on(self, share: float = 0.2) -> None:
        """A second passes: some programs make their next call."""
        self.now_s += 1.0
        for program in self._random.sample(sorted(self._live), int(share * len(self._live))):
            self._step(program)

    def snapshot(self) -> RunSnapshot:
        """The run at this moment."""
        stats = self._stats()
        self._engine = engine_calls(stats)
        rows = [replica_row(index, each) for index, each in enumerate(stats)]
        return self.record.snapshot(
            self.now_s, replicas=rows, engine=self._engine, title="agent.py"
        )

    def graph(self, program: str) -> ProgramGraph | None:
        """The DAG of a program."""
        return self.record.graph(program, self.now_s, engine=self._engine)

    def _begin(self, program: str, parent: str | None) -> str:
        self._calls += 1
        call = f"{program}/{self._calls}"
        self.record.apply(
            CallStarted(
                at_s=self.now_s,
                program=program,
                call=call,
                kind="llm",
                name="m",
                node=self._random.choice(NODES),
                parents=((parent, "trigger"),) if parent else (),
            )
        )
        return call

    def _step(self, program: str) -> None:
        call = self._live[program]
        receipt = Receipt(
            program=program,
            call=call,
            service_s=self._random.uniform(0.1, 2.0),
            wait_s=self._random.uniform(0.0, 1.0),
            levels=(1,),
            preemptions=0,
            output_tokens=self._random.randint(1, 200),
        )
        self.record.apply(CallEnded(at_s=self.now_s, call=call, status="done", receipt=receipt))
        self._live[program] = self._begin(program, call)

    def _stats(self) -> list[EngineStats]:
        calls = list(self._live.values())
        half = len(calls) // 2
        return [self._replica(part) for part in (calls[:half], calls[half:])]

    def _replica(self, calls: list[str]) -> EngineStats:
        running, waiting = calls[: len(calls) // 2], calls[len(calls) // 2 :]
        spread = tuple(len(running) // LEVELS for _ in range(LEVELS))
        return EngineStats(
            running=len(running),
            waiting=len(waiting),
            running_by_level=spread,
            waiting_by_level=spread,
            call_levels={call: 1 + place % LEVELS for place, call in enumerate(calls)},
            waiting_calls=waiting,
            call_tokens=dict.fromkeys(running, 17),
            kv_usage=0.6,
            seats=len(running),
            step_s=0.03,
        )


def measured(programs: int, size: tuple[int, int], pictures: int, seed: int) -> dict[str, float]:
    """Milliseconds of processor time for a picture, and the share of a core at one a second."""
    crowd = Crowd(programs, seed)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    Thread(target=_drain, args=(master,), daemon=True).start()
    console = Console(file=os.fdopen(slave, "w"), color_system="truecolor", force_terminal=True)
    view = LiveView(crowd, console=console, refresh_s=1e9)
    view.show()
    spent_ms: list[float] = []
    for _ in range(pictures):
        crowd.go_on()
        begun = time.thread_time()
        view.refresh()
        spent_ms.append(1000 * (time.thread_time() - begun))
    view.hide()
    return {
        "width": size[0],
        "height": size[1],
        "median_ms": round(statistics.median(spent_ms), 2),
        "p95_ms": round(sorted(spent_ms)[int(0.95 * len(spent_ms))], 2),
        "core_share_at_one_a_second": round(statistics.fmean(spent_ms) / 1000, 5),
    }


def _drain(terminal: int) -> None:
    while True:
        try:
            os.read(terminal, 65536)
        except OSError:
            return


def main() -> None:
    """Measure at three sizes."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=500, help="live programs (default: 500)")
    parser.add_argument("--pictures", type=int, default=100, help="pictures a size (default: 100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for the result, else standard output")
    given = parser.parse_args()
    sizes = [measured(given.programs, size, given.pictures, given.seed) for size in SIZES]
    document = result_document(programs=given.programs, pictures=given.pictures, sizes=sizes)
    write_result(given.out, document)


if __name__ == "__main__":
    main()
