"""Who should run next when sizes are known by their distribution alone: the Gittins index.

A program has done work a, and ends with hazard h from there on. Serving it until it ends or has
done d more earns 1 / S for a program of size S that ends, because what counts is the mean of
response / tokens, and costs the work. The index is the best rate of earning over all d,

    G(a) = max over d of  E[1/S; S <= a + d | S > a] / E[min(S, a + d) - a | S > a],

and whoever has the largest index goes first (Gittins; Aalto, Ayesta and Righter 2009 on single
servers). Turned into an amount of work, so that smaller is better and levels can hold it:

    place(a) = G(a) ** -0.5.

What that gives: with sizes all alike, sqrt(S (S - a)), so a program that was begun goes before one
that was not: programs in the order of their arrival. With a Pareto tail, a constant x a:
attained-service order. Mixtures stand in one order.

With the hazard constant within buckets, the best d ends at a bound of one. A bucket is a block of
(earned, cost, chance to survive it). From the last bucket backwards, a block takes in the blocks
behind it as long as the next one earns at a better rate than itself; the rate that it has then is
the index at its lower bound. Every block is taken in once: the time is linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .life_table import BOUNDS, WIDTHS

# 1 / S of a program that ends in the middle of a bucket.
INVERSE_SIZES: tuple[float, ...] = tuple(
    1.0 / (low + 0.5 * width) for low, width in zip(BOUNDS, WIDTHS, strict=True)
)


def places(hazards: Sequence[float]) -> list[float]:
    """The place of a program at the lower bound of each bucket, tokens: smaller goes first.

    Args:
        hazards: the chance to end with the next token in each bucket, > 0.
    """
    return [rate**-0.5 for rate in gittins_index(hazards, INVERSE_SIZES)]


def gittins_index(hazards: Sequence[float], earnings: Sequence[float]) -> list[float]:
    """The best rate of earning from the lower bound of each bucket on.

    Args:
        hazards: the chance to end with the next token in each bucket, > 0.
        earnings: what a program earns that ends in it; all 1 gives the index for the plain mean of
            response times.
    """
    found = [0.0] * len(BOUNDS)
    blocks: list[tuple[float, float, float]] = []
    for k in range(len(BOUNDS) - 1, -1, -1):
        survives = math.exp(-hazards[k] * WIDTHS[k])
        ends = -math.expm1(-hazards[k] * WIDTHS[k])
        cost = ends / hazards[k]
        earned = ends * earnings[k]
        while blocks and blocks[-1][0] * cost > earned * blocks[-1][1]:
            next_earned, next_cost, next_survives = blocks.pop()
            earned += survives * next_earned
            cost += survives * next_cost
            survives *= next_survives
        blocks.append((earned, cost, survives))
        found[k] = earned / cost
    return found
