"""What the recorder keeps while it lasts: programs, ambient programs, callback runs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ..runtime.protocols import CallKind
from .strands import EMPTY, Frontier, Owner, Position, Strand
from .supersteps import Ended, NodeTask, Supersteps


class Program:
    """A program the recorder has seen.

    Attributes:
        frontier: what the first call of its next turn depends on.
        turns: root runs and ambient scopes of it that are open now.
        lasting: a thread, whose next turn may come; else it is dropped at its end.
        calls: its open calls.
        loaded: a graph of it has gone on from a checkpoint, or could have.
    """

    __slots__ = ("calls", "frontier", "id", "lasting", "loaded", "turns")

    def __init__(self, id: str, *, lasting: bool) -> None:
        self.id = id
        self.lasting = lasting
        self.frontier: Frontier = EMPTY
        self.turns = 0
        self.loaded = False
        self.calls: dict[UUID, Run] = {}

    def begin(self, owner: Owner, outer: Strand | None) -> Strand:
        """A turn begins; returns its strand."""
        self.turns += 1
        return Strand(owner, self, entry=self.frontier, parent=outer)

    def finish(self, strand: Strand) -> None:
        """A turn is over: the next one follows its last calls (rule 4)."""
        self.turns -= 1
        strand.close()
        if strand.made:
            self.frontier = (self.frontier - strand.entry) | strand.pinned()


class Ambient:
    """A stretch of plain Python that is one program.

    Attributes:
        joined: it lies inside a program already and is part of that one.
    """

    __slots__ = ("closed", "joined", "outer", "position", "program", "strand")

    def __init__(
        self,
        program: Program,
        *,
        outer: Ambient | None = None,
        strand: Strand | None = None,
        position: Position | None = None,
    ) -> None:
        self.program = program
        self.outer = outer
        self.strand = strand
        self.position = position
        self.joined = strand is None
        self.closed = False

    def encloses(self, inner: Ambient | None) -> bool:
        """Whether ``inner`` is this scope or lies inside it."""
        while inner is not None and inner is not self:
            inner = inner.outer
        return inner is self


class Run:
    """A callback run: a root, a graph, a node task, a plain chain, a tool or an LLM call.

    Attributes:
        outside: a call that no callback announced.
        claimed: a call whose request has gone out.
        ended: of a graph, the tasks of its first superstep that an earlier run has ended.
    """

    __slots__ = (
        "ambient",
        "call",
        "children",
        "claimed",
        "deps",
        "ended",
        "id",
        "interrupted",
        "kind",
        "node",
        "outside",
        "parent",
        "position",
        "program",
        "root",
        "steps",
        "strand",
        "task",
    )

    def __init__(
        self,
        id: UUID,
        parent: Run | None,
        program: Program,
        ambient: Ambient | None,
        strand: Strand,
        node: Any = None,
    ) -> None:
        self.id = id
        self.parent = parent
        self.program = program
        self.ambient = ambient
        self.strand = strand
        self.node: str | None = node or (parent.node if parent is not None else None)
        self.children: dict[UUID, Run] | None = None  # made when needed: most runs have none
        self.root = False
        self.interrupted = False
        self.position: Position | None = None  # what the context held before this scope
        self.task: NodeTask | None = None
        self.steps: Supersteps | None = None
        self.ended: Ended | None = None
        self.kind: CallKind | None = None
        self.call = ""
        self.outside = self.claimed = False
        self.deps: Frontier = EMPTY
        if parent is not None:
            parent._adopt(self)

    def _adopt(self, child: Run) -> None:
        child.parent = self
        if self.children is None:
            self.children = {}
        self.children[child.id] = child

    def is_stuck(self, owner: Owner | None) -> bool:
        """Whether nobody but ``owner``, which has left it behind, could go on with this run."""
        mine = self.strand.owner
        return mine is None or mine is owner or mine.done()

    def close_scope(self) -> None:
        """End what this run opened besides calls."""
        if self.steps is not None:
            self.steps.finish()
            self.steps = None
        if self.task is not None:
            self.task.close()
        if self.parent is not None and self.parent.children is not None:
            self.parent.children.pop(self.id, None)

    def leftovers(self, *, everything: bool) -> list[Run]:
        """The open calls below this run that can no longer go on, innermost scopes closed.

        With ``everything`` (the run failed or was cancelled) all of them; else those whose task
        or thread has finished or is this run's own. Work that goes on elsewhere moves up.
        """
        lost: list[Run] = []
        mine = self.strand.owner
        children, self.children = self.children or {}, None
        for child in children.values():
            if everything or child.is_stuck(mine):
                lost += child.leftovers(everything=everything)
                lost.append(child)
            elif self.parent is not None:
                self.parent._adopt(child)
            else:
                child.parent = None
        return lost
