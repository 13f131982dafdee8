"""What an engine tells of itself with its steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autellix.runtime.protocols import EngineStats
from autellix.runtime.told_stats import ToldStats


def stats(step: int, running: int = 2, waiting: int = 1, usage: float = 0.5) -> Any:
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        kv_cache_usage=usage,
        step_counter=step,
    )


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_calls_and_kv_are_as_told_and_the_step_is_measured_between_two() -> None:
    clock = Clock()
    told = ToldStats(clock=clock)
    heard: list[EngineStats] = []
    told.sink = heard.append
    told.record(scheduler_stats=stats(8), iteration_stats=None)
    clock.now_s = 0.4
    told.record(scheduler_stats=stats(16, running=3, waiting=0, usage=0.7), iteration_stats=None)
    assert [(s.running, s.waiting, s.kv_usage, s.step_s) for s in heard] == [
        (2, 1, 0.5, 0.0),
        (3, 0, 0.7, pytest.approx(0.05)),
    ]
    assert told.latest == heard[-1]


def test_time_without_calls_is_no_step() -> None:
    clock = Clock()
    told = ToldStats(clock=clock)
    told.record(scheduler_stats=stats(8), iteration_stats=None)
    clock.now_s = 0.8
    told.record(scheduler_stats=stats(16, running=0, waiting=0), iteration_stats=None)
    clock.now_s = 900.0
    told.record(scheduler_stats=stats(24), iteration_stats=None)
    assert told.latest.step_s == pytest.approx(0.1)


def test_outputs_without_statistics_tell_nothing() -> None:
    told = ToldStats()
    told.sink = lambda stats: pytest.fail("nothing was told")
    told.record(scheduler_stats=None, iteration_stats=None)


def test_who_listened_before_hears_all_of_it() -> None:
    calls: list[tuple[str, Any]] = []

    class Before:
        def record(self, **named: Any) -> None:
            calls.append(("record", sorted(named)))

        def log(self) -> None:
            calls.append(("log", None))

    told = ToldStats(Before())
    told.record(scheduler_stats=stats(8), iteration_stats=None, engine_idx=0)
    told.log()
    assert calls == [
        ("record", ["engine_idx", "iteration_stats", "scheduler_stats"]),
        ("log", None),
    ]
    ToldStats().log()  # with nobody there it goes nowhere
