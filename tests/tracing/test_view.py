"""Views on a terminal and without one; the program's own output and input stay its own."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from autellix.tracing.live_lines import Line, Picture
from autellix.tracing.live_screen import LowerPart, WholeScreen
from autellix.tracing.live_view import LiveView
from autellix.tracing.snapshot import ProgramGraph, RunSnapshot
from autellix.tracing.view import ProgressView, View
from tests.tracing import runs
from tests.tracing.terminals import ROOT, Emulated, Process

NEVER_S = 1e6  # the view's own thread draws once, then the test does


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Snapshots that count how often they were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def snapshot(self) -> RunSnapshot:
        self.asked += 1
        return runs.snapshot(5, elapsed_s=float(self.asked), calls_done=self.asked)

    def graph(self, program: str) -> ProgramGraph | None:
        return runs.graph(runs.call(), program=program)


# ── without a terminal ───────────────────────────────────────────────────────────────────────────


def test_without_a_terminal_a_plain_line_is_printed_now_and_then():
    out, clock = io.StringIO(), Clock()
    view: View = ProgressView(
        Source(), console=Console(file=out, width=40), plain_every_s=10.0, clock=clock
    )
    assert isinstance(view, ProgressView)
    for clock.now in (0.0, 1.0, 9.9, 10.0, 19.0, 25.0):
        view.refresh()
    said = [line.split(" · ")[2:] for line in out.getvalue().splitlines()]
    assert said == [[f"{n} calls", "200 tokens/s", f"{n}.0 s"] for n in (1, 2, 3)]


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_the_plain_line(term):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, _environ={"TERM": term}, no_color=True)
    with LiveView(Source(), console=console, refresh_s=NEVER_S) as view:
        view.refresh()
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().startswith("programs: ")


def test_a_file_is_no_terminal_whatever_variables_say(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with (tmp_path / "log").open("w") as file:
        console = Console(file=file)
        assert console.is_terminal, "the variable has no effect; the test proves nothing"
        with LiveView(Source(), console=console, refresh_s=NEVER_S) as view:
            view.refresh()
    assert "\x1b[1;" not in (tmp_path / "log").read_text()


def test_a_source_that_fails_ends_neither_the_view_nor_the_run(caplog):
    class Fails(Source):
        def snapshot(self) -> RunSnapshot:
            raise RuntimeError("the engine is gone")

    with LiveView(Fails(), console=Emulated().console, refresh_s=NEVER_S):
        pass
    assert [r.message for r in caplog.records] == ["the view of the run could not be drawn"]


# ── the place on the screen ──────────────────────────────────────────────────────────────────────


def picture(lines: int, mark: str = "view") -> Picture:
    return Picture([Line((f"{mark} {number}", "")) for number in range(lines)])


def test_the_lower_part_lies_below_what_is_there_and_prints_scroll_above_it():
    terminal = Emulated(40, 12)
    terminal.feed("$ command\n")
    part = LowerPart(terminal.console, most=4)
    part.begin()
    part.paint(picture(4))
    for number in range(20):
        terminal.feed(f"print {number}\n")
    part.paint(picture(4, "again"))
    assert terminal.lines == [
        *(f"print {number}" for number in range(13, 20)),
        "",
        *(f"again {number}" for number in range(4)),
    ]
    part.end()
    assert terminal.lines == [*(f"print {number}" for number in range(13, 20)), *[""] * 5]
    assert terminal.screen.margins is None
    terminal.feed("$ ")
    assert terminal.lines[7] == "$"
    written = len(terminal.raw)
    part.end()
    assert len(terminal.raw) == written


def test_a_prompt_without_a_new_line_stays_where_it_is():
    terminal = Emulated(40, 12)
    terminal.feed("\n" * 30 + "name? ")
    part = LowerPart(terminal.console, most=4)
    part.begin()
    part.paint(picture(4))
    terminal.feed("ada")
    assert terminal.lines[7:] == ["name? ada", *(f"view {number}" for number in range(4))]


@pytest.mark.parametrize(("width", "height"), [(30, 9), (60, 30), (25, 24)])
def test_a_terminal_of_another_size_gets_the_picture_in_its_place_and_no_other(width, height):
    terminal = Emulated(40, 16)
    part = LowerPart(terminal.console, most=4)
    part.begin()
    for number in range(3):
        terminal.feed(f"print {number}\n")
    part.paint(picture(4))
    terminal.resize(width, height)
    part.paint(picture(4))
    terminal.feed("print 3\n")
    shown = [line for line in terminal.lines if line]
    assert [line for line in shown if line.startswith("view")] == [f"view {n}" for n in range(4)]
    assert terminal.lines[-4:] == [f"view {number}" for number in range(4)]
    assert "print 3" in shown


def test_a_terminal_too_small_for_a_picture_keeps_a_line_and_then_none():
    for height, lines in ((24, 20), (60, 50), (12, 8), (11, 1), (3, 1), (2, 0)):
        assert LowerPart(Emulated(80, height).console).size == (80, lines)


def test_the_whole_screen_is_taken_and_given_back():
    terminal = Emulated(40, 12)
    screen = WholeScreen(terminal.console)
    screen.begin()
    screen.paint(picture(12))
    assert terminal.lines == [f"view {number}" for number in range(12)]
    screen.end()
    assert terminal.raw.startswith("\x1b[?1049h")
    assert terminal.raw.endswith("\x1b[?1049l")


@pytest.mark.parametrize("kind", [ProgressView, LiveView])
def test_a_view_is_drawn_in_place_and_taken_off_at_the_end(kind):
    terminal = Emulated()
    with kind(Source(), console=terminal.console, refresh_s=NEVER_S) as view:
        view.refresh()
        assert any("/40" in line for line in terminal.lines)
        assert any("─ queues" in line for line in terminal.lines) == (kind is LiveView)
    assert not any(terminal.lines)
    drawn = len(terminal.raw)
    view.refresh()
    assert len(terminal.raw) == drawn


def test_a_terminal_without_utf8_gets_ascii():
    raw = io.BytesIO()
    console = Console(
        file=io.TextIOWrapper(raw, encoding="ascii", write_through=True),
        force_terminal=True,
        color_system=None,
        width=80,
        height=24,
        _environ={"TERM": "xterm"},
    )
    with LiveView(Source(), console=console, refresh_s=NEVER_S) as view:
        view.refresh()
    assert b"- queues ---" in raw.getvalue()


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_keys_select_sort_and_pause():
    terminal = Emulated(120, 50)
    with LiveView(source := Source(), console=terminal.console, refresh_s=NEVER_S) as view:
        view._has_keys = True
        view.refresh()
        view._pressed("j")
        view._pressed("down")
        view._pressed("s")
        view.refresh()
        assert any("by wait" in line for line in terminal.lines)
        assert view.choice.selected is not None
        mark = next(line for line in terminal.lines if line.startswith("▸"))
        assert view.choice.selected in mark
        view._pressed("p")
        view.refresh()
        asked = source.asked
        view.refresh()
        assert source.asked == asked, "a picture that stands still asks for nothing"
        assert any("paused" in line for line in terminal.lines)


PRELUDE = """
import sys, time, os, subprocess
from autellix.tracing.live_view import LiveView
from tests.tracing import runs
class Source:
    begun = time.monotonic()
    def snapshot(self):
        return runs.snapshot(5, elapsed_s=time.monotonic() - self.begun)
    def graph(self, program):
        return runs.graph(runs.call(), program=program)
view = LiveView(Source(), refresh_s=0.05)
def keys(taken):
    import termios
    while bool(termios.tcgetattr(0)[3] & termios.ICANON) == taken:
        time.sleep(0.01)
"""


def test_what_the_program_prints_stays_readable_above_the_view_and_after_it():
    process = Process(
        PRELUDE + "with view:\n"
        "    for n in range(40): print('answer', n, flush=True)\n"
        "    print('a remark', file=sys.stderr)\n"
        "    subprocess.run(['echo', 'a child'])\n"
        "    keys(True); input('next? ')\n"
        "print('after')\n"
    )
    process.until("─ queues")
    process.until("next?")  # the terminal's input is the program's from here on
    assert process.lines[:4] == ["answer 39", "a remark", "a child", "next?"]
    process.child.send("\r")
    assert process.to_the_end() == 0
    assert process.region is None
    assert "queues" not in process.text
    assert [line for line in process.lines if line][-1] == "after"
    scrolled = [
        "".join(line[x].data for x in range(80)).rstrip() for line in process.screen.history.top
    ]
    assert [line for line in scrolled if line.startswith("answer")][:3] == [
        "answer 0",
        "answer 1",
        "answer 2",
    ]


def test_input_in_the_program_gets_what_is_typed_and_keys_work_before_and_after():
    process = Process(
        PRELUDE + "with view:\n"
        "    keys(True); print('ready')\n"
        "    while view.choice.order != 'wait': time.sleep(0.01)\n"
        "    name = input('name? ')\n"
        "    print('hello', name)\n"
        "    print('read', sys.stdin.readline().strip())\n"
        "    keys(True); print('again')\n"
        "    while view.choice.order != 'service': time.sleep(0.01)\n"
    )
    process.until("ready")
    process.child.send("s")
    process.until("name?")
    process.child.send("ada sq\r")
    process.until("hello ada sq")
    process.child.send("a second line\r")
    process.until("read a second line")
    process.until("again")
    process.child.send("s")
    assert process.to_the_end() == 0


def test_a_child_that_reads_the_terminal_has_it():
    process = Process(
        PRELUDE + "with view:\n"
        "    keys(True)\n"
        "    child = subprocess.Popen(['sh', '-c', 'read x; echo child has $x; sleep 0.1'])\n"
        "    keys(False); print('now')\n"
        "    child.wait(); keys(True)\n"
        "print('order', view.choice.order)\n"
    )
    process.until("now")
    process.child.send("sss typed\r")
    assert process.to_the_end() == 0
    assert "child has sss typed" in process.text
    assert "order interest" in process.text


def test_a_program_that_takes_the_file_descriptor_has_the_terminal_for_good():
    process = Process(
        PRELUDE + "with view:\n"
        "    keys(True); fd = sys.stdin.fileno(); keys(False); print('now')\n"
        "    print('got', os.read(fd, 99).decode())\n"
        "    view.refresh()\n"
    )
    process.until("now")
    process.child.send("qs\r")
    assert process.to_the_end() == 0
    assert "got qs" in process.text


def test_ctrl_c_reaches_the_program_and_leaves_the_terminal_as_it_was():
    # One picture alone: Ctrl-C makes the terminal drop what is on its way, half a picture too.
    process = Process(
        PRELUDE + "view._refresh_s = 1e6\ntry:\n"
        "    with view:\n"
        "        keys(True); print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: print('stopped by hand')\n"
        "keys(False)\n"
    )
    process.until("ready")
    process.until("q close")
    process.child.sendintr()
    assert process.to_the_end() == 0
    assert "stopped by hand" in process.text
    assert process.region is None


def test_q_closes_the_view_and_the_program_runs_on():
    process = Process(
        PRELUDE + "with view:\n    keys(True); print('ready')\n    keys(False); print('runs on')\n"
    )
    process.until("ready")
    process.child.send("q")
    assert process.to_the_end() == 0
    assert "queues" not in process.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_however_the_process_is_killed_the_terminal_is_restored(number):
    code = (
        PRELUDE + "with view:\n"
        "    keys(True); view.refresh(); print('ready', flush=True)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
    )
    shell = (
        "import subprocess, sys, termios, time\n"
        f"subprocess.run([sys.executable, '-c', {code!r}])\n"
        "while not termios.tcgetattr(0)[3] & termios.ECHO: time.sleep(0.01)\n"
        "print('restored', bool(termios.tcgetattr(0)[3] & termios.ICANON))\n"
    )
    process = Process(shell)
    assert process.to_the_end() == 0
    assert "restored True" in process.text
    assert process.region is None


def test_a_terminal_that_changes_its_size_is_followed_at_once():
    process = Process(
        PRELUDE + "view._refresh_s = 1e6\nwith view:\n"
        "    print('ready'); keys(True); input('next? ')\n"
    )
    process.until("─ queues")
    process.until("next?")
    process.resize(120, 40)
    process.until("tools tokens")
    keys = " ↑↓ select"
    process.until_it_holds(lambda: process.lines[-1].startswith(keys), keys)
    process.child.send("\r")
    assert process.to_the_end() == 0


def test_a_closed_stdin_costs_the_keys_alone(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + "with view:\n    view.refresh()\nprint('fine')\n")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} {script} <&-"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "TERM": "xterm", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_a_redirected_stdout_gets_the_programs_output_and_nothing_else(tmp_path: Path):
    process = Process(
        PRELUDE + f"sys.stdout = open({str(tmp_path / 'out.txt')!r}, 'w')\n"
        "with view:\n    view.refresh(); print('answer', 42)\n",
        NO_COLOR="1",
    )
    process.until("─ queues")
    assert process.to_the_end() == 0
    assert (tmp_path / "out.txt").read_text() == "answer 42\n"
