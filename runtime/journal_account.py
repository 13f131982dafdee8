"""What a thread has used up so far: the part of a program that outlives its process.

An account is a fold over entries, one for each finished call, tool and turn. The same fold reads
the journal, keeps the account of a running program, and makes the snapshot that travels in
checkpoint metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Self

from ..scheduler.tickets import Receipt
from .journal_durations import Durations

SNAPSHOT_VERSION = 1
BRANCHES = "branches"
_BRANCHES = 256  # tasks of one superstep whose chains are known

Entry = dict[str, Any]  # one record of the journal, plain JSON types; its kind under "kind"


def call_entry(receipt: Receipt, through_s: float, tasks: Sequence[str] = ()) -> Entry:
    """The entry of a finished LLM call.

    Args:
        receipt: what it cost.
        through_s: p(c) + t(c), the length of the chain that ends with the call, seconds.
        tasks: ids of the graph tasks that it was made in.
    """
    entry: Entry = {
        "kind": "llm",
        "service_s": receipt.service_s,
        "wait_s": receipt.wait_s,
        "through_s": through_s,
        "promoted": any(later < sooner for sooner, later in pairwise(receipt.levels)),
        "preemptions": receipt.preemptions,
        "prompt_tokens": receipt.prompt_tokens,
        "cached_tokens": receipt.cached_tokens,
        "output_tokens": receipt.output_tokens,
        "replica": receipt.replica,
    }
    if tasks:
        entry["tasks"] = list(tasks)
    return entry


def tool_entry(name: str, duration_s: float) -> Entry:
    """The entry of a finished tool."""
    return {"kind": "tool", "name": name, "duration_s": duration_s}


def turn_entry(status: str) -> Entry:
    """The entry of a turn that is over."""
    return {"kind": "turn", "status": status}


SAVED: Entry = {"kind": "saved"}  # the thread has a checkpoint
RESET: Entry = {"kind": "reset"}  # its store has lost it: what comes next is another thread


@dataclass(slots=True, kw_only=True)
class Account:
    """The totals of a thread, over every process that ran it.

    Attributes:
        service_s, wait_s: sums over its finished calls, seconds.
        owed_wait_s: the part of the wait that no promotion has paid for yet, seconds.
        critical_path_s: service along the longest chain of calls, seconds.
        calls, tools, turns, interrupts: how many have ended; an interrupt is a turn that a person
            is to take up again.
        preemptions: how often its calls lost their seats.
        prompt_tokens, cached_tokens, output_tokens: sums over its calls.
        replica: index of the replica that served its last call; None before the first.
        tool_times: how long each of its tools takes, by name.
        branches: the longest chain that ends in each of the graph tasks that made the last calls,
            seconds, by id. A superstep that is broken off goes on with those that had ended.
    """

    service_s: float = 0.0
    wait_s: float = 0.0
    owed_wait_s: float = 0.0
    critical_path_s: float = 0.0
    calls: int = 0
    tools: int = 0
    turns: int = 0
    interrupts: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    replica: int | None = None
    tool_times: dict[str, Durations] = field(default_factory=dict)
    branches: dict[str, float] = field(default_factory=dict)

    def book(self, entry: Entry) -> None:
        """Take one entry in; a kind that is not known changes nothing."""
        match entry["kind"]:
            case "llm":
                self._book_call(entry)
            case "tool":
                self.tools += 1
                times = self.tool_times.setdefault(entry["name"], Durations())
                times.add(entry["duration_s"])
            case "turn":
                self.turns += 1
                self.interrupts += entry["status"] == "interrupted"
            case "total":
                self._add(Account.from_wire(entry["account"]))

    def _book_call(self, entry: Entry) -> None:
        self.calls += 1
        self.service_s += entry["service_s"]
        self.wait_s += entry["wait_s"]
        self.owed_wait_s = 0.0 if entry["promoted"] else self.owed_wait_s + entry["wait_s"]
        self.critical_path_s = max(self.critical_path_s, entry["through_s"])
        for name in ("preemptions", "prompt_tokens", "cached_tokens", "output_tokens"):
            setattr(self, name, getattr(self, name) + entry[name])
        self.replica = entry["replica"]
        for task in entry.get("tasks", ()):
            through_s = max(self.branches.pop(task, 0.0), entry["through_s"])
            self.branches[task] = through_s  # last in order: the one that is kept longest
        while len(self.branches) > _BRANCHES:
            del self.branches[next(iter(self.branches))]

    def _add(self, other: Account) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.critical_path_s = max(self.critical_path_s, other.critical_path_s)
        self.replica = other.replica if self.replica is None else self.replica
        for name, times in other.tool_times.items():
            self.tool_times.setdefault(name, Durations()).merge(times)
        self._add_branches(other)

    def _add_branches(self, other: Account) -> None:
        for task, through_s in other.branches.items():
            self.branches[task] = max(self.branches.get(task, 0.0), through_s)

    def longest(self, tasks: Iterable[str]) -> float:
        """The longest chain that ends in one of these tasks, seconds; 0 where none made calls."""
        return max((self.branches.get(task, 0.0) for task in tasks), default=0.0)

    def at_least(self, other: Account) -> None:
        """Raise every total to that of another account of the same thread.

        Of two accounts of one thread neither need know everything: a journal may have stayed behind
        on another machine, a snapshot is as old as its checkpoint.
        """
        newer = other.calls > self.calls
        owed_wait_s = other.owed_wait_s if newer else self.owed_wait_s
        replica = other.replica if newer else self.replica
        for name in (*_SUMS, "critical_path_s"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        self.owed_wait_s, self.replica = owed_wait_s, replica
        for name, times in other.tool_times.items():
            if len(times) > len(self.tool_times.get(name, ())):
                self.tool_times[name] = times.copy()
        self._add_branches(other)

    def to_wire(self) -> dict[str, Any]:
        """The account as plain JSON types: the snapshot in checkpoint metadata.

        It is stored with every checkpoint, so what is 0 is left out but for the first few.
        """
        wire: dict[str, Any] = {
            "v": SNAPSHOT_VERSION,
            "service_s": self.service_s,
            "wait_s": self.wait_s,
            "critical_path_s": self.critical_path_s,
            "calls": self.calls,
        }
        for name in _SPARSE:
            value = getattr(self, name)
            if value:
                wire[name] = value
        if self.replica is not None:
            wire["replica"] = self.replica
        if self.tool_times:
            wire["tool_times"] = {name: times.to_wire() for name, times in self.tool_times.items()}
        if self.branches:
            wire[BRANCHES] = self.branches.copy()
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_wire`; fields that this release does not know are left out.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the mapping is no account.
        """
        account = cls(**{name: wire[name] for name in _PLAIN if name in wire})
        for name, times in wire.get("tool_times", {}).items():
            account.tool_times[name] = Durations.from_wire(times)
        account.branches = {task: float(length) for task, length in wire.get(BRANCHES, {}).items()}
        return account


_PLAIN = tuple(f.name for f in fields(Account) if f.name not in ("tool_times", BRANCHES))
_SPARSE = (
    "owed_wait_s",
    "tools",
    "turns",
    "interrupts",
    "preemptions",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
)
_SUMS = tuple(name for name in _PLAIN if name not in ("critical_path_s", "replica"))
