"""What the views are told of the engine."""

from __future__ import annotations

from autellix.runtime.protocols import EngineStats
from autellix.runtime.run_watch import engine_calls, replica_row


def test_calls_are_known_while_a_replica_is_lost() -> None:
    serving = EngineStats(seats=4, call_levels={"c": 2})
    assert engine_calls([serving, EngineStats(state="lost")]).known
    assert engine_calls([serving, EngineStats(state="failed")]).levels == {"c": 2}


def test_calls_are_not_known_where_a_replica_that_serves_does_not_answer() -> None:
    assert not engine_calls([EngineStats(seats=4), EngineStats()]).known
    assert not engine_calls([EngineStats(state="lost")]).known
    assert not engine_calls([]).known


def test_a_row_says_whether_the_replica_serves() -> None:
    assert replica_row(1, EngineStats(state="lost")).state == "lost"
    assert replica_row(0, EngineStats(seats=2)).state == "serving"
