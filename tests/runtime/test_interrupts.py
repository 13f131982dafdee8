"""Ctrl-C and SIGTERM: the first in order, the second at once."""

from __future__ import annotations

import os
import signal

import pytest

from autellix.runtime.interrupts import INTERRUPTED, Interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_interrupts_the_main_thread(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_it_calls_what_was_set_instead(number: signal.Signals) -> None:
    called = []
    with Interrupts() as handled:
        handled.instead = lambda: called.append(number)
        signal.raise_signal(number)
    assert called == [number]


def test_the_second_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with Interrupts() as handled:
        handled.instead = lambda: None
        signal.raise_signal(signal.SIGINT)
        assert ended == []
        signal.raise_signal(signal.SIGTERM)
    assert ended == [INTERRUPTED]
    assert INTERRUPTED == 130


def test_afterwards_the_signals_are_as_they_were() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
