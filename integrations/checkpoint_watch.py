"""Tells the runtime which threads graph runs load and write, and lets them be drained.

Only graphs whose checkpointer is an ``AutellixSaver`` are looked at; under ``autellix run`` that is
every one (see :func:`wrapping_savers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from ..runtime.protocols import ThreadKeeper, ThreadLoad
from . import langgraph_private as private
from .checkpoint import KEY, AutellixSaver
from .checkpoint_stores import store_of
from .supersteps import Ended
from .tracker import Tracker

P = ParamSpec("P")


class CheckpointWatch:
    """Watches the graph runs of the process that have a checkpointer.

    Args:
        tracker: knows which program a run belongs to.
        keeper: is told.
    """

    def __init__(self, tracker: Tracker, keeper: ThreadKeeper) -> None:
        self._tracker = tracker
        self._keeper = keeper
        self._running: dict[UUID, Any] = {}
        self._draining = False

    def install(self) -> Callable[[], None]:
        """Begin to watch; returns how to stop."""
        return private.watch_checkpoints(
            self._guarded(self._loaded),
            self._guarded(self._making),
            self._guarded(self._made),
            self._guarded(self._goes_on),
        )

    def drain(self) -> int:
        """Stop every graph run at its next superstep, and those that begin from now on.

        Returns:
            How many run now; none of them is stopped where LangGraph is too old for it.
        """
        self._draining = True
        self._drop_ended()
        for control in self._running.values():
            control.request_drain("suspended")
        return len(self._running)

    def _drop_ended(self) -> None:
        ended = [run_id for run_id in self._running if not self._tracker.is_open(run_id)]
        for run_id in ended:
            self._running.pop(run_id, None)

    def _guarded(
        self, method: Callable[Concatenate[private.LoopState, AutellixSaver, str, P], None]
    ) -> Callable[Concatenate[private.LoopState, P], None]:
        def guarded(state: private.LoopState, *args: P.args, **kwargs: P.kwargs) -> None:
            if not isinstance(state.saver, AutellixSaver):
                return
            place = self._tracker.place_of(state.run_id)
            if place is None:
                return
            try:
                method(state, state.saver, place[0], *args, **kwargs)
            except Exception as fault:
                self._tracker.audience.report(fault)

        return guarded

    def _loaded(self, state: private.LoopState, saver: AutellixSaver, program: str) -> None:
        place = self._tracker.place_of(state.run_id)
        if not state.nested and state.control is not None:
            if len(self._running) > _MANY:
                self._drop_ended()
            self._running[state.run_id] = state.control
            if self._draining:
                state.control.request_drain("suspended")
        load = ThreadLoad(
            store=store_of(saver.inner),
            thread=state.thread,
            checkpoint=state.checkpoint,
            snapshot=state.metadata.get(KEY) if state.checkpoint is not None else None,
            addressed=state.addressed,
            nested=state.nested,
            is_turn=place is not None and place[1],
        )
        earlier = self._keeper.thread_loaded(program, load)
        self._tracker.start_from(state.run_id, earlier, anew=not state.nested)

    def _goes_on(
        self,
        state: private.LoopState,
        saver: AutellixSaver,
        program: str,
        ended: Mapping[str, set[str]],
    ) -> None:
        # A function that runs again from its top takes up what its tasks have returned: its calls
        # follow theirs. The others' are followed by what comes after the superstep.
        returned = {task for task in ended if private.RETURN in ended[task]}
        before = self._keeper.tasks_ended(program, returned)
        beside = self._keeper.tasks_ended(program, ended.keys() - returned)
        channels = frozenset(itertools.chain.from_iterable(ended.values()))
        here = Ended(exit=beside, channels=channels, step=state.step) if beside else None
        self._tracker.go_on(state.run_id, before, here)

    def _making(self, state: private.LoopState, saver: AutellixSaver, program: str) -> None:
        store = store_of(saver.inner)
        account = self._keeper.thread_snapshot(program, store, state.thread)
        if account is not None:
            state.metadata[KEY] = account

    def _made(self, state: private.LoopState, saver: AutellixSaver, program: str) -> None:
        account = state.metadata.get(KEY)
        if account is not None and state.checkpoint is not None and not state.nested:
            store, calls = store_of(saver.inner), account["calls"]
            self._keeper.thread_written(program, store, state.thread, state.checkpoint, calls)


def wrapping_savers(default: BaseCheckpointSaver[Any] | None = None) -> Callable[[], None]:
    """Wrap the checkpointer of every graph of the process, whoever made it.

    Args:
        default: for graphs that have none and are run on a thread.

    Returns:
        How to stop.
    """

    def replacement(saver: Any, configurable: Mapping[str, Any]) -> Any:
        if saver is None:
            wanted = "thread_id" in configurable and not private.is_lent(configurable)
            saver = default if wanted else None
        if not isinstance(saver, BaseCheckpointSaver) or isinstance(saver, AutellixSaver):
            return saver
        known = saver.__dict__.get(_WRAPPER)
        if known is None or known.inner is not saver:  # a clone has its original's
            known = saver.__dict__[_WRAPPER] = AutellixSaver(saver)
        return known

    return private.replace_savers(replacement)


def answer(value: Any) -> Any:
    """What a graph is run on so that its ``interrupt()`` returns ``value``."""
    return Command(resume=value)


_WRAPPER = "_autellix_wrapper"
_MANY = 256
