"""What recording costs: per call and per LangGraph step, in programs of 10 to 10,000 calls.

    python -m benchmarks.recorder_overhead --json benchmarks/results/recorder_overhead.json

Three figures for each shape, in microseconds of processor time per call (or per step), the median
of the repeats:

- ``own_us``: time spent inside the recorder (its callbacks and fork hooks), less
- ``pause_us``: pauses of Python's garbage collector that fell inside the recorder. They grow with
  everything that is alive, above all the tasks of a wide fan-out;
- ``added_us``: the whole program with the recorder less without it, taken by turns. It includes
  what langchain-core spends on having a handler at all, and the noise of two long runs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from autellix.integrations.recorder import Recorder
from benchmarks.result_file import result_document, write_result

SIZES = (10, 1_000, 10_000)
TIMED = ("on_chain_start", "on_chain_end", "on_chat_model_start", "on_llm_end", "pin", "branch")
ANSWER = ChatResult(generations=[ChatGeneration(message=AIMessage("a"))])


class Instant(BaseChatModel):
    """A model that answers at once."""

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return ANSWER

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return ANSWER


class Silent:
    """An observer that does nothing."""

    def program_started(self, program: str, name: str) -> None:
        """Nothing."""

    def program_ended(self, program: str, status: str, error: str | None) -> None:
        """Nothing."""

    def call_started(self, start: Any) -> None:
        """Nothing."""

    def call_ended(self, call: str, status: str, error: str | None) -> None:
        """Nothing."""


class Timed(Recorder):
    """A recorder that adds up the time spent inside it."""

    def __init__(self) -> None:
        super().__init__(Silent())
        self.spent_s = 0.0
        self.paused_s = 0.0
        self._inside = False
        self._pause_began = 0.0
        for name in TIMED:
            setattr(self, name, self._timed(getattr(self, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            paused_s, self._inside = self.paused_s, True
            begun = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                took_s = time.thread_time() - begun
                self._inside = False
                self.spent_s += took_s - (self.paused_s - paused_s)

        return timed

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Hear of the garbage collector's pauses."""
        if phase == "start":
            self._pause_began = time.thread_time()
        elif self._inside:
            self.paused_s += time.thread_time() - self._pause_began


class Count(TypedDict):
    """How often the loop has turned."""

    i: int


def graph_of(node: Any, steps: int) -> Any:
    """A graph that runs a node so many times."""
    graph = StateGraph(Count).add_node("node", node).add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if state["i"] < steps else END)
    return graph.compile()


def calls_in_sequence(calls: int) -> None:
    """One node that makes all calls one after the other."""
    model = Instant()

    def node(state: Count) -> Count:
        for _ in range(calls):
            model.invoke("q")
        return {"i": state["i"] + 1}

    graph_of(node, 1).invoke({"i": 0})


def calls_in_gather(calls: int) -> None:
    """One node that makes all calls beside each other, then one that follows them all."""
    model = Instant()

    async def node(state: Count) -> Count:
        await asyncio.gather(*(model.ainvoke("q") for _ in range(calls)))
        await model.ainvoke("q")
        return {"i": state["i"] + 1}

    asyncio.run(graph_of(node, 1).ainvoke({"i": 0}))


def steps_without_calls(steps: int) -> None:
    """A loop of supersteps that make no call."""
    config: Any = {"recursion_limit": steps + 10}
    graph_of(lambda state: {"i": state["i"] + 1}, steps).invoke({"i": 0}, config)


def steps_with_a_call(steps: int) -> None:
    """A loop of supersteps that make one call each."""
    model = Instant()

    def node(state: Count) -> Count:
        model.invoke("q")
        return {"i": state["i"] + 1}

    config: Any = {"recursion_limit": steps + 10}
    graph_of(node, steps).invoke({"i": 0}, config)


SHAPES = {
    "calls in sequence": calls_in_sequence,
    "calls in gather": calls_in_gather,
    "steps without calls": steps_without_calls,
    "steps with a call": steps_with_a_call,
}


def measure(shape: Callable[[int], None], size: int, repeats: int) -> dict[str, float]:
    """Cost of recording one shape, microseconds per call or step."""
    own, pauses, added = [], [], []
    for _ in range(repeats):
        begun = time.process_time()
        shape(size)
        bare_s = time.process_time() - begun
        recorder = Timed()
        recorder.install()
        gc.callbacks.append(recorder.on_collection)
        try:
            begun = time.process_time()
            shape(size)
            recorded_s = time.process_time() - begun
        finally:
            gc.callbacks.remove(recorder.on_collection)
            recorder.uninstall()
        own.append(recorder.spent_s / size * 1e6)
        pauses.append(recorder.paused_s / size * 1e6)
        added.append((recorded_s - bare_s) / size * 1e6)
    return {
        "own_us": round(statistics.median(own), 1),
        "pause_us": round(statistics.median(pauses), 1),
        "added_us": round(statistics.median(added), 1),
    }


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    results = []
    for name, shape in SHAPES.items():
        shape(10)  # imports and first-use costs
        for size in options.sizes:
            cost = measure(shape, size, options.repeats)
            results.append({"shape": name, "size": size, **cost})
            figures = "  ".join(f"{key} {value:>6}" for key, value in cost.items())
            print(f"{name:22} {size:>7,}  {figures}")
    if options.json:
        document = result_document(repeats=options.repeats, results=results)
        write_result(options.json, document)


if __name__ == "__main__":
    main()
