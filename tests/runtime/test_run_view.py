"""Which view a run gets."""

from __future__ import annotations

import io
from contextlib import nullcontext

import pytest
from rich.console import Console

from autellix.errors import SettingsError
from autellix.runtime.run_view import run_view
from autellix.runtime.settings import Settings
from autellix.tracing.live_view import LiveView
from autellix.tracing.snapshot import ProgramGraph, RunSnapshot
from autellix.tracing.view import ProgressView


class Source:
    def snapshot(self) -> RunSnapshot:
        return RunSnapshot(elapsed_s=0.0)

    def graph(self, program: str) -> ProgramGraph | None:
        return None


def console(terminal: bool = True, term: str = "xterm") -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, _environ={"TERM": term})


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_on_a_terminal_a_run_is_shown_live() -> None:
    assert type(run_view(Source(), Settings(), console())) is LiveView


def test_in_pipes_dumb_terminals_and_continuous_integration_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert type(run_view(Source(), Settings(), console(terminal=False))) is ProgressView
    assert type(run_view(Source(), Settings(), console(term="dumb"))) is ProgressView
    monkeypatch.setenv("CI", "true")
    assert type(run_view(Source(), Settings(), console())) is ProgressView
    assert type(run_view(Source(), Settings(live=True), console())) is LiveView


def test_what_the_settings_say_holds() -> None:
    assert type(run_view(Source(), Settings(live=False), console())) is ProgressView
    assert isinstance(run_view(Source(), Settings(quiet=True, live=True), console()), nullcontext)


def test_the_time_between_two_pictures_is_a_possible_one() -> None:
    assert Settings.from_environment({"AUTELLIX_REFRESH": "0.5"}).refresh == 0.5
    for wrong in ("0", "-1", "nan"):
        with pytest.raises(SettingsError, match=r"at least 0\.1 seconds"):
            Settings.from_environment({"AUTELLIX_REFRESH": wrong})
    with pytest.raises(SettingsError, match="number of seconds, got 'soon'"):
        Settings.from_environment({"AUTELLIX_REFRESH": "soon"})
