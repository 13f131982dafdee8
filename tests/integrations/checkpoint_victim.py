"""A process that runs a thread until it is killed, and writes down what it got done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autellix.integrations.checkpoint import AutellixSaver
from autellix.integrations.checkpoint_provided import provided_saver

from .checkpointing import ProcessRun, on, process

SERVICE_S = 0.5  # of every call: sums of it are exact
STEPS, CALLS = 5, 3


def graph_of(run: ProcessRun, log: Any) -> Any:
    """A chain of nodes, each with several calls."""

    def node(state: Any) -> Any:
        for _ in range(CALLS):
            log("begin")
            run.call(SERVICE_S)
            log("end")
        return {"xs": ["done"]}

    return run.chain(**{f"step{number}": node for number in range(STEPS)})


def live(folder: Path, thread: str, durability: Any, stop: bool = False) -> None:
    """Run turn after turn of the thread, from where it stands."""
    file = os.open(folder / f"{thread}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log(word: str) -> None:
        os.write(file, f"{word}\n".encode())

    store = provided_saver(f"sqlite:{folder / 'threads.db'}")
    with store as inner, process(folder / "journal.sqlite") as run:
        graph = graph_of(run, log).compile(checkpointer=AutellixSaver(inner))
        while True:
            known = graph.get_state(on(thread))
            start = None if known.next else {"xs": []}
            run.tickets.clear()
            graph.invoke(start, on(thread), durability=durability)
            if stop:
                break
