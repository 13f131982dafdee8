"""A program that a simulation is running: what is left of it, and what it has taken so far."""

from __future__ import annotations

from collections.abc import Iterator

from .prefix_cache import CacheNode
from .sim_programs import SimProgram
from .sim_records import ProgramRecord
from .tickets import Receipt


class LiveProgram:
    """A program that has come and not ended.

    Args:
        spec: the program.
        now: when it comes, seconds.
        replicas: how many there are.

    Attributes:
        outstanding: calls that have come and not ended.
        left: calls that have not ended.
        nodes: where its contexts are in each replica's cache; made when they are needed.
        service_s: sum over its calls that have ended.
    """

    __slots__ = (
        "_arrived_s",
        "_chains",
        "_critical_path_s",
        "_first_call_s",
        "_idle_s",
        "_idle_since_s",
        "_lacking",
        "_preemptions",
        "_wait_s",
        "left",
        "nodes",
        "outstanding",
        "service_s",
        "spec",
    )

    def __init__(self, spec: SimProgram, now: float, replicas: int) -> None:
        self.spec = spec
        self.outstanding = 0
        self.left = len(spec.calls)
        self.nodes: list[list[CacheNode | None]] = [[] for _ in range(replicas)]
        self.service_s = 0.0
        self._arrived_s = now
        self._first_call_s = -1.0
        self._idle_since_s = now
        self._idle_s = 0.0
        self._lacking = [len(call.parents) for call in spec.calls]
        # Service along the longest chain up to the end of each call.
        self._chains = [0.0] * len(spec.calls)
        self._critical_path_s = 0.0
        self._wait_s = 0.0
        self._preemptions = 0

    def chain_s(self, index: int) -> float:
        """Service along the longest chain that leads to a call, seconds."""
        return max((self._chains[parent] for parent in self.spec.calls[index].parents), default=0.0)

    def call_comes(self, now: float) -> None:
        """One of its calls is ready to run."""
        if self._first_call_s < 0:
            self._first_call_s = self._idle_since_s = now
        if not self.outstanding:
            self._idle_s += now - self._idle_since_s
        self.outstanding += 1

    def call_ended(self, index: int, receipt: Receipt, now: float) -> list[int]:
        """One of its calls has ended; the calls whose last parent it was."""
        self.service_s += receipt.service_s
        self._wait_s += receipt.wait_s
        self._preemptions += receipt.preemptions
        self._chains[index] = chain_s = self.chain_s(index) + receipt.service_s
        self._critical_path_s = max(self._critical_path_s, chain_s)
        self.outstanding -= 1
        self.left -= 1
        if not self.outstanding:
            self._idle_since_s = now
        ready: list[int] = []
        for child in self.spec.children[index]:
            self._lacking[child] -= 1
            if not self._lacking[child]:
                ready.append(child)
        return ready

    def chains(self) -> Iterator[tuple[str, float]]:
        """By its calls, all ended: the node, and the longest chain that the call began, seconds."""
        calls = self.spec.calls
        took = [chain_s - self.chain_s(index) for index, chain_s in enumerate(self._chains)]
        found = self.spec.longest_chains(took, [call.tool_s for call in calls])
        return (
            (call.node, chain_s) for call, chain_s in zip(calls, found, strict=True) if call.node
        )

    def record(self, now: float) -> ProgramRecord:
        """What it took; its last call has just ended."""
        return ProgramRecord(
            name=self.spec.name,
            arrived_s=self._arrived_s,
            first_call_s=self._first_call_s,
            ended_s=now,
            response_s=now - self._first_call_s - self._idle_s,
            service_s=self.service_s,
            wait_s=self._wait_s,
            critical_path_s=self._critical_path_s,
            calls=len(self.spec.calls),
            output_tokens=self.spec.output_tokens,
            preemptions=self._preemptions,
        )
