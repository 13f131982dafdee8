"""KV in vLLM of programs that are away or over: what is kept, what goes first, what is freed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from autellix.scheduler.kv_home import PERSON_S
from autellix.scheduler.vllm_adapter import ProgramScheduler
from benchmarks.tiny_llama import write_tiny_llama
from tests.kernels.modelless import LAYERS, Engine
from tests.scheduler.test_vllm_host_tier import PLAS, prompt

SHARED = [7] * 16


class World:
    """One engine on a clock of the test's own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.engine = Engine(folder, policy=PLAS, **options)
        assert isinstance(self.engine.scheduler, ProgramScheduler)
        self.scheduler = self.engine.scheduler
        self.time = 0.0
        self.scheduler.now = lambda: self.time
        self._calls = 0

    def run(self, program: str, tokens: list[int], *, seconds: float = 1.0) -> int:
        """One call of a program; how many tokens it found in a cache."""
        self._calls += 1
        name = f"{program}-{self._calls}"
        self.engine.add(name, tokens, 2, program=program)
        self.time += seconds
        self.engine.run()
        return self.engine.receipts[name].cached_tokens

    def away(self, program: str, absence_s: tuple[float, ...]) -> str:
        return self.scheduler.autellix_away(program, list(absence_s))


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    folder = Path(write_tiny_llama(tmp_path, layers=len(LAYERS)))
    return lambda **options: World(folder, **options)


def test_an_ended_programs_blocks_are_taken_before_older_ones(
    world: Callable[..., World],
) -> None:
    for ended, found in ((True, 40), (False, 0)):
        one = world(host_blocks=0, blocks=34)  # 33 blocks of 4 tokens
        one.run("older", prompt(1))
        one.run("ended", prompt(2))
        if ended:
            one.scheduler.autellix_forget("ended")
        one.run("new", prompt(3, 90))
        assert one.run("older", [*prompt(1), 1]) == found, ended


def test_blocks_that_programs_share_stay_with_the_last_of_them(
    world: Callable[..., World],
) -> None:
    one = world(host_blocks=0, blocks=34)
    for program in ("a", "b"):
        one.run(program, [*SHARED, *prompt(ord(program), 24)])
    one.scheduler.autellix_forget("a")
    one.run("new", prompt(3, 60))
    assert one.run("b", [*SHARED, *prompt(ord("b"), 24), 1]) == 40
    one.scheduler.autellix_forget("b")
    one.scheduler.autellix_forget("new")
    assert not one.scheduler.kv_homes._blocks._hashes
    assert not one.scheduler.kv_homes._blocks._having


def test_what_two_programs_began_with_keeps_its_place_when_both_are_over(
    world: Callable[..., World],
) -> None:
    for together in (True, False):
        one = world(host_blocks=0, blocks=34)
        one.run("other", prompt(9))
        for program in ("a", "b"):
            one.run(program, [*SHARED, *prompt(ord(program), 8)])
            if not together:
                one.scheduler.autellix_forget(program)
        if together:
            one.scheduler.autellix_forget("a")
            one.scheduler.autellix_forget("b")
        one.run("new", prompt(3, 60))  # takes all that is empty, and what only a and b had
        assert one.run("c", [*SHARED, *prompt(4, 8)]) == 16, together
        assert one.run("other", [*prompt(9), 1]) == 40, together


def test_an_ended_program_is_found_again_while_there_is_room(world: Callable[..., World]) -> None:
    one = world(host_blocks=0, blocks=200)
    one.run("a", prompt(1))
    one.scheduler.autellix_forget("a")
    one.run("new", prompt(2))
    assert one.run("again", prompt(1)) == 36, "all but the block of the last token"


def test_once_there_is_little_room_what_ended_before_goes_first(
    world: Callable[..., World],
) -> None:
    one = world(host_blocks=0, blocks=200)
    one.run("older", prompt(1))
    one.run("ended", prompt(2))
    one.scheduler.autellix_forget("ended")
    for number in range(13):
        one.run(f"new{number}", prompt(20 + number, 48))  # 12 or 13 blocks each
    blocks = one.scheduler.kv_homes._blocks
    assert blocks._to_go == []
    for number in range(2):
        one.run(f"last{number}", prompt(40 + number, 56))  # more than is empty
    assert one.run("older", [*prompt(1), 1]) == 40
    assert one.run("ended", [*prompt(2), 1]) < 40


def test_programs_that_are_never_told_to_be_over_do_not_pile_up(
    world: Callable[..., World],
) -> None:
    one = world(host_blocks=0, blocks=34)
    for number in range(60):
        one.run(f"p{number}", prompt(number))  # 10 blocks each, in a cache of 33
    blocks = one.scheduler.kv_homes._blocks
    assert blocks.tokens("none") == 0  # reads what was put aside
    kept = sum(map(len, blocks._hashes.values()))
    assert kept == blocks._kept == sum(blocks._having.values())
    assert kept <= blocks._sweep_at
    assert len(blocks._hashes) < 60
    for program in list(blocks._hashes):
        one.scheduler.autellix_forget(program)
    assert not blocks._kept and not blocks._having


def test_without_a_prefix_cache_what_has_ended_does_not_pile_up(
    world: Callable[..., World],
) -> None:
    one = world(host_blocks=0, blocks=200)
    blocks = one.scheduler.kv_homes._blocks
    blocks._empty_in_front = lambda: 64  # as then, when no block ever has content
    for number in range(40):
        one.run(f"p{number}", prompt(number))
        one.scheduler.autellix_forget(f"p{number}")
    assert max(len(blocks._to_go), len(blocks._ended)) <= 200


def test_calls_shorter_than_a_block_leave_nothing_behind(world: Callable[..., World]) -> None:
    one = world(host_blocks=0, blocks=34)
    blocks = one.scheduler.kv_homes._blocks
    for _ in range(20):
        one.run("a", [1])
    assert not blocks._unread
    assert blocks.tokens("a") == 0
    assert not blocks._hashes


def test_a_context_whose_beginning_was_lost_is_known_again_when_it_is_computed_again(
    world: Callable[..., World],
) -> None:
    one = world(host_blocks=0, blocks=34)
    one.run("a", prompt(1))
    blocks = one.scheduler.kv_homes._blocks
    assert blocks.tokens("a") == 40
    first = next(iter(blocks._hashes["a"]))
    one.scheduler.kv_cache_manager.block_pool._maybe_evict_cached_block(*blocks._blocks((first,)))
    blocks._sweep()
    assert blocks.tokens("a") == 36
    one.run("a", prompt(1))
    assert blocks.tokens("a") == 40


def test_of_a_longer_context_only_what_is_new_is_noted(world: Callable[..., World]) -> None:
    one = world(host_blocks=0, blocks=34)
    context = prompt(1)
    one.run("a", context)
    context = [*context, *prompt(2, 20)]
    one.run("a", context)
    one.run("b", context[:24])  # as far as that, its own as well
    blocks = one.scheduler.kv_homes._blocks
    assert blocks.tokens("a") == 60
    assert len(blocks._hashes["a"]) == 15
    one.scheduler.autellix_forget("a")
    assert sum(blocks._having.values()) == blocks._kept == len(blocks._hashes["b"]) == 6


def test_what_others_have_written_since_is_not_touched(world: Callable[..., World]) -> None:
    one = world(host_blocks=0, blocks=34)
    one.run("a", prompt(1))
    one.run("b", prompt(2, 120))  # overwrites all of a's
    one.scheduler.autellix_forget("a")
    assert one.run("b", [*prompt(2, 120), 1]) == 120


def test_an_ended_program_leaves_nothing_in_the_host(world: Callable[..., World]) -> None:
    one = world(host_blocks=80)
    one.run("a", prompt(1))
    assert one.engine.tier is not None and one.engine.tier.stored("a").chunks
    one.scheduler.autellix_forget("a")
    assert not one.engine.tier.stored("a").chunks
    assert one.run("a", [*prompt(1), 1]) in (0, 40), "the device may still have it"


def test_a_tool_of_which_nothing_is_known_changes_nothing(world: Callable[..., World]) -> None:
    one = world(host_blocks=80)
    one.run("a", prompt(1))
    assert one.away("a", ()) == "keep"
    assert one.engine.tier is not None and not one.engine.tier.stored("a").pinned


def pressed(world: Callable[..., World]) -> World:
    """A host that is full, and turns over in some seconds."""
    one = world(host_blocks=24)
    lru = one.engine.tier._lru  # type: ignore[union-attr]
    lru.now = lambda: one.time
    for i in range(8):
        one.run(f"other{i}", prompt(10 + i), seconds=3.0)
    assert lru.stays_s < 60.0
    one.scheduler.prefill_rate = SimpleNamespace(token_s=1.0, add=lambda *step: None)
    one.engine.tier.bandwidth.observe("load", 10**6, 0.001)  # far sooner
    return one


def test_under_pressure_a_tool_of_some_seconds_moves_the_kv_to_the_host_until_the_call(
    world: Callable[..., World],
) -> None:
    one = pressed(world)
    one.run("a", prompt(1))
    tier = one.engine.tier
    assert tier is not None
    assert one.away("a", tuple(float(s) for s in range(4, 13))) == "move"
    assert tier.stored("a").pinned
    for i in range(6):
        one.run(f"new{i}", prompt(30 + i), seconds=1.0)
    assert one.run("a", [*prompt(1), 1]) == 40
    assert not tier.stored("a").pinned


def test_under_pressure_who_waits_for_a_person_makes_room_for_others(
    world: Callable[..., World],
) -> None:
    one = pressed(world)
    one.run("a", prompt(1))
    one.run("b", prompt(2, 20))
    tier = one.engine.tier
    assert tier is not None
    assert one.away("a", PERSON_S) == "drop"
    before = tier.stored("b").chunks
    one.run("new", prompt(50, 24))
    assert tier.stored("b").chunks == before
    assert tier.stored("a").chunks < 10


def test_a_program_that_is_away_again_is_judged_again(world: Callable[..., World]) -> None:
    one = pressed(world)
    one.run("a", prompt(1))
    assert one.away("a", tuple(float(s) for s in range(4, 13))) == "move"
    assert one.away("a", ()) == "keep"
    assert one.engine.tier is not None and not one.engine.tier.stored("a").pinned
