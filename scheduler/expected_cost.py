"""Our balancer: a call goes where it costs least, itself and the calls that are there already.

On a replica with n calls under way, of which at most ``seats`` run at once, a call costs

    backlog + prefill x (1 + min(n, seats))

seconds. The *backlog* is what it waits for: the work of all calls placed there that have not ended.
The *prefill* is what it computes of its prompt, since it is not cached there; every call that runs
there has to sit through it as well. So a program stays where its KV is, unless another replica has
so much less to do that computing its context again is worth it to all: that bounds how far affinity
can overload a replica. A program's first call, cached nowhere, goes where least is to do.

All of it is learned from what is told:

1. A call's *work*: its share of a replica, for as long as it generates, and its prefill. The share
   is that of the seats or of the KV cache, whichever is larger. Rates and lengths of answers come
   from receipts (:class:`CallRates`), an answer's from its own program where it has had some.
2. *Cached* is a program's longest context on a replica, until as many tokens as the replica holds
   have been written there since its last use: it evicts what was used longest ago. How much of what
   was expected was found in truth, as receipts say, corrects it (branches share less than chains).

A decision looks once at every replica.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autellix.errors import EngineStoppedError

from .call_rates import CallRates
from .tickets import Receipt, Ticket

_FOUND_WEIGHT = 0.02  # of the newest call in what is found of what was expected
_LEAST_FOUND = 0.02
_MOST_PROGRAMS = 100_000  # of whose contexts it is known where they are
_OUTPUT_WEIGHT = 0.3  # of a program's newest answer in the length of its answers


class _Kept(NamedTuple):
    """A program's context on a replica: its length, and what had been written when it was used."""

    tokens: int
    mark: float


class _Placed(NamedTuple):
    """A call under way."""

    program: str
    replica: int
    work_s: float
    expected_tokens: float


class _Replica:
    """A replica as far as it is known; see the module."""

    __slots__ = ("backlog_s", "calls", "emptied", "found", "kv_tokens", "seats", "written")

    def __init__(self) -> None:
        self.seats = 1
        self.kv_tokens = math.inf
        self.calls = 0
        self.backlog_s = 0.0
        self.written = 0.0
        self.emptied = -1.0  # what had been written when its cache was empty last
        self.found = 1.0

    def cached(self, kept: _Kept, prompt_tokens: int) -> float:
        """Tokens of a prompt that should be in the cache, before the correction."""
        if kept.mark <= self.emptied or self.written - kept.mark >= self.kv_tokens:
            return 0.0
        return min(kept.tokens, prompt_tokens)

    def share(self, context_tokens: float) -> float:
        """Part of the replica that a call takes while it generates."""
        return max(1 / self.seats, context_tokens / self.kv_tokens)


class _Program:
    """A program: its contexts by replica, and the mean length of its answers, tokens."""

    __slots__ = ("kept", "output_tokens")

    def __init__(self) -> None:
        self.kept: dict[int, _Kept] = {}
        self.output_tokens = 0.0


class ExpectedCost:
    """Satisfies ``Balancer``.

    Attributes:
        rates: what tokens cost, as learned so far.
    """

    def __init__(self) -> None:
        self.rates = CallRates()
        self._replicas: list[_Replica] = []
        self._programs: dict[str, _Program] = {}
        self._placed: dict[str, _Placed] = {}

    def place(self, ticket: Ticket, loads: Sequence[float]) -> int:
        """The replica where the call costs least; see the module.

        Raises:
            EngineStoppedError: no replica can take the call.
        """
        self._know(len(loads))
        program = self._program(ticket.program)
        kept, prompt = program.kept, ticket.prompt_tokens
        token_s, replicas = self.rates.prompt_token_s, self._replicas
        best, least_s = -1, math.inf
        for index, load in enumerate(loads):
            if load == math.inf:
                continue
            replica = replicas[index]
            cached = replica.found * replica.cached(kept[index], prompt) if index in kept else 0.0
            held_up = 1 + min(load, replica.seats)
            cost_s = replica.backlog_s + token_s * (prompt - cached) * held_up
            if cost_s < least_s:
                best, least_s = index, cost_s
        if best < 0:
            raise EngineStoppedError("no replica can take calls; start one or wait for its restart")
        self._put(ticket, program, best)
        return best

    def _program(self, name: str) -> _Program:
        """The program, newest in the table; the one that was asked for longest ago may go."""
        program = self._programs.pop(name, None) or _Program()
        self._programs[name] = program
        if len(self._programs) > _MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program

    def _put(self, ticket: Ticket, program: _Program, index: int) -> None:
        replica, prompt = self._replicas[index], ticket.prompt_tokens
        expected = replica.cached(program.kept[index], prompt) if index in program.kept else 0.0
        computed = prompt - replica.found * expected
        output = program.output_tokens or self.rates.output_tokens
        work_s = replica.share(prompt + output) * output * self.rates.output_token_s
        work_s += computed * self.rates.prompt_token_s
        replica.calls += 1
        replica.backlog_s += work_s
        replica.written += computed
        program.kept[index] = _Kept(prompt, replica.written)
        self._placed[ticket.call] = _Placed(ticket.program, index, work_s, expected)

    def call_ended(self, call: str, receipt: Receipt | None) -> None:
        """Take its work off the replica, and learn from its receipt."""
        placed = self._placed.pop(call, None)
        if placed is None:
            return
        replica = self._replicas[placed.replica]
        replica.calls -= 1
        # Rounding leaves nothing behind.
        replica.backlog_s = max(replica.backlog_s - placed.work_s, 0.0) if replica.calls else 0.0
        if receipt is None or not receipt.output_tokens:
            return
        self.rates.learn(receipt)
        replica.written += receipt.output_tokens
        if placed.expected_tokens:
            found = min(1.0, max(_LEAST_FOUND, receipt.cached_tokens / placed.expected_tokens))
            replica.found += _FOUND_WEIGHT * (found - replica.found)
        if (program := self._programs.get(placed.program)) is not None:
            self._note(program, placed.replica, receipt)

    def _note(self, program: _Program, index: int, receipt: Receipt) -> None:
        """What an ended call of the program leaves on the replica."""
        weight = _OUTPUT_WEIGHT if program.output_tokens else 1.0
        program.output_tokens += weight * (receipt.output_tokens - program.output_tokens)
        replica = self._replicas[index]
        context = receipt.prompt_tokens + receipt.output_tokens
        if (kept := program.kept.get(index)) is not None:
            context = max(context, int(replica.cached(kept, kept.tokens)))
        program.kept[index] = _Kept(context, replica.written)

    def replica_serves(self, replica: int, *, seats: int, kv_tokens: int) -> None:
        """See ``Balancer.replica_serves``."""
        self._know(replica + 1)
        it = self._replicas[replica]
        it.seats, it.kv_tokens = seats or 1, kv_tokens or math.inf
        it.emptied = it.written
        it.written += 1  # whatever is written from now on comes after

    def _know(self, replicas: int) -> None:
        while len(self._replicas) < replicas:
            self._replicas.append(_Replica())

    def program_ended(self, program: str) -> None:
        """See ``Balancer.program_ended``."""
        self._programs.pop(program, None)
