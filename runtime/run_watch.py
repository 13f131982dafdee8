"""A session as the views see it: its programs from the record, its queues from the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from autellix.errors import AutellixError

from ..tracing.snapshot import EngineCalls, ProgramGraph, ReplicaRow, RunSnapshot
from .protocols import EngineStats
from .session import Session

_STATS_TIMEOUT_S = 5.0


class RunWatch:
    """Satisfies ``RunSource``; ``snapshot`` and ``graph`` are for any thread but the engine's.

    Args:
        session: the run.
        title: what runs.

    Attributes:
        programs_total: how many programs it will have, where that is known.
    """

    def __init__(self, session: Session, *, title: str = "") -> None:
        self._session = session
        self._title = title
        self.programs_total: int | None = None
        self._calls = EngineCalls()

    def snapshot(self) -> RunSnapshot:
        """The run at this moment; blocks for the engine's own state."""
        try:
            asked = self._session.loop.submit(self.asnapshot())
            return asked.result(timeout=2 * _STATS_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError, AutellixError):
            return self._snapshot(())

    async def asnapshot(self) -> RunSnapshot:
        """As :meth:`snapshot`, on the engine's loop."""
        try:
            async with asyncio.timeout(_STATS_TIMEOUT_S):
                return self._snapshot(await self._session.host.engine.stats_of_replicas())
        except (TimeoutError, AutellixError):
            return self._snapshot(())

    def graph(self, program: str) -> ProgramGraph | None:
        """The DAG of a program now, its calls in the engine as of the last snapshot."""
        session = self._session
        return session.record.graph(program, session.now(), engine=self._calls)

    def _snapshot(self, stats: Sequence[EngineStats]) -> RunSnapshot:
        self._calls = engine_calls(stats)
        return self._session.record.snapshot(
            self._session.now(),
            replicas=[replica_row(index, each) for index, each in enumerate(stats)],
            engine=self._calls,
            programs_total=self.programs_total,
            title=self._title,
        )


def engine_calls(stats: Sequence[EngineStats]) -> EngineCalls:
    """Where the live calls of all replicas are."""
    levels: dict[str, int] = {}
    places: dict[str, int] = {}
    tokens: dict[str, int] = {}
    for each in stats:
        levels.update(each.call_levels)
        places.update((call, place) for place, call in enumerate(each.waiting_calls))
        tokens.update(each.call_tokens)
    return EngineCalls(
        levels=levels,
        places=places,
        preempted=frozenset(call for each in stats for call in each.preempted_calls),
        tokens=tokens,
        # A replica that should answer and does not says nothing of its calls.
        known=any(each.seats for each in stats)
        and all(each.seats for each in stats if each.state in ("serving", "draining")),
    )


_SHOWN = tuple(name for name in ReplicaRow.__slots__ if name != "index")


def replica_row(index: int, stats: EngineStats) -> ReplicaRow:
    """What the views show of a replica's state."""
    values = {name: getattr(stats, name) for name in _SHOWN}
    for name in ("running_by_level", "waiting_by_level"):
        values[name] = tuple(values[name])
    return ReplicaRow(index=index, **values)
