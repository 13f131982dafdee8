"""Runs of one process after another on the same store, over calls that cost what they say."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph

from autellix.integrations.checkpoint import KEY
from autellix.runtime.session import Session, use_session
from autellix.runtime.settings import Settings
from autellix.scheduler.tickets import Receipt, Ticket

WAIT_S = 0.125  # of every call


class State(TypedDict, total=False):
    """What the graphs pass on."""

    xs: Annotated[list, operator.add]


class CostingModel(BaseChatModel):
    """A call with the prompt "2.5" takes 2.5 s of service, and no time."""

    run: Any

    @property
    def _llm_type(self) -> str:
        return "costing"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any) -> Any:
        prompt = str(messages[-1].content)
        programs = self.run.session.programs
        ticket = programs.ticket(str(run_manager.run_id))
        self.run.tickets.append(ticket)
        programs.receipt(
            Receipt(
                program=ticket.program,
                call=ticket.call,
                service_s=float(prompt),
                wait_s=WAIT_S,
                levels=(1,),
                preemptions=1,
                prompt_tokens=10,
                output_tokens=2,
                replica=3,
            )
        )
        programs.served(ticket.call)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(prompt))])


class ProcessRun:
    """What one process does, from its start to its end."""

    def __init__(self, journal: Path) -> None:
        settings = Settings(quiet=True, journal=journal, policy="atlas")
        self.session = Session(settings)
        self.tickets: list[Ticket] = []
        self.told = False  # what an earlier process broke off goes on
        self.model = CostingModel(run=self)

    def call(self, cost: float) -> str:
        return str(self.model.invoke(str(cost)).content)

    def attained(self) -> list[float]:
        """p(c) of the calls so far, in their order."""
        return [ticket.attained_s for ticket in self.tickets]

    def edges_to_last(self) -> set[str]:
        """The kinds of the edges to the call that began last."""
        last = self.tickets[-1]
        return {kind for _, kind in self.session.record.dag(last.program).parents(last.call)}

    def node(self, *costs: float) -> Callable[[Any], Any]:
        """A node that makes these calls one after the other."""
        return lambda state: {"xs": [self.call(cost) for cost in costs]}

    def chain(self, **nodes: Any) -> StateGraph:
        """A graph whose nodes follow each other."""
        graph = StateGraph(State)
        names = list(nodes)
        for name, node in nodes.items():
            graph.add_node(name, self.node(*node) if isinstance(node, tuple) else node)
        for one, next_ in zip([START, *names], [*names, END], strict=True):
            graph.add_edge(one, next_)
        return graph


@contextmanager
def process(journal: Path) -> Iterator[ProcessRun]:
    """A process of its own, as far as Autellix can tell."""
    run = ProcessRun(journal)
    run.session.recorder.install()
    use_session(run.session)
    try:
        yield run
    finally:
        run.session.recorder.uninstall()
        run.session.close()
        use_session(None)


def account_of(graph: Any, config: Any) -> dict[str, Any]:
    """The account in the latest checkpoint."""
    return graph.get_state(config).metadata[KEY]


def on(thread: str, **more: Any) -> Any:
    """A config for a thread."""
    return {"configurable": {"thread_id": thread, **more}}


def invoke(graph: Any, value: Any, config: Any, mode: str, **how: Any) -> Any:
    """Run a graph, sync or async."""
    if mode == "sync":
        return graph.invoke(value, config, **how)
    return asyncio.run(graph.ainvoke(value, config, **how))
