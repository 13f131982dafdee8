"""Random lives of programs on vLLM's scheduler with the tier: no token ever finds another's KV."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from benchmarks.tiny_llama import write_tiny_llama
from tests.kernels.adversary import Adversary
from tests.kernels.modelless import BLOCK, LAYERS, Engine, fingerprints, next_token

LIVES_AN_ENGINE = 20


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
        match self.draw.choices(
            ["step", "call", "preempt", "abort", "pin", "unpin", "drop", "prefetch", "reset"],
            [12, 4, 3, 1, 1, 1, 1, 1, 0.3],
        )[0]:
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
    acts: int = 60,
    deaf: set[tuple[str, str]] = frozenset(),  # type: ignore[assignment]
) -> dict[str, int]:
    """Lives of random programs; what happened in sum."""
    total = {"preempted": 0, "loaded": 0}
    engine: Engine | None = None
    for seed in seeds:
        draw = random.Random(seed)
        if engine is None or seed % LIVES_AN_ENGINE == 0:
            engine = Engine(
                folder,
                blocks=draw.choice([20, 30, 48]),
                host_blocks=draw.choice([3, 20, 60]),
                seats=draw.randint(1, 4),
                seed=seed,
                device=Adversary(seed, deaf=deaf) if pipelined else None,
            )
        loaded, preempted = engine.loaded_tokens, engine.preemptions
        Life(engine, draw, f"life{seed}").play(acts)
        total["loaded"] += engine.loaded_tokens - loaded
        total["preempted"] += engine.preemptions - preempted
    return total


@pytest.mark.parametrize("pipelined", [False, True], ids=["at once", "pipelined"])
def test_no_token_ever_finds_anothers_kv(folder: Path, pipelined: bool) -> None:
    total = live(folder, range(60), pipelined=pipelined)
    assert total["preempted"] > 100 and total["loaded"] > 100, total


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("pipelined", [False, True], ids=["at once", "pipelined"])
def test_nor_in_ten_thousand_lives(folder: Path, pipelined: bool) -> None:
    live(folder, range(1000, 6000), pipelined=pipelined)


@pytest.mark.parametrize(
    "deaf",
    [
        pytest.param(("store-kernel", "model"), id="a gather before the model has written"),
        pytest.param(("load-kernel", "load-copy"), id="a scatter before the copy has arrived"),
    ],
)
def test_a_missing_wait_would_be_noticed(folder: Path, deaf: tuple[str, str]) -> None:
    with pytest.raises(AssertionError, match="another's KV"):
        live(folder, range(60), pipelined=True, deaf={deaf})
