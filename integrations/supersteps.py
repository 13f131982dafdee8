"""Supersteps: who runs after whom between the node tasks of one LangGraph run.

LangGraph runs a graph in supersteps with a barrier between them. The rules, continued from
``strands.py``; each result is an antichain again:

7. Entry. All tasks of a superstep start from the same entry: in the first one the frontier of the
   strand that runs the graph, later the exits of the superstep before.
8. Exit. A task that made calls exits with its strand's frontier, which then holds calls of its own
   only (rule 2 removed the entry). Tasks of one superstep do not see each other, so the union of
   their exits is an antichain, and each member of the entry precedes some member of it. If no
   task made a call, the next superstep starts from the same entry.
9. Retry. A second attempt of a task (the same task id in the same superstep) starts from the exit
   of the first, and stands for the task from then on.
10. Return. A graph run joins the strand that ran it by rule 4, with its first entry as E and its
    last entry as the child's frontier.
11. Resume. A graph run that stopped in the middle of a superstep goes on with it. The tasks that
    had ended by then are not run again; the exits of that superstep are theirs as well.

Edge kinds. An edge from a task's entry is ``trigger`` when the task of the superstep before whose
exit it comes from wrote one of the task's trigger channels, else ``barrier``. A task without calls
hands on to the channels it wrote what it was triggered by itself. In the first superstep the
kind is the one the edge would have for the task around the graph. All other edges are ``order``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..runtime.protocols import EdgeKind
from .strands import EMPTY, Frontier, Strand

Writers = dict[str, set[str]]  # channel -> the calls in the entry that came through it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Tasks of a superstep that had ended before the run began: it stopped in the middle (11).

    Attributes:
        exit: their last calls.
        channels: what they wrote.
        step: the superstep, which the run goes on with.
    """

    exit: Frontier
    channels: frozenset[str]
    step: int


class NodeTask:
    """One attempt of one node task of a superstep."""

    __slots__ = (
        "attempt",
        "base",
        "entry",
        "exit",
        "node",
        "outer",
        "strand",
        "triggers",
        "writers",
        "writes",
    )

    def __init__(
        self,
        node: str | None,
        triggers: tuple[str, ...],
        entry: Frontier,
        base: Frontier,
        writers: Writers | None,
        outer: NodeTask | None,
    ) -> None:
        self.node = node
        self.triggers = triggers
        self.entry = entry
        self.base = base  # what came over the barrier; empty for a retry after calls
        self.writers = writers  # None in the first superstep
        self.outer = outer
        self.attempt = 1
        self.exit: Frontier | None = None
        self.strand: Strand | None = None
        self.writes: set[str] = set()

    def kind(self, dep: str) -> EdgeKind:
        """Why a call of this task depends on ``dep``."""
        task: NodeTask | None = self
        while task is not None and dep in task.base:
            if task.writers is not None:
                through = task.writers
                hit = any(dep in through.get(channel, ()) for channel in task.triggers)
                return "trigger" if hit else "barrier"
            task = task.outer
        return "order"

    def attempts(self) -> int:
        """Which attempt this is; where a task around it is tried again, that counts as well."""
        return max(self.attempt, self.outer.attempts() if self.outer is not None else 1)

    def close(self) -> None:
        """The attempt is over (rule 8)."""
        strand, self.strand = self.strand, None
        if strand is None:
            return
        strand.close()
        if strand.made:
            self.exit = strand.pinned()


class Supersteps:
    """The supersteps of one graph run (rules 7 to 11)."""

    __slots__ = ("caller", "ended", "entry", "made", "step", "strand", "tasks", "writers")

    def __init__(self, caller: Strand, ended: Ended | None = None) -> None:
        caller.join_finished()
        self.caller = caller
        self.entry = caller.pinned()
        self.strand = Strand(
            None, caller.program, entry=self.entry, parent=caller, task=caller.task, passive=True
        )
        self.step: int | None = None
        self.ended = ended
        self.tasks: dict[str, NodeTask] = {}
        self.writers: Writers | None = None
        self.made = False

    def begin(self, task_id: str, step: int, node: str | None, triggers: Iterable[str]) -> NodeTask:
        """A node task starts; a new step number closes the superstep before."""
        if step != self.step:
            self._barrier(step)
            self.step = step
        entry, base, before = self.entry, self.entry, self.tasks.get(task_id)
        if before is not None:
            before.close()
            if before.exit is not None:
                entry, base = before.exit, EMPTY
        task = NodeTask(node, tuple(triggers), entry, base, self.writers, self.caller.task)
        if before is not None:
            task.exit, task.attempt = before.exit, before.attempt + 1
        self.tasks[task_id] = task
        return task

    def wrote(self, task_id: str, channels: Iterable[str]) -> None:
        """A task wrote to channels."""
        task = self.tasks.get(task_id)
        if task is not None:
            task.writes.update(channels)

    def finish(self) -> None:
        """The graph run is over (rule 10)."""
        self._barrier(None)
        self.strand.frontier, self.strand.made = set(self.entry), self.made
        self.caller.absorb(self.strand)
        if self.strand.made:
            self.caller.list_upwards()

    def _barrier(self, next_step: int | None) -> None:
        tasks, self.tasks = self.tasks, {}
        for task in tasks.values():
            task.close()
        left = [(task.exit, task.writes) for task in tasks.values() if task.exit is not None]
        if self.ended is not None and (next_step is None or next_step > self.ended.step):
            left.append((self.ended.exit, set(self.ended.channels)))
            self.ended = None
        if left:
            self.made = True
            self.entry = EMPTY.union(*(exit for exit, _ in left))
            self.writers = {}
            for exit, channels in left:
                for channel in channels:
                    self.writers.setdefault(channel, set()).update(exit)
        elif self.writers is not None and tasks:
            self.writers = _handed_on(self.writers, tasks.values())


def _handed_on(writers: Writers, tasks: Iterable[NodeTask]) -> Writers:
    """The writers after a superstep in which no task made a call."""
    # Many tasks of one node (a fan-out) share triggers and writes: each pair is done once.
    pairs = {(task.triggers, frozenset(task.writes)) for task in tasks}
    after: Writers = {}
    for triggers, writes in pairs:
        for channel in writes:
            through = after.setdefault(channel, set())
            for trigger in triggers:
                through |= writers.get(trigger, set())
    return after
