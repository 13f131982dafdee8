"""Strands: who runs after whom inside a program, kept without ancestor sets.

A *strand* is what one asyncio task or one thread does; a scope (a root run, a node task, a graph,
an ambient program) has a strand of its own too. Each strand keeps a *frontier*: the calls that the
strand's next call depends on. Every frontier is an antichain (no member precedes another), so the
parents of a call are immediate predecessors. The rules that keep it so, each of them local:

1. Start. A call depends on its strand's frontier D, finished child strands joined first (rule 4).
   An LLM call leaves the frontier alone until it ends. A tool is a call and a scope: the frontier
   becomes (F - D) | {tool} at once, so calls inside it hang below it, and what comes after it
   depends on those, or on the tool where it made none.
2. End. F = (F - D) | {call}. D precedes the call. What else is in F arrived while the call ran:
   it neither precedes the call (that had its parents before) nor follows it (a running call is
   in no frontier).
3. Fork. A child strand starts from the parent's frontier at the moment of the fork, its *entry* E.
4. Join. A finished child that made calls gives F = (F - E) | F_child. Each member of E precedes
   the child's first call, hence some member of F_child. The rest of F arrived after the fork and
   the child never saw it; the parent never saw the child's calls. A child without calls changes
   nothing.
5. Orphans. A grandchild that still runs when its parent is joined moves up with its entry. The
   calls that its parent made since then do not know it, so rule 4 holds for it unchanged.
6. Scopes. A scope's strand joins the enclosing one by rule 4 when the scope closes. What still
   runs moves up by rule 5. Node tasks are the exception: rules 7 to 10 in ``supersteps.py``.

Known over-approximation: a child strand counts as joined once it has finished, awaited or not.
Queues and events between strands are not followed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .runs import Program, Run
    from .supersteps import NodeTask

Frontier = frozenset[str]
EMPTY: Frontier = frozenset()


class Owner(Protocol):
    """Whoever runs a strand: an asyncio task or a thread."""

    def done(self) -> bool:
        """Whether it has finished, for whatever reason."""
        ...


class Strand:
    """One line of execution of a program and its frontier (rules 1 to 6 above)."""

    __slots__ = (
        "_pinned",
        "_ran_on",
        "closed",
        "entry",
        "forked",
        "frontier",
        "kids",
        "listed",
        "made",
        "open",
        "owner",
        "parent",
        "passive",
        "program",
        "task",
        "watched",
    )

    def __init__(
        self,
        owner: Owner | None,
        program: Program,
        *,
        entry: Frontier = EMPTY,
        parent: Strand | None = None,
        task: NodeTask | None = None,
        forked: bool = False,
        passive: bool = False,
    ) -> None:
        self.owner = owner
        self.program = program
        self.entry = entry
        self.parent = parent
        self.task = task
        self.forked = forked  # joined when finished; a scope's strand is closed by its scope
        self.passive = passive  # stands for a graph run: nobody's calls start on it
        self.frontier: set[str] = set(entry)
        self._pinned: Frontier | None = entry
        self.kids: list[Strand] = []
        self.open: set[Run] = set()
        self.made = False
        self.listed = False
        self.closed = False
        self.watched = False
        self._ran_on: weakref.ref[Owner] | None = None

    def ran_on(self, owner: Owner) -> bool:
        """Whether the strand is, or was until it closed, this task's or thread's."""
        if self._ran_on is not None:
            return self._ran_on() is owner
        return self.owner is owner

    def pinned(self) -> Frontier:
        """The frontier as it is now; the same object until it changes."""
        if self._pinned is None:
            self._pinned = frozenset(self.frontier)
        return self._pinned

    def start(self, run: Run, *, tool: bool) -> Frontier:
        """A call begins (rule 1); returns its dependencies."""
        self.join_finished()
        deps = self.pinned()
        self.open.add(run)
        self.made = True
        if tool:
            self.replace(deps, (run.call,))
        self.list_upwards()
        return deps

    def end(self, run: Run, *, tool: bool) -> None:
        """A call is over (rule 2)."""
        self.open.discard(run)
        if not tool:
            self.replace(run.deps, (run.call,))

    def replace(self, old: Frontier, new: Frontier | set[str] | tuple[str, ...]) -> None:
        """The frontier becomes (frontier - old) | new."""
        self.frontier.difference_update(old)
        self.frontier.update(new)
        self._pinned = None

    def finished(self) -> bool:
        """Whether nothing more can happen on this strand itself."""
        return self.closed or (not self.open and self.owner is not None and self.owner.done())

    def fork(self, owner: Owner, entry: Frontier) -> Strand:
        """A child strand (rule 3), below the nearest strand that has not finished."""
        parent = self
        while parent.forked and parent.parent is not None and parent.finished():
            if parent.listed and not parent.closed:
                parent.parent.join_finished()
            parent = parent.parent
        return Strand(owner, self.program, entry=entry, parent=parent, task=self.task, forked=True)

    def list_upwards(self) -> None:
        """Make a fork known to those that may join it, once it made a call."""
        strand = self
        while strand.forked and not strand.listed:
            parent = strand.open_parent()
            if parent is None:
                return
            strand.parent, strand.listed = parent, True
            parent.kids.append(strand)
            strand = parent

    def open_parent(self) -> Strand | None:
        """The nearest enclosing strand of the same program that is still open."""
        parent = self.parent
        while parent is not None and parent.closed:
            parent = parent.parent
        return parent if parent is not None and parent.program is self.program else None

    def join_finished(self) -> None:
        """Join the child strands that have finished (rules 4 and 5)."""
        if not self.kids:
            return
        kids, self.kids = self.kids, []
        for kid in kids:
            if kid.finished():
                self.absorb(kid)
            else:
                self.kids.append(kid)

    def absorb(self, kid: Strand) -> None:
        """Join one child strand or closing scope (rules 4 to 6)."""
        kid.join_finished()
        if kid.made:
            self.replace(kid.entry, kid.frontier)
            self.made = True
        for orphan in kid.kids:
            orphan.parent = self
        self.kids.extend(kid.kids)
        kid.kids = []
        kid._shut()

    def close(self) -> None:
        """End a scope without joining its frontier; what still runs below it moves up."""
        self.join_finished()
        heir = self.open_parent()
        if heir is not None:
            for orphan in self.kids:
                orphan.parent = heir
            heir.kids.extend(self.kids)
        self.kids = []
        self._shut()

    def _shut(self) -> None:
        self.closed = True
        if self.owner is not None:  # contexts may hold on to a strand, never to a task
            self.owner, self._ran_on = None, weakref.ref(self.owner)


Position = tuple[Strand, Frontier]  # a strand, and its frontier as a fork taken here must see it
