"""What of a prompt an earlier call of its program had."""

from __future__ import annotations

from autellix.scheduler.known_prompts import KnownPrompts


def test_a_continued_prompt_is_known_up_to_whole_chunks_of_the_one_before() -> None:
    prompts = KnownPrompts()
    assert prompts.add("P", range(200)) == 0
    assert prompts.add("P", range(300)) == 192
    assert prompts.add("P", range(300)) == 256


def test_the_same_tokens_after_another_beginning_are_not_known() -> None:
    prompts = KnownPrompts()
    prompts.add("P", range(256))
    assert prompts.add("P", [7, *range(1, 256)]) == 0


def test_branches_know_what_they_have_in_common() -> None:
    prompts = KnownPrompts()
    prompts.add("P", [*range(128), *[1] * 128])
    prompts.add("P", [*range(128), *[2] * 128])
    assert prompts.add("P", [*range(128), *[1] * 64, *[3] * 64]) == 192


def test_programs_know_nothing_of_each_other_and_are_forgotten() -> None:
    prompts = KnownPrompts()
    prompts.add("P", range(256))
    assert prompts.add("Q", range(256)) == 0
    prompts.forget("P")
    assert prompts.add("P", range(256)) == 0


def test_beyond_the_bound_the_program_not_asked_for_longest_goes() -> None:
    prompts = KnownPrompts(most_chunks=8)
    prompts.add("P", range(256))
    prompts.add("Q", range(256))
    prompts.add("P", range(256))
    prompts.add("R", range(64))
    assert len(prompts) == 2
    assert prompts.add("P", range(256)) == 256
