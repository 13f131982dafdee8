"""The process table: one entry a program, in the process that coordinates the replicas.

Section 4.2.1 of the paper lists the fields. The table is told the time; it is not thread-safe, its
owner calls it from one thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count, pairwise

from .life_table import share_of, work_of
from .policies import Policy
from .service_history import ServiceHistory
from .tickets import Receipt, Ticket

# So many of a name show what its programs share: one alone may be cached for another reason, as
# that of a thread's next turn is.
_FIRST_PROMPTS = 8


@dataclass(slots=True, kw_only=True)
class ActiveCall:
    """A thread of a program: one call that has not ended.

    Attributes:
        attained_s: length of the chain that leads to the call, seconds.
        replica: index of the replica that serves it; None before it is placed.
        wait_s, service_s: as last reported while it runs, seconds.
    """

    call: str
    arrived_s: float
    attained_s: float
    replica: int | None = None
    wait_s: float = 0.0
    service_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class ProgramEntry:
    """What is known of a program that has not ended. Times are on the clock the table is told.

    Attributes:
        number: place in the order in which programs were opened, from 0.
        opened_s: start of the program.
        service_s: sum of the service of its finished calls, seconds.
        critical_path_s: service along the longest chain of calls seen, seconds.
        wait_s: sum of the wait of its finished calls, seconds.
        owed_wait_s: the part of it that no promotion has paid for yet; see :meth:`settle`.
        active: its unfinished calls by id.
        replicas: how many unfinished calls each replica has.
        last_arrival_s: arrival of the newest call; None before the first.
        last_completion_s: end of the last call; None before the first.
        finished_calls: how many calls have ended.
        output_tokens: tokens that its finished calls generated.
        name: of its graph; programs of one name are expected to be alike.
        work: what its finished calls did, tokens as in :mod:`.life_table`.
        longest_context: prompt and output of its longest finished call, tokens.
        place: where its newest call was placed by what is known of its name; None before.
        to_come_s: what is expected to come after calls of its nodes, seconds: what was known when
            it was first asked for, so that calls of a node keep the order in which they came.
    """

    program: str
    number: int
    opened_s: float
    service_s: float = 0.0
    critical_path_s: float = 0.0
    wait_s: float = 0.0
    owed_wait_s: float = 0.0
    active: dict[str, ActiveCall] = field(default_factory=dict)
    replicas: Counter[int] = field(default_factory=Counter)
    last_arrival_s: float | None = None
    last_completion_s: float | None = None
    finished_calls: int = 0
    output_tokens: int = 0
    name: str = ""
    work: float = 0.0
    longest_context: int = 0
    place: float | None = None
    to_come_s: dict[str, float] = field(default_factory=dict)

    def settle(self, receipt: Receipt, chain_s: float, prompt_share: float) -> None:
        """Book a finished call whose chain of parents took ``chain_s`` seconds.

        Args:
            prompt_share: what a token of its prompt counts as work.

        The wait that a promotion paid for no longer counts towards the next one: were it kept, an
        overloaded engine would promote every later call of the program at once, and the levels
        would turn into first come, first served.
        """
        promoted = any(later < sooner for sooner, later in pairwise(receipt.levels))
        self.service_s += receipt.service_s
        self.critical_path_s = max(self.critical_path_s, chain_s + receipt.service_s)
        self.wait_s += receipt.wait_s
        self.owed_wait_s = 0.0 if promoted else self.owed_wait_s + receipt.wait_s
        self.output_tokens += receipt.output_tokens
        # What an earlier call had in its context is computed again only where KV was lost.
        known = max(receipt.cached_tokens, min(receipt.prompt_tokens, self.longest_context))
        context = receipt.prompt_tokens + receipt.output_tokens
        self.work += work_of(
            receipt.output_tokens, receipt.prompt_tokens - known, context, prompt_share
        )
        self.longest_context = max(self.longest_context, context)


class ProcessTable:
    """All running programs, and the tickets of their calls.

    Args:
        policy: turns a program's history into the attained service of its next call.
        history: what is known of earlier programs by name; it learns from those here.
    """

    def __init__(self, policy: Policy, history: ServiceHistory | None = None) -> None:
        self.policy = policy
        self.history = ServiceHistory() if history is None else history
        self.programs: dict[str, ProgramEntry] = {}
        self._program_of: dict[str, str] = {}
        self._numbers = count()
        # By name, what the cache had of the newest first prompts: all had what programs share.
        self._found: dict[str, deque[int]] = {}

    def __len__(self) -> int:
        return len(self.programs)

    def open(self, program: str, now: float, name: str = "") -> ProgramEntry:
        """The program's entry, made if there is none: a program may come back for another turn.

        Args:
            name: of its graph, where that is known.
        """
        entry = self.programs.get(program)
        if entry is None:
            entry = ProgramEntry(program=program, number=next(self._numbers), opened_s=now)
            self.programs[program] = entry
        entry.name = name or entry.name
        return entry

    def call_started(
        self,
        program: str,
        call: str,
        now: float,
        *,
        chain_s: float | None = None,
        prompt_tokens: int | None = 0,
        node: str | None = None,
    ) -> Ticket:
        """A call begins; its ticket.

        Opens the program if need be: a call over plain HTTP has nobody who did.

        Args:
            chain_s: max over the call's parents k of p(k) + t(k) where the DAG is known, seconds.
            prompt_tokens: length of the prompt; None while it is not tokenised: the ticket has no
                course before :meth:`prompt_known`.
            node: of the program's graph, that makes the call; None outside of one.

        Raises:
            ValueError: a call of that id is active: two calls would share one receipt.
        """
        if call in self._program_of:
            raise ValueError(f"call {call!r} has already started; give every call its own id")
        entry = self.open(program, now)
        inherited = entry.critical_path_s if chain_s is None else chain_s
        entry.active[call] = ActiveCall(call=call, arrived_s=now, attained_s=inherited)
        entry.last_arrival_s = now
        self._program_of[call] = program
        ticket = Ticket(
            program=program,
            call=call,
            attained_s=self.policy.attained(entry, chain_s),
            program_service_s=entry.service_s,
            program_wait_s=entry.owed_wait_s,
            program_number=entry.number,
            to_come_s=self._to_come_s(entry, node) if node and self.policy.learns else 0.0,
        )
        return ticket if prompt_tokens is None else self.prompt_known(ticket, prompt_tokens)

    def prompt_known(self, ticket: Ticket, prompt_tokens: int) -> Ticket:
        """The prompt of a call has been tokenised: its ticket with all that follows from that.

        Args:
            ticket: as the call has it, also one that is not of this table.
            prompt_tokens: length of the prompt.
        """
        course = ticket.course
        if self.policy.learns and ticket.call in self._program_of:
            entry, _ = self._active(ticket.call)
            course = self._course(entry, prompt_tokens)
        return ticket._replace(prompt_tokens=prompt_tokens, course=course)

    def call_placed(self, call: str, replica: int) -> None:
        """The balancer has given an active call to a replica; again when it moves."""
        entry, active = self._active(call)
        if active.replica is not None:
            self._release(entry, active.replica)
        active.replica = replica
        entry.replicas[replica] += 1

    def call_progressed(self, call: str, *, service_s: float, wait_s: float) -> None:
        """What an active call has taken so far, seconds."""
        _, active = self._active(call)
        active.service_s, active.wait_s = service_s, wait_s

    def call_ended(self, call: str, now: float, receipt: Receipt | None) -> bool:
        """A call is over; False if it is not active, as when it ended before.

        Args:
            receipt: what it cost; None where the engine could not say (it died).
        """
        program = self._program_of.pop(call, None)
        if program is None:
            return False
        entry = self.programs[program]
        active = entry.active.pop(call)
        if active.replica is not None:
            self._release(entry, active.replica)
        entry.last_completion_s = now
        entry.finished_calls += 1
        if receipt is not None:
            before = entry.work
            if not entry.longest_context and receipt.service_s:
                self._first_prompt(entry.name, receipt.cached_tokens)
            entry.settle(receipt, active.attained_s, self.history.prompt_share)
            self.history.worked(entry.name, before, entry.work)
        return True

    def close(
        self, program: str, *, ended: bool = True, chains: Iterable[tuple[str, float]] = ()
    ) -> ProgramEntry | None:
        """The program has ended: frees its entry and forgets its active calls; None if unknown.

        Args:
            ended: it has come to its end, well or not; False if it may go on, as one that waits for
                a person: its work so far counts, but not as the size of a program.
            chains: by its calls that nodes made, the node, and how long the longest chain was that
                the call began, seconds.
        """
        entry = self.programs.pop(program, None)
        if entry is not None and ended and entry.finished_calls:
            self.history.ended(entry.name, entry.work)
            for node, chain_s in chains:
                self.history.chain_took(entry.name, node, chain_s)
        for call in entry.active if entry else ():
            del self._program_of[call]
        return entry

    def stale(self, now: float, older_than_s: float) -> list[ProgramEntry]:
        """Programs without an active call in which nothing has happened for that long."""
        return [
            entry
            for entry in self.programs.values()
            if not entry.active and now - self._last_sign(entry) > older_than_s
        ]

    def _course(self, entry: ProgramEntry, prompt_tokens: int) -> tuple[float, ...]:
        """Where the call stands.

        Its program cannot end before the prompt at hand is computed: what is new in it counts as
        done. Of a first prompt that is what the cache did not have of every one of that name.
        """
        longest = max(prompt_tokens, entry.longest_context)
        shared = min(self._found.get(entry.name, (0,)))
        had = entry.longest_context or min(longest, shared)
        work = entry.work + work_of(0, longest - had, prompt_share=self.history.prompt_share)
        course = self.history.course(entry.name, work, entry.place, share_of(longest))
        entry.place = course[1]
        return course

    def _to_come_s(self, entry: ProgramEntry, node: str) -> float:
        found = entry.to_come_s.get(node) or self.history.to_come_s(entry.name, node)
        if found:
            entry.to_come_s[node] = found
        return found

    def _first_prompt(self, name: str, cached_tokens: int) -> None:
        if name in self.history.names:
            self._found.setdefault(name, deque(maxlen=_FIRST_PROMPTS)).append(cached_tokens)

    @staticmethod
    def _last_sign(entry: ProgramEntry) -> float:
        signs = (entry.opened_s, entry.last_arrival_s, entry.last_completion_s)
        return max(sign for sign in signs if sign is not None)

    def _active(self, call: str) -> tuple[ProgramEntry, ActiveCall]:
        program = self._program_of.get(call)
        if program is None:
            raise KeyError(f"call {call!r} is not active; start it before it is placed")
        entry = self.programs[program]
        return entry, entry.active[call]

    @staticmethod
    def _release(entry: ProgramEntry, replica: int) -> None:
        entry.replicas[replica] -= 1
        if not entry.replicas[replica]:
            del entry.replicas[replica]
