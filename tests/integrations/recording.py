"""A recorder over a fake model, and words to read a recorded DAG in."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import uvloop
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph

from autellix.integrations.recorder import Recorder
from autellix.runtime.protocols import CallStart

MODES = ("sync", "async", "stream", "astream")
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
PATIENCE_S = 20.0  # no test waits this long unless it is broken


class State(TypedDict, total=False):
    """What the test graphs pass on."""

    xs: Annotated[list, operator.add]
    i: int


class Gates:
    """Named gates: a call whose prompt is ``name@gate`` ends only once the gate is open."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> threading.Event:
        with self._lock:
            return self._events.setdefault(name, threading.Event())

    def open(self, name: str) -> None:
        self[name].set()

    def wait(self, name: str) -> None:
        assert self[name].wait(PATIENCE_S), f"gate {name!r} never opened"

    async def await_(self, name: str) -> None:
        # A loop has no cheap way to wait for a thread's event: turn the loop until it is set.
        async with asyncio.timeout(PATIENCE_S):
            while not self[name].is_set():
                await asyncio.sleep(0.001)


class Model(BaseChatModel):
    """Answers with its prompt; ``name@gate`` waits for the gate, ``name!`` fails."""

    gates: Any
    seen: list[Any]
    recorder: Any = None

    @property
    def _llm_type(self) -> str:
        return "fake"

    def _begin(self, messages: list[Any]) -> tuple[str, str]:
        name, _, gate = str(messages[-1].content).partition("@")
        self.seen.append((name, self.recorder.current_call()))
        self.gates.open(f"{name} began")
        if name.endswith("!"):
            raise ConnectionError(name)
        return name, gate

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any) -> Any:
        name, gate = self._begin(messages)
        if gate:
            self.gates.wait(gate)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(name))])

    async def _agenerate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any
    ) -> Any:
        name, gate = self._begin(messages)
        await asyncio.sleep(0)
        if gate:
            await self.gates.await_(gate)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(name))])


class Seen:
    """An observer that remembers everything, in order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.events: list[tuple[Any, ...]] = []
        self.starts: dict[str, CallStart] = {}
        self.ends: dict[str, str] = {}
        self.errors: dict[str, str | None] = {}
        self.labels: dict[str, str] = {}

    def program_started(self, program: str, name: str) -> None:
        with self.lock:
            self.events.append(("program", program, name))

    def program_ended(self, program: str, status: str, error: str | None) -> None:
        with self.lock:
            self.events.append(("end", program, status, error))

    def call_started(self, start: CallStart) -> None:
        with self.lock:
            for parent in start.parents:
                known = self.starts[parent.id]
                assert known.kind == "tool" or parent.id in self.ends, "a parent still runs"
                assert known.program == start.program, "an edge between programs"
            self.starts[start.call] = start
            self.events.append(("call", start.program, start.name))

    def call_ended(self, call: str, status: str, error: str | None) -> None:
        with self.lock:
            assert call in self.starts and call not in self.ends, "each call ends once"
            self.ends[call], self.errors[call] = status, error

    # -- reading ------------------------------------------------------------------------------

    def named(self) -> dict[str, str]:
        """Call id -> prompt (of an LLM call) or tool name."""
        return {id: self.labels.get(id, start.name) for id, start in self.starts.items()}

    def edges(self, *kinds: str) -> Counter[tuple[str, str]]:
        name = self.named()
        return Counter(
            (name[parent.id], name[start.call])
            for start in self.starts.values()
            for parent in start.parents
            if not kinds or parent.kind in kinds
        )

    def ordinal_edges(self) -> Counter[tuple[str, str]]:
        """Edges between llm1, llm2, tool1 ... in the order in which they began."""
        count: Counter[str] = Counter()
        name = {}
        for id, start in self.starts.items():
            count[start.kind] += 1
            name[id] = f"{start.kind}{count[start.kind]}"
        return Counter(
            (name[p.id], name[id]) for id, start in self.starts.items() for p in start.parents
        )

    def programs(self) -> set[str]:
        return {start.program for start in self.starts.values()}

    def nodes(self) -> dict[str, str | None]:
        name = self.named()
        return {name[id]: start.node for id, start in self.starts.items()}

    def statuses(self) -> dict[str, str]:
        name = self.named()
        return {name[id]: status for id, status in self.ends.items()}

    def outcomes(self) -> list[tuple[str, str]]:
        return [(e[1], e[2]) for e in self.events if e[0] == "end"]

    def check_antichains(self) -> None:
        """No parent of a call precedes another parent of it, in the DAG as told."""
        before: dict[str, frozenset[str]] = {}
        for id, start in self.starts.items():
            parents = [p.id for p in start.parents]
            for one in parents:
                assert not any(one in before[other] for other in parents), "a redundant parent"
            before[id] = frozenset(parents).union(*(before[p] for p in parents))


def dag(text: str) -> Counter[tuple[str, str]]:
    """``"a>b b>c"`` as edges; an edge given twice counts twice."""
    return Counter(tuple(edge.split(">")) for edge in text.split())  # type: ignore[misc]


class World:
    """Everything a test needs: a recorder with its observer, a model, ways to run."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.recorder = Recorder(self.seen)
        self.gates = Gates()
        self.model = Model(gates=self.gates, recorder=self.recorder, seen=[])
        self.loop = "asyncio"
        self._label_prompts()

    def _label_prompts(self) -> None:
        start = self.recorder.on_chat_model_start

        def labelled(serialized: Any, messages: Any, *, run_id: Any, **kwargs: Any) -> None:
            prompt = str(messages[0][-1].content).partition("@")[0]
            self.seen.labels[str(run_id)] = prompt
            start(serialized, messages, run_id=run_id, **kwargs)

        self.recorder.on_chat_model_start = labelled  # type: ignore[method-assign]

    def call(self, prompt: str) -> str:
        return str(self.model.invoke(prompt).content)

    async def acall(self, prompt: str) -> str:
        return str((await self.model.ainvoke(prompt)).content)

    def node(self, *prompts: str) -> RunnableLambda:
        """A node that makes these calls one after the other, sync or async."""

        def sync(state: Any) -> Any:
            return {"xs": [self.call(p) for p in prompts]}

        async def asynchronous(state: Any) -> Any:
            return {"xs": [await self.acall(p) for p in prompts]}

        return RunnableLambda(sync, afunc=asynchronous)

    def both(self, sync: Callable[..., Any], asynchronous: Callable[..., Any]) -> RunnableLambda:
        return RunnableLambda(sync, afunc=asynchronous)

    def arun(self, coroutine: Any) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[self.loop]) as runner:
            return runner.run(coroutine)

    def run(self, graph: Any, value: Any, mode: str, config: Any = None) -> Any:
        if mode == "sync":
            return graph.invoke(value, config)
        if mode == "async":
            return self.arun(graph.ainvoke(value, config))
        streams = ["updates", "messages"]
        if mode == "stream":
            return list(graph.stream(value, config, stream_mode=streams))

        async def collect() -> list[Any]:
            return [part async for part in graph.astream(value, config, stream_mode=streams)]

        return self.arun(collect())


def chain_of(**nodes: Any) -> StateGraph:
    """A graph whose nodes follow each other in the order given."""
    graph = StateGraph(State)
    names = list(nodes)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for one, next_ in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(one, next_)
    return graph


@contextmanager
def recording() -> Iterator[World]:
    """A world whose recorder is installed; what must hold of any record is checked at the end."""
    world = World()
    world.recorder.install()
    try:
        yield world
    finally:
        world.recorder.close_main()
        world.recorder.uninstall()
    world.seen.check_antichains()
    assert set(world.seen.ends) == set(world.seen.starts), "a call was never closed"
