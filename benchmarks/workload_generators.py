"""Made-up programs whose statistics are those of real agents; the same seed gives the same ones.

``sharegpt``, ``bfcl`` and ``lats`` have the means that the paper's evaluation gives: calls a
program 6.66 (at most 80), 10.75 (at most 70) and 159.7; prompt tokens a call 256, 735 and 467;
generated tokens a call 277, 34 and 73. The prompt tokens are taken as those that a call adds to
what its program has in some context already; the paper does not say so. The shapes are those of
recorded programs: chats are long-tailed, function-calling agents are much alike, a tree search is
solved early or runs to its limit. ``swe-agent``, ``coding`` and ``tot`` have the means of such
records. Two have none: ``tools``, a tool after every answer, for what becomes of KV between calls;
``supervisor``, workers of several kinds beside each other, for the order among a program's calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from autellix.scheduler.sim_programs import SimCall, SimProgram

# Seconds that tools take, at equally likely points: quantiles of coding agents' records, and of the
# look-ups of an agent that searches an encyclopaedia.
_CODING_TOOL_S = (2, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 11, 13, 15, 19, 24, 38, 73, 154, 400)
_LOOKUP_TOOL_S = (0.27, 0.75, 0.79, 0.80, 0.86, 0.89, 0.96, 0.97, 1.04, 1.22)


def _lognormal(rng: Random, mean: float, sigma: float, least: int, most: int) -> int:
    """A whole number from a log-normal distribution of that mean, cut at both ends."""
    value = rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
    return max(least, min(most, round(value)))


class _Builder:
    """Adds calls to a program."""

    def __init__(self) -> None:
        self.calls: list[SimCall] = []

    def add(
        self,
        parents: tuple[int, ...],
        *,
        shared: int,
        new: int,
        output: int,
        tool_s: float = 0.0,
        node: str = "",
    ) -> int:
        """One more call with a prompt of ``shared + new`` tokens; its index."""
        self.calls.append(
            SimCall(
                parents=parents,
                prompt_tokens=shared + new,
                output_tokens=output,
                shared_prefix_tokens=shared,
                tool_s=tool_s,
                node=node,
            )
        )
        return len(self.calls) - 1

    def context(self, index: int) -> int:
        """Prompt and output of a call, tokens."""
        call = self.calls[index]
        return call.prompt_tokens + call.output_tokens


def sharegpt(rng: Random) -> list[SimCall]:
    """A chat: every turn's prompt is the whole conversation and one more message."""
    built = _Builder()
    turns = _lognormal(rng, 7.05, 1.27, 1, 80)
    for turn in range(turns):
        built.add(
            (turn - 1,) if turn else (),
            shared=built.context(turn - 1) if turn else 0,
            new=_lognormal(rng, 268, 1.3, 3, 8000),
            output=_lognormal(rng, 284, 0.9, 5, 2000),
        )
    return built.calls


def bfcl(rng: Random) -> list[SimCall]:
    """Function calling: a long first prompt with the functions, then short outputs and replies."""
    built = _Builder()
    steps = _lognormal(rng, 10.75, 0.38, 3, 70)
    for step in range(steps):
        built.add(
            (step - 1,) if step else (),
            shared=built.context(step - 1) if step else 0,
            new=_lognormal(rng, 523, 0.6, 10, 6000) if step else rng.randint(1800, 3700),
            output=_lognormal(rng, 34, 0.5, 5, 500),
        )
    return built.calls


def lats(rng: Random) -> list[SimCall]:
    """A tree search in rounds: five samples at once, a value for each, one reflection."""
    built = _Builder()
    rounds = 30 if rng.random() < 0.45 else 1 + min(28, int(rng.expovariate(0.75)))
    front: tuple[int, ...] = ()
    reached = 0
    for index in range(rounds):
        depth = index % 7
        shared = built.context(front[0]) if front and depth else min(reached, 1500)
        new = _lognormal(rng, 1480, 0.4, 100, 5000)
        samples = [
            built.add(
                front,
                shared=shared if first else shared + new,
                new=new if first else 0,
                output=_lognormal(rng, 73, 0.4, 8, 300),
                node="sample",
            )
            for first in (True, False, False, False, False)
        ]
        values = [
            built.add(
                (sample,),
                shared=built.context(sample),
                new=_lognormal(rng, 600, 0.3, 50, 2000),
                output=_lognormal(rng, 73, 0.4, 8, 300),
                tool_s=rng.choice(_LOOKUP_TOOL_S),
                node="value",
            )
            for sample in samples
        ]
        best = rng.choice(values)
        reflection = built.add(
            tuple(values),
            shared=built.context(best),
            new=_lognormal(rng, 600, 0.3, 50, 2000),
            output=_lognormal(rng, 73, 0.4, 8, 300),
            node="reflect",
        )
        front = (reflection,)
        reached = shared + new
    return built.calls


def swe_agent(rng: Random) -> list[SimCall]:
    """Mending an issue: only the last observations stay whole, so prompts share little."""
    built = _Builder()
    steps = _lognormal(rng, 10.7, 0.4, 3, 25)
    for step in range(steps):
        if not step:
            built.add((), shared=0, new=_lognormal(rng, 2260, 0.25, 1800, 9000), output=120)
            continue
        before = built.context(step - 1)
        shared = before if rng.random() < 0.5 else max(1500, before - rng.randint(1000, 5000))
        built.add(
            (step - 1,),
            shared=min(shared, before),
            new=_lognormal(rng, 400, 0.9, 20, 4000) + max(0, before - shared) * 4 // 5,
            output=_lognormal(rng, 156, 0.65, 20, 1500),
        )
    return built.calls


def coding(rng: Random) -> list[SimCall]:
    """A coding session: long growing prompts, tools in between, at times sub-agents beside it."""
    built = _Builder()
    steps = _lognormal(rng, 64, 0.95, 2, 560)
    front: tuple[int, ...] = ()
    main = -1
    limit = 180_000
    for _ in range(steps):
        tool_s = float(rng.choice(_CODING_TOOL_S)) if front else 0.0
        output = _lognormal(rng, 430, 0.9, 30, 8000)
        if main < 0 or built.context(main) > limit:
            # A fresh start, or the history was summed up: only the first part stays.
            shared = 0 if main < 0 else 12_000
            new = _lognormal(rng, 30_000, 0.7, 12_000, 120_000)
        else:
            shared, new = built.context(main), _lognormal(rng, 2000, 1.3, 50, 40_000)
        main = built.add(front, shared=shared, new=new, output=output, tool_s=tool_s, node="main")
        front = (main,)
        if rng.random() < 0.04:
            agents = [
                built.add(
                    (main,),
                    shared=min(12_000, built.calls[main].prompt_tokens),
                    new=_lognormal(rng, 5000, 0.8, 500, 40_000),
                    output=_lognormal(rng, 430, 0.9, 30, 8000),
                    tool_s=float(rng.choice(_CODING_TOOL_S)),
                    node="sub-agent",
                )
                for _ in range(rng.randint(2, 4))
            ]
            front = (main, *agents)
    return built.calls


def tools(rng: Random) -> list[SimCall]:
    """An agent that calls a tool after every answer; tools take 0.1 to 30 s, as often 0.1 as 30."""
    built = _Builder()
    steps = _lognormal(rng, 16, 0.5, 4, 60)
    for step in range(steps):
        built.add(
            (step - 1,) if step else (),
            shared=built.context(step - 1) if step else 0,
            new=_lognormal(rng, 700, 0.7, 20, 6000) if step else rng.randint(2000, 8000),
            output=_lognormal(rng, 120, 0.7, 10, 1000),
            tool_s=0.1 * 300.0 ** rng.random() if step else 0.0,
        )
    return built.calls


def supervisor(rng: Random) -> list[SimCall]:
    """A plan, then workers of five kinds beside each other, in any order, and one that sums up.

    A kind makes 1, 1, 2, 4 or about 8 calls one after the other.
    """
    built = _Builder()
    plan = built.add((), shared=0, new=1500, output=_lognormal(rng, 150, 0.4, 20, 600), node="plan")
    rounds = {"check": 1, "draft": 1, "look-up": 2, "review": 4}
    rounds["research"] = _lognormal(rng, 8, 0.3, 4, 16)
    workers = list(rounds)
    rng.shuffle(workers)
    ends = {}
    for worker in workers:
        last = plan
        for _ in range(rounds[worker]):
            last = built.add(
                (last,),
                shared=built.context(last),
                new=_lognormal(rng, 400, 0.5, 50, 2000),
                output=_lognormal(rng, 120, 0.5, 10, 600),
                node=worker,
            )
        ends[worker] = last
    built.add(
        tuple(sorted(ends.values())),
        shared=built.context(plan),
        new=1200,
        output=_lognormal(rng, 300, 0.4, 50, 1000),
        node="sum up",
    )
    return built.calls


def tot(rng: Random) -> list[SimCall]:
    """Breadth-first search: proposals from the best states, three values for each at once."""
    built = _Builder()
    front: tuple[int, ...] = ()
    for depth in range(3):
        beams = 1 if not depth else 5
        proposals = [
            built.add(
                front,
                shared=0 if not depth else 150,
                new=167 if not depth else _lognormal(rng, 20, 0.3, 5, 60),
                output=_lognormal(rng, 130, 0.4, 20, 600),
                node="propose",
            )
            for _ in range(beams)
        ]
        values: list[int] = []
        for _ in range(_lognormal(rng, 10, 0.35, 3, 40)):
            new = _lognormal(rng, 25, 0.3, 5, 100) + (0 if values else 330)
            prompt = new if not values else 330 + new
            for sibling in range(3):
                shared = prompt if sibling else prompt - new
                values.append(
                    built.add(
                        tuple(proposals),
                        shared=shared,
                        new=prompt - shared,
                        output=_lognormal(rng, 43, 0.3, 10, 200),
                        node="value",
                    )
                )
        front = tuple(values)
    return built.calls


Generator = Callable[[Random], list[SimCall]]
GENERATORS: dict[str, Generator] = {
    "sharegpt": sharegpt,
    "bfcl": bfcl,
    "lats": lats,
    "swe-agent": swe_agent,
    "coding": coding,
    "tools": tools,
    "tot": tot,
    "supervisor": supervisor,
}
MIXED = ("sharegpt", "bfcl", "lats")


def generated(name: str, programs: int, seed: int) -> list[SimProgram]:
    """Programs of a workload; ``mixed`` takes equal numbers of its three kinds in turns.

    A program depends on its number and the seed alone, so more programs begin with the same ones.
    """
    made = []
    for number in range(programs):
        kind = MIXED[number % len(MIXED)] if name == "mixed" else name
        rng = Random(f"{kind}/{seed}/{number}")
        made.append(SimProgram(f"{kind}-{number}", GENERATORS[kind](rng), kind=kind))
    return made
