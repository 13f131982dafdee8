"""What is known of how much work programs do, by name; and the place that gives a program.

1. Programs of one name (of one graph) share a life table; all together share another.
2. A bucket's hazard is that of the name's table as far as that one knows the bucket, else that of
   all programs, else the prior's, 1 / a: programs that have done a will, as a rule, do as much
   again (a Pareto tail). So where nothing is known, attained service decides the order.
3. How far: the next source counts as 1 / (1 + n)^2 programs in a bucket that n programs of the
   better one have passed. It fills gaps and does not argue with data: a program that ends in its
   first tokens earns so much that a small chance of it, if only a guess, would decide.
4. Places follow the table with some delay, by the number of things told since, so that the cost for
   each call is constant and the same input gives the same order.
5. A program keeps its place until the one found for it differs by the square root of 2, its index
   by a factor of 2. A change of place may cost a pause, and with it the KV of a context; a small
   gain is not worth it.

Exploration is built in. Programs that have come as far as any, and did not end where the prior
expects it, leave a gap of low hazard behind them: those that stand before the end of the known get
better places, go on, and what they find out counts for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Self

from .chains_to_come import ChainsToCome
from .gittins import INVERSE_SIZES, places
from .life_table import BOUNDS, CONTEXT_TOKENS_PER_SEAT, WIDTHS, LifeTable

_PRIOR = INVERSE_SIZES
_MOST_ENDS, _MOST_CALLS = 1000.0, 10_000.0
_MOST_NAMES = 1000
_DELAY = 16
_KEPT = 2.0**0.5
_COURSE_POINTS = 8
_UNIT = [len(BOUNDS), BOUNDS[1], BOUNDS[2], CONTEXT_TOKENS_PER_SEAT]


class ServiceHistory:
    """Life tables by name.

    Args:
        prompt_share: what a token of a prompt counts in the work that it is told of
            (:func:`.life_table.share_of_prompts`).

    Attributes:
        names: the table of each name, in the order in which they were first told of.
        everything: their sum, and what was told of names that there was no more room for.
        chains: how long the chains of calls are that their nodes begin.
    """

    def __init__(self, prompt_share: float = 1.0) -> None:
        self.prompt_share = prompt_share
        self.names: dict[str, LifeTable] = {}
        self.everything = LifeTable()
        self.chains: dict[str, ChainsToCome] = {}
        self._places: dict[str, tuple[int, list[float]]] = {}

    def worked(self, name: str, before: float, after: float) -> None:
        """A program of that name that had done ``before`` tokens of work has done ``after``."""
        if after > before:
            self.everything.worked(before, after)
            table = self._table(name)
            if table is not None:
                table.worked(before, after)

    def ended(self, name: str, work: float) -> None:
        """A program of that name ended that had done so much, tokens."""
        self.everything.ended(work)
        table = self._table(name)
        if table is not None:
            table.ended(work)

    def chain_took(self, name: str, node: str, chain_s: float) -> None:
        """A call of that node, in a program of that name, began a chain of so many seconds."""
        if name in self.names:
            self.chains.setdefault(name, ChainsToCome()).told(node, chain_s)

    def to_come_s(self, name: str, node: str) -> float:
        """The chain that such a call is expected to begin, seconds; 0 where nothing is known."""
        chains = self.chains.get(name)
        return 0.0 if chains is None else chains.expected_s(node)

    def places(self, name: str) -> Sequence[float]:
        """The place of such a program at the lower bound of each bucket of work, tokens."""
        table = self.names.get(name)
        told = self.everything.told if table is None else table.told
        due, found = self._places.get(name, (0, None))
        if found is None or told >= due:
            found = places(self.hazards(name))
            self._places[name] = (told + 1 + told // _DELAY, found)
        return found

    def place(self, name: str, work: float) -> float:
        """The place of such a program that has done so much, tokens: smaller goes first."""
        found = self.places(name)
        k = bisect_right(BOUNDS, work) - 1
        if k + 1 == len(BOUNDS):
            return found[k] * work / BOUNDS[k]
        return found[k] + (found[k + 1] - found[k]) * (work - BOUNDS[k]) / WIDTHS[k]

    def course(
        self, name: str, work: float, kept: float | None, share: float = 1.0
    ) -> tuple[float, ...]:
        """Where the next call of such a program stands, and as it goes on: a ticket's course.

        Args:
            work: what the program has done, tokens.
            kept: the place that it has had so far; None for a new program (rule 5).
            share: what each of its tokens counts (:func:`.life_table.share_of`).
        """
        place = self.place(name, work)
        if kept is not None and kept / _KEPT <= place <= kept * _KEPT:
            place = kept
        course = [0.0, place]
        found = self.places(name)
        for k in range(bisect_right(BOUNDS, work), len(BOUNDS)):
            if found[k] > place * _KEPT:
                place = found[k]
                course += ((BOUNDS[k] - work) / share, place)
                if len(course) == 2 * _COURSE_POINTS:
                    break
        return tuple(course)

    def hazards(self, name: str) -> list[float]:
        """The chance to end with the next token, in each bucket (rules 2 and 3)."""
        known = _better(self.everything, _PRIOR)
        table = self.names.get(name)
        return known if table is None else _better(table, known)

    def add(self, other: ServiceHistory) -> None:
        """Add what another history holds; the order of additions does not matter.

        Raises:
            ValueError: it counts prompts in another way.
        """
        if other.prompt_share != self.prompt_share:
            raise ValueError("a history that counts prompts in another way cannot be added")
        for name, table in other.names.items():
            mine = self._table(name)
            if mine is not None:
                mine.add(table)
        for name, chains in other.chains.items():
            if name in self.names:
                self.chains.setdefault(name, ChainsToCome()).add(chains)
        self.everything.add(other.everything)
        self._places.clear()

    def since(self, earlier: ServiceHistory) -> ServiceHistory:
        """What it has learned since it held what ``earlier`` holds."""
        late, nothing = ServiceHistory(self.prompt_share), LifeTable()
        for name, table in self.names.items():
            late.names[name] = table.since(earlier.names.get(name, nothing))
        unknown = ChainsToCome()
        for name, chains in self.chains.items():
            if told := chains.since(earlier.chains.get(name, unknown)):
                late.chains[name] = told
        late.everything = self.everything.since(earlier.everything)
        return late

    def fade(self, most_ends: float = _MOST_ENDS) -> None:
        """Let old programs count less, so that what comes can change the picture.

        Args:
            most_ends: for how many programs those of a name count at most.
        """
        for table in (*self.names.values(), self.everything):
            table.fade(most_ends)
        for chains in self.chains.values():
            chains.fade(_MOST_CALLS)
        self._places.clear()

    def to_wire(self) -> dict[str, Any]:
        """The history as plain types."""
        return {
            "bounds": list(_UNIT),
            "prompt_share": self.prompt_share,
            "names": {name: table.to_wire() for name, table in self.names.items()},
            "chains": {name: chains.to_wire() for name, chains in self.chains.items()},
            "everything": self.everything.to_wire(),
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_wire`.

        Raises:
            ValueError: it is none, or counts work in another way.
        """
        try:
            history = cls(float(wire["prompt_share"]))
            if wire["bounds"] != _UNIT:
                raise ValueError("a history that counts work in another way")
            for name, table in wire["names"].items():
                history.names[str(name)] = LifeTable.from_wire(table)
            for name, chains in wire.get("chains", {}).items():
                if name in history.names:
                    history.chains[name] = ChainsToCome.from_wire(chains)
            history.everything = LifeTable.from_wire(wire["everything"])
        except (KeyError, TypeError, AttributeError, OverflowError) as cause:
            raise ValueError(f"not a history: {cause!r}") from cause
        return history

    def _table(self, name: str) -> LifeTable | None:
        table = self.names.get(name)
        if table is None and len(self.names) < _MOST_NAMES:
            table = self.names[name] = LifeTable()
        return table


def _better(table: LifeTable, otherwise: Sequence[float]) -> list[float]:
    """Hazards by a table, and by others where it knows little (rule 3)."""
    found = []
    for ends, exposure, width, other in zip(
        table.ends, table.exposure, WIDTHS, otherwise, strict=True
    ):
        lent = width / (1.0 + exposure / width) ** 2
        found.append((ends + lent * other) / (exposure + lent))
    return found
