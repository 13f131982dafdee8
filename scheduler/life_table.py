"""When programs end: a life table over the work they have done.

Work is counted in tokens: those generated, and those computed of prompts. A program needs as many
whatever else the engine does; its service in seconds grows with the batch and with what has to be
computed again.

A generated token counts by the part of the engine that is taken while it is made: a seat, or as
much of the KV cache as the context is long, whichever is more. Where the cache is what is short, a
program with a context twice as long keeps twice as many others out. A token of a prompt counts by
what is generated while it is computed: an engine with 256 seats, when full, generates about as many
tokens as it computes of prompts in the same time; with fewer seats, fewer.

For each bucket of work the table keeps two sums: the work that programs did in it (*exposure*) and
how many programs ended in it. Ends / exposure estimates the hazard, the chance to end with the next
token.

Why not the sizes of finished programs: they are biased short, the more so the more a scheduler puts
long ones off. Here a program under way counts with what it has done so far and no end, so nothing
needs to be known of its future (right censoring), and one that is watched from its middle on counts
from there (left truncation). The ratio is the maximum likelihood estimate where the hazard is
constant within a bucket, and becomes that of Kaplan and Meier as buckets narrow.

Tables add up bucket by bucket, in any order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import chain, pairwise
from typing import Any, Self

# KV tokens that an engine has for each of its seats; common ones have between 1,000 and 4,000.
CONTEXT_TOKENS_PER_SEAT = 2048.0
# With so many, a token of a prompt takes a full engine as long as a generated one.
_EVEN_SEATS = 256.0
_FIRST_TOKENS = 32.0
_PER_OCTAVE = 2
_OCTAVES = 22

# Lower bounds of the buckets, tokens. The last bucket has no upper one.
BOUNDS: tuple[float, ...] = (
    0.0,
    *(_FIRST_TOKENS * 2.0 ** (k / _PER_OCTAVE) for k in range(_OCTAVES * _PER_OCTAVE + 1)),
)
# What the last bucket counts as where a width is needed: as wide as all before it.
WIDTHS: tuple[float, ...] = (*(high - low for low, high in pairwise(BOUNDS)), BOUNDS[-1])


def share_of(context_tokens: int) -> float:
    """What a token counts that is generated at a context of this length."""
    return max(1.0, context_tokens / CONTEXT_TOKENS_PER_SEAT)


def share_of_prompts(seats: int) -> float:
    """What a token of a prompt counts on an engine of so many seats, 0 where that is not known."""
    return min(1.0, seats / _EVEN_SEATS) if seats else 1.0


def work_of(
    output_tokens: int,
    new_prompt_tokens: int,
    context_tokens: int = 0,
    prompt_share: float = 1.0,
) -> float:
    """The work of a call, tokens.

    Args:
        output_tokens: generated.
        context_tokens: its prompt and its output.
        new_prompt_tokens: of its prompt, those that no earlier call of its program had computed.
        prompt_share: what each of those counts (:func:`share_of_prompts`).
    """
    return output_tokens * share_of(context_tokens) + prompt_share * new_prompt_tokens


class LifeTable:
    """Sums over programs of one kind.

    Attributes:
        exposure: work that programs did in each bucket, tokens.
        ends: how many programs ended in it.
        told: how many times it was told something; grows when tables are added up.
    """

    __slots__ = ("ends", "exposure", "told")

    def __init__(self) -> None:
        self.exposure = [0.0] * len(BOUNDS)
        self.ends = [0.0] * len(BOUNDS)
        self.told = 0

    def worked(self, before: float, after: float) -> None:
        """A program that had done ``before`` tokens of work has done ``after`` now."""
        self.told += 1
        first, last = bisect_right(BOUNDS, before) - 1, bisect_right(BOUNDS, after) - 1
        if first == last:
            self.exposure[first] += after - before
            return
        self.exposure[first] += BOUNDS[first + 1] - before
        for k in range(first + 1, last):
            self.exposure[k] += WIDTHS[k]
        self.exposure[last] += after - BOUNDS[last]

    def ended(self, work: float) -> None:
        """A program ended that had done so much, tokens."""
        self.told += 1
        # At a bound it ended in the bucket below, where it did its last work.
        self.ends[max(bisect_left(BOUNDS, work) - 1, 0)] += 1

    def add(self, other: LifeTable) -> None:
        """Add what another table holds."""
        self.exposure = [a + b for a, b in zip(self.exposure, other.exposure, strict=True)]
        self.ends = [a + b for a, b in zip(self.ends, other.ends, strict=True)]
        self.told += other.told

    def since(self, earlier: LifeTable) -> LifeTable:
        """What it was told since it held what ``earlier`` holds."""
        late = LifeTable()
        exposures = zip(self.exposure, earlier.exposure, strict=True)
        late.exposure = [max(0.0, a - b) for a, b in exposures]
        late.ends = [max(0.0, a - b) for a, b in zip(self.ends, earlier.ends, strict=True)]
        late.told = max(0, self.told - earlier.told)
        return late

    def fade(self, most_ends: float) -> None:
        """Weaken all of it alike so that it counts for no more than so many ended programs."""
        total = sum(self.ends)
        if total > most_ends:
            share = most_ends / total
            self.exposure = [share * value for value in self.exposure]
            self.ends = [share * value for value in self.ends]
            self.told = round(share * self.told)

    def to_wire(self) -> dict[str, Any]:
        """The sums as plain types, buckets without any left out."""
        rows = enumerate(zip(self.ends, self.exposure, strict=True))
        return {
            "told": self.told,
            "buckets": [[k, ends, exposure] for k, (ends, exposure) in rows if ends or exposure],
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_wire`.

        Raises:
            ValueError: it is none.
        """
        table = cls()
        try:
            table.told = int(wire["told"])
            for k, ends, exposure in wire["buckets"]:
                table.ends[k], table.exposure[k] = float(ends), float(exposure)
        except (KeyError, TypeError, IndexError, ValueError) as cause:
            raise ValueError(f"not a life table: {cause!r}") from cause
        if not all(0 <= value < float("inf") for value in chain(table.ends, table.exposure)):
            raise ValueError("not a life table: a sum is negative or not finite")
        return table
