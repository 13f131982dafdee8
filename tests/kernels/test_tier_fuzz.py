"""Random lives of programs on vLLM's scheduler with the tier: no token ever finds another's KV."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from autellix.scheduler.vllm_adapter import ProgramScheduler
from benchmarks.tiny_llama import write_tiny_llama
from tests.kernels.adversary import Adversary
from tests.kernels.modelless import BLOCK, LAYERS, Engine, fingerprints, next_token

LIVES_AN_ENGINE = 20
ACTS = {
    "step": 12.0,
    "call": 4.0,
    "preempt": 3.0,
    "abort": 1.0,
    "pin": 1.0,
    "unpin": 1.0,
    "drop": 1.0,
    "prefetch": 1.0,
    "reset": 0.3,
}
# Of our own scheduler, which hears of tools.
TOOL_ACTS = {"reset": 1.5, "away": 2.0, "returns": 4.0, "forget": 0.3, "fetch": 4.0}
OURS = {"policy": "plas", "first_quantum_s": 1e9, "admission": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_tiny_llama(tmp_path_factory.mktemp("tiny"), layers=len(LAYERS)))


class Life:
    """Calls of a few programs, with tools between a program's calls, in random order.

    Preemption, abortion and every call of the tier may come between any two steps.
    """

    def __init__(self, engine: Engine, draw: random.Random, name: str) -> None:
        self.engine, self.draw, self.name = engine, draw, name
        shared = [draw.randrange(50) for _ in range(draw.randint(0, 3) * BLOCK)]
        self.contexts = {
            f"{name}.{i}": [*shared, i, draw.randrange(10**4)] for i in range(draw.randint(1, 4))
        }
        self.calls: dict[str, tuple[str, int]] = {}
        self.held: list = []

    def play(self, acts: int) -> None:
        for _ in range(acts):
            self.act()
            self.engine.check()
        for prefetch in self.held:
            self.engine.tier.end_prefetch(prefetch)
        self.engine.run()
        self.collect()
        for program in self.contexts:
            self.engine.tier.drop(program)
        self.engine.check()

    def act(self) -> None:
        program = self.draw.choice(sorted(self.contexts))
        tier = self.engine.tier
        acts = dict(ACTS)
        if isinstance(self.engine.scheduler, ProgramScheduler):
            acts |= TOOL_ACTS
        match self.draw.choices(list(acts), list(acts.values()))[0]:
            case "step":
                self.engine.step()
                self.collect()
            case "call":
                self.call(program)
            case "preempt":
                self.engine.preempt()
            case "abort":
                self.engine.abort()
            case "pin":
                tier.pin(program)
            case "unpin":
                tier.unpin(program)
            case "drop":
                tier.drop(program)
                assert tier.stored(program).chunks == 0
            case "prefetch":
                if (held := tier.begin_prefetch(program)) is not None:
                    self.held.append(held)
                if len(self.held) > 2:
                    tier.end_prefetch(self.held.pop(0))
            case "away":
                absence_s = sorted(self.draw.uniform(0.0, 0.1) for _ in range(9))
                self.engine.scheduler.autellix_away(program, absence_s)  # type: ignore[attr-defined]
            case "returns":
                self.engine.scheduler.autellix_returns(program)  # type: ignore[attr-defined]
            case "forget":
                self.engine.scheduler.autellix_forget(program)  # type: ignore[attr-defined]
            case "fetch":
                # As if that had been decided a moment ago.
                self.engine.scheduler.kv_homes.fetches.at(program, 0.0)  # type: ignore[attr-defined]
            case "reset":
                self.engine.scheduler.kv_cache_manager.reset_prefix_cache()

    def call(self, program: str) -> None:
        if any(owner == program for owner, _ in self.calls.values()):
            return  # one call at a time: the next one's prompt holds this one's answer
        context = self.contexts[program]
        context += [self.draw.randrange(10**4) for _ in range(self.draw.randint(1, 14))]
        tokens = self.draw.randint(1, 12)
        if len(context) + tokens >= self.engine.longest:
            del context[8:]
        call = f"{program}/{self.draw.getrandbits(40)}"
        self.calls[call] = (program, tokens)
        self.engine.add(
            call, list(context), tokens, program=program, priority=self.draw.randint(0, 2)
        )

    def collect(self) -> None:
        for call in list(self.calls):
            if call in self.engine.live:
                continue
            program, tokens = self.calls.pop(call)
            said = self.engine.finished.pop(call, None)
            if said is None:
                continue  # aborted
            assert said == answer(self.contexts[program], tokens)
            self.contexts[program] += said


def answer(context: list[int], tokens: int) -> list[int]:
    """What the model says, with nobody else around."""
    said: list[int] = []
    for _ in range(tokens):
        said.append(next_token(fingerprints([*context, *said])[-1]))
    return said


def live(
    folder: Path,
    seeds: range,
    *,
    pipelined: bool,
    ours: bool = False,
    acts: int = 60,
    deaf: set[tuple[str, str]] = frozenset(),  # type: ignore[assignment]
) -> dict[str, int]:
    """Lives of random programs; what happened in sum."""
    total = {"preempted": 0, "loaded": 0, "fetched": 0, "found": 0}
    engine: Engine | None = None
    for seed in seeds:
        draw = random.Random(seed)
        if engine is None or seed % LIVES_AN_ENGINE == 0:
            engine = Engine(
                folder,
                blocks=draw.choice([20, 24] if ours else [20, 30, 48]),
                host_blocks=draw.choice([40, 80] if ours else [3, 20, 60]),
                seats=draw.randint(1, 4),
                seed=seed,
                device=Adversary(seed, deaf=deaf) if pipelined else None,
                policy=OURS if ours else None,
            )
        fetches = engine.scheduler.kv_homes.fetches if ours else None  # type: ignore[attr-defined]
        begun, used = (fetches.begun, fetches.used) if fetches else (0, 0)
        loaded, preempted = engine.loaded_tokens, engine.preemptions
        Life(engine, draw, f"life{seed}").play(acts)
        total["loaded"] += engine.loaded_tokens - loaded
        total["preempted"] += engine.preemptions - preempted
        if fetches:
            total["fetched"] += fetches.begun - begun
            total["found"] += fetches.used - used
    return total


MOVES = pytest.mark.parametrize("pipelined", [False, True], ids=["at once", "pipelined"])


@MOVES
def test_no_token_ever_finds_anothers_kv(folder: Path, pipelined: bool) -> None:
    total = live(folder, range(60), pipelined=pipelined)
    assert total["preempted"] > 100 and total["loaded"] > 100, total


@MOVES
def test_nor_where_tools_begin_and_end_and_kv_is_fetched_meanwhile(
    folder: Path, pipelined: bool
) -> None:
    total = live(folder, range(60), pipelined=pipelined, ours=True, acts=200)
    assert total["fetched"] > 8 and total["found"] > 1, total


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("ours", [False, True], ids=["stock", "with tools"])
@MOVES
def test_nor_in_ten_thousand_lives(folder: Path, pipelined: bool, ours: bool) -> None:
    live(folder, range(1000, 3500), pipelined=pipelined, ours=ours)


@pytest.mark.parametrize(
    "deaf",
    [
        pytest.param(("store-kernel", "model"), id="a gather before the model has written"),
        pytest.param(("load-kernel", "load-copy"), id="a scatter before the copy has arrived"),
    ],
)
def test_a_missing_wait_would_be_noticed(folder: Path, deaf: tuple[str, str]) -> None:
    with pytest.raises(AssertionError, match="another's KV"):
        live(folder, range(600), pipelined=True, deaf={deaf})
