"""Killed at any moment, a thread goes on with what its finished calls cost, each counted once."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autellix.integrations.checkpoint import AutellixSaver
from autellix.integrations.checkpoint_provided import provided_saver
from autellix.runtime.journal import Journal
from autellix.runtime.journal_account import Account

from .checkpoint_victim import CALLS, SERVICE_S, STEPS, graph_of, live
from .checkpointing import invoke, on, process

PATIENCE_S = 60.0
QUICK, THOROUGH = 8, 50


@pytest.fixture(scope="module")
def start() -> Iterator[Any]:
    """Starts victims from a server that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.integrations.checkpoint_victim"])

    def begin(*args: Any) -> Any:
        victim = context.Process(target=live, args=args, daemon=True)
        victim.start()
        return victim

    yield begin


def words(folder: Path, thread: str) -> Counter[str]:
    log = folder / f"{thread}.log"
    return Counter(log.read_text().split()) if log.exists() else Counter()


def kill_at(victim: Any, folder: Path, thread: str, call: int, chance: random.Random) -> None:
    """Kill it once it has begun so many calls, and a random number of looks later."""
    while words(folder, thread)["begin"] < call:
        assert victim.is_alive()
        victim.join(0.001)
    for _ in range(chance.randrange(200)):
        words(folder, thread)
    victim.kill()
    victim.join(PATIENCE_S)
    assert victim.exitcode == -9


def account(folder: Path, thread: str) -> Account:
    journal = Journal(folder / "journal.sqlite")
    try:
        found = [journal.history(ref) for ref in journal.threads() if ref.thread == thread]
        assert len(found) == 1
        assert found[0] is not None
        return found[0].account
    finally:
        journal.close()


@pytest.mark.parametrize(
    "kills", [QUICK, pytest.param(THOROUGH, marks=pytest.mark.slow)], ids=["quick", "thorough"]
)
@pytest.mark.parametrize("durability", ["async", "exit"])
def test_attained_service_goes_on_after_kill_and_never_counts_twice(
    start: Any, tmp_path: Path, kills: int, durability: str
) -> None:
    chance = random.Random(kills)
    begun_before = 0
    for _ in range(kills):
        call = begun_before + chance.randrange(1, 2 * STEPS * CALLS)
        kill_at(start(tmp_path, "t", durability), tmp_path, "t", call, chance)
        told = words(tmp_path, "t")
        found = account(tmp_path, "t")
        assert told["end"] <= found.calls <= told["begin"]
        assert found.service_s == found.calls * SERVICE_S
        begun_before = told["begin"]
    before = account(tmp_path, "t")
    store = provided_saver(f"sqlite:{tmp_path / 'threads.db'}")
    with store as inner, process(tmp_path / "journal.sqlite") as run:
        graph = graph_of(run, lambda word: None).compile(checkpointer=AutellixSaver(inner))
        stands = graph.get_state(on("t"))
        at_step = stands.next and stands.next[0].startswith("step")
        steps_done = STEPS - int(stands.next[0].removeprefix("step")) if at_step else STEPS
        invoke(graph, None if stands.next else {"xs": []}, on("t"), "sync")
        assert run.tickets[0].program_service_s == before.service_s
        assert len(run.tickets) == steps_done * CALLS
        # The chain begins at the checkpoint: what was cut off mid-node is not part of it.
        chain = run.tickets[0].attained_s / SERVICE_S
        assert chain <= before.calls
        if durability == "async":
            assert chain % CALLS == 0
    assert account(tmp_path, "t").calls == before.calls + steps_done * CALLS


def test_two_processes_on_one_thread_lose_nothing(start: Any, tmp_path: Path) -> None:
    victims = [start(tmp_path, "t", "async", True) for _ in range(2)]
    for victim in victims:
        victim.join(PATIENCE_S)
        assert victim.exitcode == 0
    told = words(tmp_path, "t")
    found = account(tmp_path, "t")
    assert found.calls == told["end"] == told["begin"]
    assert found.service_s == found.calls * SERVICE_S
