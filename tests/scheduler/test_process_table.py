"""The process table knows of every program what the paper lists, and forgets it at its end."""

from __future__ import annotations

import pytest

from autellix.scheduler.policies import policy_named
from autellix.scheduler.process_table import ProcessTable
from autellix.scheduler.service_history import ServiceHistory
from autellix.scheduler.tickets import Receipt, Ticket


def table(policy: str = "plas") -> ProcessTable:
    return ProcessTable(policy_named(policy))


def receipt(
    call: str,
    service_s: float,
    wait_s: float = 0.0,
    levels: tuple[int, ...] = (1,),
    output_tokens: int = 0,
    prompt_tokens: int = 0,
    cached_tokens: int = 0,
) -> Receipt:
    return Receipt(
        program="P",
        call=call,
        service_s=service_s,
        wait_s=wait_s,
        levels=levels,
        preemptions=0,
        output_tokens=output_tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
    )


def test_the_next_calls_ticket_knows_what_the_finished_ones_took() -> None:
    t = table()
    t.open("P", 0.0)
    t.call_started("P", "a", 1.0)
    t.call_ended("a", 2.0, receipt("a", 3.0, wait_s=0.5))
    ticket = t.call_started("P", "b", 3.0, prompt_tokens=7)
    assert (ticket.program, ticket.call, ticket.prompt_tokens) == ("P", "b", 7)
    assert (ticket.attained_s, ticket.program_service_s, ticket.program_wait_s) == (3.0, 3.0, 0.5)


def test_parallel_calls_add_up_under_plas_and_not_along_the_critical_path() -> None:
    t = table()
    for name in "ab":
        t.call_started("P", name, 0.0)
    t.call_ended("a", 1.0, receipt("a", 2.0))
    t.call_ended("b", 1.0, receipt("b", 5.0))
    entry = t.programs["P"]
    assert (entry.service_s, entry.critical_path_s) == (7.0, 5.0)


def test_without_a_dag_a_chain_goes_on_from_the_longest_seen_at_its_start() -> None:
    t = table("atlas")
    t.call_started("P", "a", 0.0)
    t.call_ended("a", 1.0, receipt("a", 2.0))
    assert t.call_started("P", "b", 1.0).attained_s == 2.0
    t.call_started("P", "c", 1.0)
    t.call_ended("b", 2.0, receipt("b", 5.0))
    t.call_ended("c", 2.0, receipt("c", 1.0))
    assert t.programs["P"].critical_path_s == 7.0
    assert t.call_started("P", "d", 3.0).attained_s == 7.0


def test_with_a_dag_the_recursion_is_exact() -> None:
    t = table("atlas")
    t.call_started("P", "long", 0.0, chain_s=0.0)
    t.call_ended("long", 1.0, receipt("long", 9.0))
    assert t.call_started("P", "beside it", 1.0, chain_s=2.0).attained_s == 2.0
    t.call_ended("beside it", 2.0, receipt("beside it", 1.0))
    assert t.programs["P"].critical_path_s == 9.0


def test_a_wait_that_a_promotion_paid_for_counts_no_more() -> None:
    t = table()
    t.call_started("P", "a", 0.0)
    t.call_ended("a", 9.0, receipt("a", 1.0, wait_s=8.0, levels=(3, 1, 2)))
    t.call_started("P", "b", 9.0)
    t.call_ended("b", 12.0, receipt("b", 1.0, wait_s=2.0, levels=(2, 3)))
    assert t.programs["P"].wait_s == 10.0
    assert t.call_started("P", "c", 12.0).program_wait_s == 2.0


def test_active_calls_are_kept_with_arrival_wait_and_service() -> None:
    t = table()
    t.call_started("P", "a", 1.0)
    t.call_progressed("a", service_s=2.0, wait_s=0.5)
    active = t.programs["P"].active["a"]
    assert (active.arrived_s, active.service_s, active.wait_s) == (1.0, 2.0, 0.5)


def test_replicas_in_use_are_those_with_active_calls() -> None:
    t = table()
    for name in "abc":
        t.call_started("P", name, 0.0)
    t.call_placed("a", 0)
    t.call_placed("b", 0)
    t.call_placed("c", 1)
    assert dict(t.programs["P"].replicas) == {0: 2, 1: 1}
    t.call_placed("c", 0)
    t.call_ended("a", 1.0, None)
    assert dict(t.programs["P"].replicas) == {0: 2}


def test_a_call_whose_engine_died_ends_without_a_receipt() -> None:
    t = table()
    t.call_started("P", "a", 0.0)
    assert t.call_ended("a", 1.0, None)
    entry = t.programs["P"]
    assert (entry.finished_calls, entry.service_s, entry.last_completion_s) == (1, 0.0, 1.0)


def test_a_call_ends_once_and_unknown_ones_are_ignored() -> None:
    t = table()
    t.call_started("P", "a", 0.0)
    assert t.call_ended("a", 1.0, receipt("a", 1.0))
    assert not t.call_ended("a", 2.0, receipt("a", 1.0))
    assert not t.call_ended("never", 2.0, None)
    assert t.programs["P"].service_s == 1.0


def test_a_call_id_cannot_be_active_twice() -> None:
    t = table()
    t.call_started("P", "a", 0.0)
    with pytest.raises(ValueError, match="has already started"):
        t.call_started("Q", "a", 0.0)


def test_placing_an_unknown_call_is_an_error() -> None:
    with pytest.raises(KeyError, match="is not active"):
        table().call_placed("a", 0)


def test_the_end_of_a_program_frees_its_entry_and_its_calls() -> None:
    t = table()
    t.call_started("P", "a", 0.0)
    entry = t.close("P")
    assert entry is not None and len(t) == 0
    assert not t.call_ended("a", 1.0, receipt("a", 1.0)), "too late, and harmless"
    assert t.close("P") is None
    t.call_started("P", "a", 2.0)


def test_a_program_may_come_back_for_another_turn_while_it_is_open() -> None:
    t = table()
    first = t.open("P", 0.0)
    assert t.open("P", 5.0) is first and first.opened_s == 0.0


def test_stale_programs_are_those_in_which_nothing_happens() -> None:
    t = table()
    t.open("silent", 0.0)
    t.open("P", 0.0)
    t.call_started("P", "a", 8.0)
    t.call_ended("a", 9.0, receipt("a", 1.0))
    t.call_started("busy", "b", 0.0)
    assert [entry.program for entry in t.stale(10.0, 5.0)] == ["silent"]
    assert {entry.program for entry in t.stale(20.0, 5.0)} == {"silent", "P"}


def test_output_tokens_add_up() -> None:
    t = table()
    for name in "ab":
        t.call_started("P", name, 0.0)
        t.call_ended(name, 1.0, receipt(name, 1.0, output_tokens=5))
    assert t.programs["P"].output_tokens == 10


class TestPrompts:
    """What a prompt says of a call's place, where places are learned."""

    @staticmethod
    def first_calls(t: ProcessTable, prompt_tokens: int, told: list[tuple[float, int]]) -> None:
        """Programs of one name make their first calls; what each took, and had in the cache."""
        for number, (service_s, cached_tokens) in enumerate(told):
            name = f"earlier-{number}"
            t.open(name, 0.0, "agent")
            t.call_started(name, name, 0.0, prompt_tokens=prompt_tokens)
            sizes = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
            t.call_ended(name, 1.0, receipt(name, service_s, **sizes))

    def test_the_longer_prompt_of_two_new_programs_stands_worse(self) -> None:
        t = table("adaptive")
        short = t.call_started("short", "a", 0.0, prompt_tokens=900)
        long = t.call_started("long", "b", 0.0, prompt_tokens=90_000)
        assert long.course[1] > 50 * short.course[1]

    def test_what_the_program_had_in_its_context_is_not_new(self) -> None:
        t = table("adaptive")
        t.call_started("P", "a", 0.0, prompt_tokens=5000)
        t.call_ended("a", 1.0, receipt("a", 1.0, prompt_tokens=5000, output_tokens=100))
        entry = t.programs["P"]
        again = t.call_started("P", "b", 2.0, prompt_tokens=5100)
        assert again.course == t.history.course("", entry.work, again.course[1], 5100 / 2048)

    def test_a_prefix_that_programs_of_a_name_share_is_not_new(self) -> None:
        t = table("adaptive")
        self.first_calls(t, 5000, [(1.0, 4000)] * 3)
        t.open("R", 2.0, "agent")
        ticket = t.call_started("R", "r", 2.0, prompt_tokens=4300)
        assert ticket.course == t.history.course("agent", 300.0, None, 4300 / 2048)

    def test_what_the_cache_had_of_one_prompt_alone_is_not_shared(self) -> None:
        t = table("adaptive")
        self.first_calls(t, 12_080, [(1.0, 0), (1.0, 0), (1.0, 12_000)])
        t.open("R", 2.0, "agent")
        ticket = t.call_started("R", "r", 2.0, prompt_tokens=12_000)
        assert ticket.course == t.history.course("agent", 12_000.0, None, 12_000 / 2048)

    def test_a_call_that_was_given_up_in_the_queue_says_nothing_of_the_cache(self) -> None:
        t = table("adaptive")
        self.first_calls(t, 6100, [(1.0, 0), (1.0, 6000), (0.0, 0)])
        t.open("R", 2.0, "agent")
        ticket = t.call_started("R", "r", 2.0, prompt_tokens=6100)
        assert ticket.course == t.history.course("agent", 100.0, None, 6100 / 2048)

    def test_it_counts_by_what_the_history_says_of_prompts(self) -> None:
        t = ProcessTable(policy_named("adaptive"), ServiceHistory(prompt_share=0.25))
        ticket = t.call_started("P", "a", 0.0, prompt_tokens=1200)
        assert ticket.course == t.history.course("", 300.0, None)
        t.call_ended("a", 1.0, receipt("a", 1.0, prompt_tokens=1200, output_tokens=5))
        assert t.programs["P"].work == 305

    def test_a_prompt_that_is_tokenised_later_says_the_same(self) -> None:
        at_once, later = table("adaptive"), table("adaptive")
        for call, prompt_tokens in [("a", 40_000), ("b", 50_000), ("c", 500)]:
            known = at_once.call_started("P", call, 0.0, prompt_tokens=prompt_tokens)
            ticket = later.call_started("P", call, 0.0, prompt_tokens=None)
            assert ticket.course == ()
            assert later.prompt_known(ticket, prompt_tokens) == known
            assert later.programs["P"].place == at_once.programs["P"].place
            for t in (at_once, later):
                t.call_ended(call, 1.0, receipt(call, 1.0, prompt_tokens=prompt_tokens))

    def test_of_a_call_that_is_not_the_tables_the_length_alone_is_noted(self) -> None:
        alone = Ticket(program="alone", call="alone")
        assert table("adaptive").prompt_known(alone, 7) == alone._replace(prompt_tokens=7)

    def test_attained_service_does_not_look_at_prompts(self) -> None:
        t = table("plas")
        ticket = t.call_started("P", "a", 0.0)
        assert t.prompt_known(ticket, 9000) == ticket._replace(prompt_tokens=9000)


class TestChains:
    @staticmethod
    def taught(policy: str = "adaptive") -> ProcessTable:
        t = table(policy)
        t.open("before", 0.0, "agent")
        t.call_started("before", "c", 0.0, node="search")
        t.call_ended("c", 1.0, receipt("c", 1.0, output_tokens=9))
        t.close("before", chains=[("search", 5.0), ("check", 1.0)])
        return t

    @staticmethod
    def to_come_s(t: ProcessTable, call: str, node: str | None) -> float:
        return t.call_started("P", call, 0.0, node=node).to_come_s

    def test_a_ticket_says_what_is_expected_after_a_call_of_its_node(self) -> None:
        t = self.taught()
        t.open("P", 0.0, "agent")
        assert self.to_come_s(t, "a", "search") == 5.0
        assert self.to_come_s(t, "b", "check") == 1.0
        assert self.to_come_s(t, "c", "new") == self.to_come_s(t, "d", None) == 0.0

    def test_a_program_keeps_what_it_was_told_first(self) -> None:
        t = self.taught()
        t.open("P", 0.0, "agent")
        assert self.to_come_s(t, "a", "search") == 5.0
        assert self.to_come_s(t, "b", "late") == 0.0
        t.history.chain_took("agent", "search", 99.0)
        t.history.chain_took("agent", "late", 7.0)
        assert self.to_come_s(t, "c", "search") == 5.0
        assert self.to_come_s(t, "d", "late") == 7.0, "not known is nothing to be kept"

    def test_programs_of_other_names_and_policies_that_do_not_learn_have_none(self) -> None:
        t = self.taught()
        t.open("P", 0.0, "other")
        assert self.to_come_s(t, "a", "search") == 0.0
        t = self.taught("plas")
        t.open("P", 0.0, "agent")
        assert self.to_come_s(t, "a", "search") == 0.0

    def test_a_program_that_may_go_on_teaches_no_chains(self) -> None:
        t = table("adaptive")
        t.open("P", 0.0, "agent")
        t.call_started("P", "a", 0.0)
        t.call_ended("a", 1.0, receipt("a", 1.0, output_tokens=9))
        t.close("P", ended=False, chains=[("search", 5.0)])
        assert t.history.to_come_s("agent", "search") == 0.0
