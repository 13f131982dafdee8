"""Views on a terminal and without one; the program's own output stays its own."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pexpect
import pytest
from rich.console import Console

from autellix.tracing.live import LiveView
from autellix.tracing.snapshot import ProgramRow, ReplicaRow, RunSnapshot
from autellix.tracing.view import ProgressView, View

ROOT = Path(__file__).resolve().parent.parent.parent
NEVER = 1e-6  # refreshes per second: the view's own thread draws once, then the test does


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Snapshots that count how often they were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> RunSnapshot:
        self.asked += 1
        return RunSnapshot(
            elapsed_s=float(self.asked),
            programs=(ProgramRow(id="line 1", name="agent", state="running"),),
            replicas=(ReplicaRow(index=0, running_by_level=(1,), waiting_by_level=(0,)),),
            calls_done=self.asked,
            programs_running=1,
            programs_total=2,
        )


def terminal(**more) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    values = {"file": out, "force_terminal": True, "width": 80, "height": 24, **more}
    return Console(_environ={"TERM": "xterm"}, color_system=None, **values), out


def test_without_a_terminal_a_plain_line_is_printed_now_and_then():
    out, clock = io.StringIO(), Clock()
    view: View = ProgressView(
        Source(), console=Console(file=out, width=40), plain_every_s=10.0, clock=clock
    )
    assert isinstance(view, ProgressView)
    for clock.now in (0.0, 1.0, 9.9, 10.0, 19.0, 25.0):
        view.refresh()
    assert out.getvalue().splitlines() == [
        "programs: 1 running · 0/2 done · 1 calls · 0 tokens/s · 1.0 s",
        "programs: 1 running · 0/2 done · 2 calls · 0 tokens/s · 2.0 s",
        "programs: 1 running · 0/2 done · 3 calls · 0 tokens/s · 3.0 s",
    ]


def test_a_live_view_without_a_terminal_is_the_plain_line():
    out = io.StringIO()
    LiveView(Source(), console=Console(file=out)).refresh()
    assert out.getvalue() == "programs: 1 running · 0/2 done · 1 calls · 0 tokens/s · 1.0 s\n"


def test_a_dumb_terminal_gets_the_plain_line():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, _environ={"TERM": "dumb"}, no_color=True)
    LiveView(Source(), console=console).refresh()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("kind", [ProgressView, LiveView])
def test_on_a_terminal_the_view_is_drawn_in_place_and_taken_off_at_the_end(kind):
    console, out = terminal()
    with kind(Source(), console=console, refresh_per_second=NEVER) as view:
        view.refresh()
        assert "programs: 1 running" in out.getvalue()
        assert ("level 1" in out.getvalue()) == (kind is LiveView)
        before = out.tell()
    assert "programs" not in out.getvalue()[before:].split("\x1b[2K")[-1]
    view.stop()
    drawn = out.tell()
    view.refresh()
    assert out.tell() == drawn


def test_a_terminal_without_utf8_gets_ascii():
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, encoding="ascii")
    console, _ = terminal(file=text)
    with LiveView(Source(), console=console, refresh_per_second=NEVER) as view:
        view.refresh()
    text.flush()
    assert b"programs: 1 running | 0/2 done" in raw.getvalue()


def test_a_source_that_fails_ends_neither_the_view_nor_the_run(caplog):
    def fails() -> RunSnapshot:
        raise RuntimeError("the engine is gone")

    console, _ = terminal()
    with LiveView(fails, console=console, refresh_per_second=NEVER):
        pass
    assert [record.message for record in caplog.records] == [
        "the view of the run could not be drawn"
    ]


SCRIPT = """
import sys
from autellix.tracing.live import LiveView
from autellix.tracing.snapshot import RunSnapshot
view = LiveView(lambda: RunSnapshot(elapsed_s=1.0, programs_running=3), refresh_per_second=1e-6)
with view:
    view.refresh()
    print("answer", 6 * 7)
    print("a remark", file=sys.stderr)
    view.refresh()
print("after")
"""


def spawned(command: str, args: list[str], **environment: str) -> str:
    child = pexpect.spawn(
        command,
        args,
        cwd=str(ROOT),
        env={**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment},
        dimensions=(24, 80),
        encoding="utf-8",
        timeout=60,
    )
    text = child.read()
    child.close()
    assert child.exitstatus == 0, text
    return text


def test_what_the_program_prints_stays_readable_above_the_view():
    text = spawned(sys.executable, ["-c", SCRIPT])
    assert "programs: " in text
    for line in ("answer 42\r\n", "a remark\r\n", "after\r\n"):
        assert line in text


def test_a_redirected_stdout_gets_the_programs_output_and_nothing_else(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = f"{sys.executable} {tmp_path}/script.py > {tmp_path}/out.txt"
    text = spawned("/bin/sh", ["-c", command], PYTHONPATH=str(ROOT), NO_COLOR="1")
    assert (tmp_path / "out.txt").read_text() == "answer 42\nafter\n"
    assert "programs: " in text
    assert "\x1b[32m" not in text
