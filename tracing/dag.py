"""The DAG of one program, with attained service and the critical path kept as it grows.

    attained service   p(c) = max over parents k of p(k) + t(k), 0 at a root
    critical path      the chain whose end c has the largest p(c) + t(c)

``t`` is service time measured in the engine, so a tool counts 0 and only passes on what came before
it. (The paper's ATLAS, section 4; here evaluated on the recorded DAG, barrier edges included.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, TypedDict, cast

import networkx as nx

from autellix.errors import TraceError

from ..scheduler.tickets import CallStatus, Receipt
from .response import ResponseTime

CallKind = Literal["llm", "tool"]
NodeKind = Literal["llm", "tool", "earlier"]
EdgeKind = Literal["order", "trigger", "barrier"]
CallEnd = Literal["done", "failed", "aborted"]


class CallAttributes(TypedDict):
    """Attributes of a node: ``dag.graph.nodes[call]``.

    A node of kind "earlier" is no call: it stands for those of earlier runs of the program, and its
    service is the length of their critical path.

    ``place`` counts calls in the order they were added, which is a topological order.
    ``superstep`` counts, from 0, those of the program in which calls were made: an edge of kind
    "trigger" or "barrier" leads into a later one. Times are seconds since the run's start;
    ``service_s`` is 0 until the receipt is there.
    """

    kind: NodeKind
    name: str
    node: str | None
    attempt: int
    place: int
    superstep: int
    start_s: float
    first_token_s: float | None
    end_s: float | None
    status: CallStatus
    error: str | None
    service_s: float
    attained_s: float
    receipt: Receipt | None


class ProgramDag:
    """The calls of one program as a ``networkx.DiGraph`` and what they cost.

    Nodes carry :class:`CallAttributes`, edges the attribute ``kind``. Adding, finishing or
    measuring a call takes time in proportion to its parents, whatever the size of the program. The
    graph is open for reading; change it only through the methods.

    Attributes:
        graph: the DAG.
        service_s, wait_s: sums over the receipts, seconds.
        tool_s: sum of the durations of the tools that ended, seconds.
        llm_calls, tools: how many were added.
        llm_done, tools_done: how many of them have ended, in whatever way.
        prompt_tokens, cached_tokens, output_tokens: sums over the receipts.
        critical_path_s: largest p(c) + t(c), seconds.
        earlier: critical paths of earlier runs that this one goes on from, seconds, by id.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        self.graph: nx.DiGraph = nx.DiGraph()
        self.service_s = 0.0
        self.wait_s = 0.0
        self.tool_s = 0.0
        self.llm_calls = 0
        self.llm_done = 0
        self.tools = 0
        self.tools_done = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.critical_path_s = 0.0
        self.earlier: dict[str, float] = {}
        self._critical_end: str | None = None
        self._response = ResponseTime()

    def __len__(self) -> int:
        return len(self.graph)

    def __contains__(self, call: object) -> bool:
        return call in self.graph

    def call(self, call: str) -> CallAttributes:
        """The attributes of a call.

        Raises:
            TraceError: the program has no such call.
        """
        try:
            return cast("CallAttributes", self.graph.nodes[call])
        except KeyError:
            raise TraceError(
                f"program {self.program!r} has no call {call!r}; report its start first"
            ) from None

    def parents(self, call: str) -> Iterable[tuple[str, EdgeKind]]:
        """The immediate predecessors of a call with the kind of each edge."""
        return ((parent, edge["kind"]) for parent, edge in self.graph.pred[call].items())

    def llm_parents(self, call: str) -> tuple[str, ...]:
        """The LLM calls that a call follows, directly or through tools only, in their order."""
        found: dict[str, None] = {}
        seen, todo = {call}, list(self.graph.pred[call])
        while todo:
            parent = todo.pop()
            if parent in seen:
                continue
            seen.add(parent)
            if self.call(parent)["kind"] == "llm":
                found[parent] = None
            else:
                todo += self.graph.pred[parent]
        return tuple(sorted(found, key=lambda parent: self.call(parent)["place"]))

    def attained_s(self, call: str) -> float:
        """Attained service p(c) of a call, seconds."""
        return self.call(call)["attained_s"]

    def add_call(
        self,
        call: str,
        *,
        kind: CallKind,
        name: str,
        node: str | None,
        parents: Sequence[tuple[str, EdgeKind]],
        start_s: float,
        attempt: int = 1,
    ) -> float:
        """Add a call that begins now.

        Args:
            call: id, new to the program.
            kind: "llm" runs in the engine, "tool" outside of it.
            name: model or tool name.
            node: innermost graph node or task, None outside of one.
            parents: immediate predecessors (id, edge kind); where one comes twice its first edge
                counts.
            start_s: seconds since the run's start.
            attempt: which attempt of its node makes it, from 1.

        Returns:
            Attained service p(c), seconds.

        Raises:
            TraceError: the call is there already, or a parent is not.
        """
        if call in self.graph:
            raise TraceError(
                f"program {self.program!r} already has a call {call!r}; ids must be unique in a run"
            )
        missing = [parent for parent, _ in parents if parent not in self.graph]
        if missing:
            raise TraceError(
                f"call {call!r} names parents that program {self.program!r} does not have: "
                f"{', '.join(map(repr, missing))}; add parents before their children"
            )
        self._add_node(call, kind, name, node, start_s)
        self.call(call)["attempt"] = attempt
        for parent, edge_kind in parents:
            if parent not in self.graph.pred[call]:
                self.graph.add_edge(parent, call, kind=edge_kind)
                entered = self.call(parent)["superstep"] + (edge_kind != "order")
                self.call(call)["superstep"] = max(self.call(call)["superstep"], entered)
        if kind == "llm":
            self.llm_calls += 1
            self._response.begin(start_s)
        else:
            self.tools += 1
        attained = self._best_over_parents(call)
        self.call(call)["attained_s"] = attained
        return attained

    def add_earlier(self, id: str, critical_path_s: float) -> None:
        """Add a root that stands for the calls of earlier runs of the program.

        Args:
            id: new to the program; calls may name it as a parent.
            critical_path_s: service along the longest chain of those calls, seconds.
        """
        self.earlier[id] = critical_path_s
        self._add_node(id, "earlier", "earlier calls", None, 0.0)
        attributes = self.call(id)
        attributes["status"], attributes["end_s"] = "done", 0.0
        attributes["service_s"] = critical_path_s
        self._consider(id)

    def _add_node(
        self, id: str, kind: NodeKind, name: str, node: str | None, start_s: float
    ) -> None:
        attributes: CallAttributes = {
            "kind": kind,
            "name": name,
            "node": node,
            "attempt": 1,
            "place": len(self.graph),
            "superstep": 0,
            "start_s": start_s,
            "first_token_s": None,
            "end_s": None,
            "status": "running",
            "error": None,
            "service_s": 0.0,
            "attained_s": 0.0,
            "receipt": None,
        }
        self.graph.add_node(id, **attributes)

    def finish_call(
        self,
        call: str,
        *,
        end_s: float,
        status: CallEnd,
        error: str | None = None,
        first_token_s: float | None = None,
    ) -> None:
        """A call is over.

        Args:
            call: id of a running call.
            end_s: seconds since the run's start.
            status: how it ended.
            error: message of a failed call.
            first_token_s: when its first token came, seconds since the run's start.

        Raises:
            TraceError: the program has no such call, or it ended before.
        """
        attributes = self.call(call)
        if attributes["status"] != "running":
            raise TraceError(
                f"call {call!r} of program {self.program!r} ended before, as "
                f"{attributes['status']!r}; report each end once"
            )
        attributes["end_s"] = end_s
        attributes["status"] = status
        attributes["error"] = error
        attributes["first_token_s"] = first_token_s
        if attributes["kind"] == "llm":
            self.llm_done += 1
            self._response.end(end_s)
        else:
            self.tools_done += 1
            self.tool_s += max(0.0, end_s - attributes["start_s"])

    def set_receipt(self, call: str, receipt: Receipt) -> None:
        """Take what the engine measured, before or after the call's end; a later one replaces.

        Raises:
            TraceError: the program has no such call.
        """
        attributes = self.call(call)
        if attributes["receipt"] is not None:
            self._count(attributes["receipt"], -1)
        self._count(receipt, 1)
        attributes["receipt"] = receipt
        attributes["service_s"] = receipt.service_s
        self._settle(call)

    def critical_path(self) -> list[str]:
        """The ids along the critical path, first call first; empty while no service is known."""
        path: list[str] = []
        call = self._critical_end
        while call is not None:
            path.append(call)
            # The first of equals, so that a rebuilt DAG names the same path.
            call = max(self.graph.pred[call], key=self._through, default=None)
        path.reverse()
        return path

    def chains(self, since: int = 0) -> Iterator[tuple[str, float]]:
        """By the LLM calls that nodes made: the node, and the longest chain from there, seconds.

        LLM calls count with their service, tools with the time they took, up to the first call made
        inside of them. A call of which no receipt came begins none: it did not end well.

        Args:
            since: leave out the calls that were added before so many were there.
        """
        found: dict[str, float] = {}
        for call in reversed([*islice(self.graph, since, None)]):
            attributes = self.call(call)
            after_s = max((found[child] for child in self.graph.succ[call]), default=0.0)
            found[call] = self._took_s(attributes, self.graph.succ[call]) + after_s
            if attributes["node"] is not None and attributes["receipt"] is not None:
                yield attributes["node"], found[call]

    def _took_s(self, attributes: CallAttributes, children: Iterable[str]) -> float:
        """How long a call took by itself, seconds."""
        end_s = attributes["end_s"]
        if attributes["kind"] != "tool" or end_s is None:
            return attributes["service_s"]
        # What is called inside a tool follows it, and counts for itself.
        begins_s = min((self.call(child)["start_s"] for child in children), default=end_s)
        return max(0.0, min(end_s, begins_s) - attributes["start_s"])

    def response_s(self, now_s: float | None = None) -> float:
        """Response time, seconds: the time in which at least one LLM call was outstanding.

        Args:
            now_s: running calls count up to here, seconds since the run's start.
        """
        return self._response.value_s(now_s)

    def _through(self, call: str) -> float:
        """p(k) + t(k): what a child inherits from this call."""
        attributes = self.graph.nodes[call]
        return attributes["attained_s"] + attributes["service_s"]

    def _best_over_parents(self, call: str) -> float:
        return max(map(self._through, self.graph.pred[call]), default=0.0)

    def _count(self, receipt: Receipt, sign: int) -> None:
        self.service_s += sign * receipt.service_s
        self.wait_s += sign * receipt.wait_s
        self.prompt_tokens += sign * receipt.prompt_tokens
        self.cached_tokens += sign * receipt.cached_tokens
        self.output_tokens += sign * receipt.output_tokens

    def _settle(self, measured: str) -> None:
        """Carry a call's new service to its descendants and to the critical path.

        Descendants are visited by place, each at most once, and only where something changed: a
        call measured before it has children costs nothing here.
        """
        self._consider(measured)
        queue = [(self.call(child)["place"], child) for child in self.graph.succ[measured]]
        heapq.heapify(queue)
        seen = {child for _, child in queue}
        while queue:
            _, call = heapq.heappop(queue)
            attributes = self.call(call)
            attained = self._best_over_parents(call)
            if attained == attributes["attained_s"]:
                continue
            attributes["attained_s"] = attained
            self._consider(call)
            for child in self.graph.succ[call]:
                if child not in seen:
                    seen.add(child)
                    heapq.heappush(queue, (self.call(child)["place"], child))

    def _consider(self, call: str) -> None:
        """Let a call whose p(c) + t(c) changed become, or cease to be, the critical path's end."""
        total = self._through(call)
        if total > self.critical_path_s:
            self.critical_path_s, self._critical_end = total, call
        elif call == self._critical_end and total < self.critical_path_s:
            end = max(self.graph, key=self._through)
            self.critical_path_s = self._through(end)
            self._critical_end = end if self.critical_path_s > 0 else None
