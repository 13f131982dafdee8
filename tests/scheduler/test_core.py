"""Algorithm 1, rule by rule."""

from __future__ import annotations

import math

import pytest

from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.core import Scheduler
from autellix.scheduler.live_call import LiveCall
from autellix.scheduler.tickets import Ticket


def scheduler(**settings: object) -> Scheduler:
    """Four levels: [0, 2), [2, 6), [6, 18), [18, inf) seconds."""
    values = {
        "levels": 4,
        "first_quantum_s": 2.0,
        "quantum_ratio": 3.0,
        "policy": "plas",
        "beta": math.inf,
        **settings,
    }
    return Scheduler(SchedulerConfig(**values))  # type: ignore[arg-type]


def ticket(call: str, attained_s: float = 0.0, **more: object) -> Ticket:
    values = {"program": "P-" + call, "call": call, "attained_s": attained_s, **more}
    return Ticket(**values)  # type: ignore[arg-type]


class Steps:
    """Drives a scheduler step by step on a clock of its own; remembers who is in the batch."""

    def __init__(self, core: Scheduler, now: float = 0.0) -> None:
        self.core, self.now = core, now
        self.batch: list[LiveCall] = []

    def dispatch(self, *batch: LiveCall) -> None:
        self.core.dispatch(
            [call for call in batch if call not in self.batch or not call.seated],
            [call for call in self.batch if call not in batch or not call.seated],
            self.now,
        )
        self.batch = list(batch)

    def output(self, after_s: float) -> float:
        self.now += after_s
        return self.core.charge(self.now)

    def run(self, *batch: LiveCall, step_s: float = 1.0) -> None:
        self.dispatch(*batch)
        self.output(step_s)


def kinds(call: LiveCall, core: Scheduler, now: float) -> list[tuple[str, int]]:
    return [(d.kind, d.level) for d in core.leave(call, now).decisions]


class TestArrival:
    def test_a_call_starts_in_the_level_that_holds_its_attained_service(self) -> None:
        core = scheduler()
        starts = {0.0: 0, 1.99: 0, 2.0: 1, 5.99: 1, 6.0: 2, 18.0: 3, 1e9: 3}
        for attained_s, level in starts.items():
            assert core.arrive(ticket(str(attained_s), attained_s), 0.0).level == level

    def test_rank_is_by_level_and_then_by_entry(self) -> None:
        core = scheduler()
        late_level = core.arrive(ticket("a", 7.0), 0.0)
        first = core.arrive(ticket("b"), 0.0)
        second = core.arrive(ticket("c"), 0.0)
        assert sorted(core.calls.values(), key=core.rank) == [first, second, late_level]

    def test_with_ties_by_program_the_older_program_goes_first_inside_a_level(self) -> None:
        core = scheduler(program_ties=True)
        young = core.arrive(ticket("young", program_number=7), 0.0)
        old = core.arrive(ticket("old", program_number=2), 1.0)
        again = core.arrive(ticket("again", program="P-old", program_number=2), 2.0)
        worse = core.arrive(ticket("worse", 7.0, program_number=0), 3.0)
        assert sorted(core.calls.values(), key=core.rank) == [old, again, young, worse]

    def test_an_older_program_stays_first_when_its_call_moves_down_later(self) -> None:
        core = scheduler(program_ties=True)
        young = core.arrive(ticket("young", 2.0, program_number=7), 0.0)
        old = core.arrive(ticket("old", program_number=2), 0.0)
        steps = Steps(core)
        steps.run(old, step_s=2.0)
        assert core.tick(steps.now) == [old]
        assert core.rank(old) < core.rank(young)

    def test_of_a_programs_calls_the_one_with_the_longest_chain_to_come_goes_first(self) -> None:
        core = scheduler(program_ties=True)
        own = {"program": "P", "program_number": 3}
        short = core.arrive(ticket("short", to_come_s=2.0, **own), 0.0)
        first = core.arrive(ticket("first", to_come_s=9.0, **own), 0.0)
        second = core.arrive(ticket("second", to_come_s=9.0, **own), 0.0)
        unknown = core.arrive(ticket("unknown", **own), 0.0)
        old = core.arrive(ticket("old", program_number=2, to_come_s=0.1), 0.0)
        young = core.arrive(ticket("young", program_number=4, to_come_s=99.0), 0.0)
        worse = core.arrive(ticket("worse", 7.0, to_come_s=99.0, **own), 0.0)
        in_order = [old, unknown, first, second, short, young, worse]
        assert sorted(core.calls.values(), key=core.rank) == in_order

    @pytest.mark.parametrize("settings", [{"program_ties": False}, {"critical_calls_first": False}])
    def test_without_that_a_programs_calls_go_as_they_came(self, settings: dict) -> None:
        core = scheduler(**{"program_ties": True, **settings})
        came = [
            core.arrive(ticket(name, program="P", program_number=3, to_come_s=to_come_s), 0.0)
            for name, to_come_s in (("a", 2.0), ("b", 9.0), ("c", 5.0))
        ]
        assert sorted(core.calls.values(), key=core.rank) == came

    def test_a_call_of_an_unknown_program_stands_as_if_its_program_had_come_last(self) -> None:
        core = scheduler(program_ties=True)
        core.arrive(ticket("young", program_number=7), 0.0)
        stranger = core.arrive(ticket("stranger"), 1.0)
        later = core.arrive(ticket("later", program_number=8), 2.0)
        old = core.arrive(ticket("old", program_number=2), 3.0)
        ranks = [core.rank(call) for call in (old, stranger, later)]
        assert ranks == sorted(ranks)

    def test_under_program_fcfs_the_older_program_goes_first_and_nothing_ever_moves(self) -> None:
        core = scheduler(policy="program-fcfs")
        young = core.arrive(ticket("young", program_number=1), 0.0)
        old = core.arrive(ticket("old", 100.0, program_number=0), 1.0)
        steps = Steps(core, 1.0)
        for _ in range(20):
            steps.run(young, step_s=10.0)
            assert core.tick(steps.now) == []
        assert core.rank(old) < core.rank(young)

    def test_a_setting_decides_against_the_policy(self) -> None:
        assert not scheduler(policy="program-fcfs", program_ties=False).program_ties
        assert scheduler(policy="plas", program_ties=True).program_ties
        assert not scheduler(policy="plas").program_ties

    def test_under_fcfs_only_arrival_counts_and_nothing_ever_moves(self) -> None:
        core = scheduler(policy="fcfs")
        old = core.arrive(ticket("old", 100.0), 0.0)
        new = core.arrive(ticket("new"), 1.0)
        steps = Steps(core, 1.0)
        for _ in range(20):
            steps.run(old, step_s=10.0)
            assert core.tick(steps.now) == []
        assert core.rank(old) < core.rank(new)

    def test_a_live_key_cannot_come_twice(self) -> None:
        core = scheduler()
        core.arrive(ticket("a"), 0.0)
        with pytest.raises(ValueError, match="is live already"):
            core.arrive(ticket("a"), 1.0)


class TestService:
    def test_a_step_is_charged_whole_to_each_call_in_it_and_to_no_other(self) -> None:
        core = scheduler()
        a, b, c = (core.arrive(ticket(name), 0.0) for name in "abc")
        steps = Steps(core)
        steps.run(a, b, step_s=1.0)
        steps.run(b, step_s=2.0)
        steps.run(a, b, c, step_s=4.0)
        assert [core.service(call) for call in (a, b, c)] == [5.0, 7.0, 4.0]

    def test_a_step_in_the_pipeline_lasts_from_the_output_before_it(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        steps.dispatch(a)
        steps.now = 0.5
        steps.dispatch(a)
        assert steps.output(0.5) == 1.0  # dispatched at 0, output at 1
        assert steps.output(1.0) == 1.0  # dispatched at 0.5, but runs from 1 to 2
        assert core.service(a) == 2.0

    def test_a_pause_between_steps_is_nobodys_service(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        steps.run(a)
        steps.now += 10.0
        steps.run(a)
        assert core.service(a) == 2.0

    def test_who_joins_or_drops_out_counts_from_that_step_on_with_steps_in_flight(self) -> None:
        core = scheduler()
        a, b = core.arrive(ticket("a"), 0.0), core.arrive(ticket("b"), 0.0)
        steps = Steps(core)
        steps.dispatch(a)
        steps.dispatch(a, b)
        steps.output(1.0)
        steps.dispatch(b)
        steps.output(2.0)
        steps.output(4.0)
        assert (core.service(a), core.service(b)) == (3.0, 6.0)

    def test_a_call_that_left_is_not_charged_for_the_step_still_in_flight(self) -> None:
        core = scheduler()
        a, b = core.arrive(ticket("a"), 0.0), core.arrive(ticket("b"), 0.0)
        steps = Steps(core)
        steps.dispatch(a, b)
        steps.dispatch(a, b)
        steps.output(1.0)
        assert core.leave(a, steps.now).service_s == 1.0
        steps.dispatch(b)
        steps.output(1.0)
        steps.output(1.0)
        assert core.service(b) == 3.0

    def test_wait_is_the_time_without_a_seat(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core, 3.0)
        steps.run(a)
        core.preempt(a, steps.now, "test")
        steps.now += 5.0
        steps.run(a)
        receipt = core.leave(a, steps.now)
        assert (receipt.service_s, receipt.wait_s, receipt.preemptions) == (2.0, 8.0, 1)

    def test_a_call_stopped_with_a_step_in_flight_waits_from_that_steps_output(self) -> None:
        core = scheduler()
        a, b = core.arrive(ticket("a"), 0.0), core.arrive(ticket("b"), 0.0)
        steps = Steps(core)
        steps.dispatch(a, b)
        core.preempt(a, steps.now, "test")
        steps.dispatch(b)
        steps.output(1.0)
        steps.output(1.0)
        receipt = core.leave(a, steps.now)
        assert (receipt.service_s, receipt.wait_s) == (1.0, 1.0)

    def test_a_call_without_work_in_a_step_keeps_its_seat_and_does_not_wait(self) -> None:
        core = scheduler()
        a, b = core.arrive(ticket("a"), 0.0), core.arrive(ticket("b"), 0.0)
        steps = Steps(core)
        steps.run(a, b)
        steps.run(b)
        steps.run(a, b)
        receipt = core.leave(a, steps.now)
        assert (receipt.service_s, receipt.wait_s) == (2.0, 0.0)


class TestDemotion:
    def test_a_call_goes_down_when_its_quantum_is_used_up_and_not_before(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        levels = []
        for _ in range(20):
            steps.run(a)
            core.tick(steps.now)
            levels.append(a.level)
        # quanta of 2, 4, 12 seconds, then none
        assert levels == [0, 1, 1, 1, 1, *[2] * 12, 3, 3, 3]
        assert core.demotions == 3

    def test_a_demoted_call_stands_behind_those_already_in_the_level(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        b = core.arrive(ticket("b", 2.0), 0.0)
        steps = Steps(core)
        steps.run(a, step_s=2.0)
        assert core.tick(steps.now) == [a]
        assert a.level == b.level and core.rank(b) < core.rank(a)

    def test_one_level_at_a_time_even_after_a_very_long_step(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        steps.run(a, step_s=100.0)
        core.tick(steps.now)
        assert a.level == 1
        core.tick(steps.now)
        assert a.level == 1, "its new quantum is whole"

    def test_the_quantum_is_not_given_back_by_a_preemption(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        steps.run(a)
        core.preempt(a, steps.now, "test")
        steps.run()
        steps.run(a)
        assert core.tick(steps.now) == [a]

    def test_a_used_up_quantum_counts_after_the_seat_is_lost(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        steps.run(a, step_s=2.0)
        core.preempt(a, steps.now, "test")
        steps.run()
        assert core.tick(steps.now) == [a] and a.level == 1

    def test_mlfq_starts_every_call_at_the_top_and_demotes_it_all_the_same(self) -> None:
        core = scheduler(policy="mlfq")
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        steps.run(a, step_s=2.0)
        core.tick(steps.now)
        assert a.level == 1


class TestPromotion:
    def test_a_waiting_call_is_promoted_when_its_program_has_waited_beta_times_its_service(
        self,
    ) -> None:
        core = scheduler(beta=3.0)
        a = core.arrive(
            ticket("a", 7.0, program_service_s=7.0, program_wait_s=1.0), 0.0
        )  # needs 3 * 7 - 1 = 20 s of wait
        assert core.tick(19.9) == []
        assert core.tick(20.0) == [a]
        assert a.level == 0 and core.promotions == 1

    def test_a_promoted_call_goes_to_the_end_of_the_best_level_with_its_quantum(self) -> None:
        core = scheduler(beta=1.0)
        a = core.arrive(ticket("a", 7.0, program_service_s=7.0), 0.0)
        b = core.arrive(ticket("b"), 6.0)
        core.tick(7.0)
        assert core.rank(b) < core.rank(a)
        steps = Steps(core, 7.0)
        steps.run(a, step_s=2.0)
        core.tick(steps.now)
        assert a.level == 1

    def test_wait_and_service_start_again_for_the_rule_but_not_for_the_receipt(self) -> None:
        core = scheduler(beta=1.0)
        a = core.arrive(ticket("a", 7.0, program_service_s=7.0), 0.0)
        core.tick(7.0)
        steps = Steps(core, 7.0)
        steps.run(a, step_s=2.0)
        core.tick(steps.now)  # in the second level now: W + w = 0, T + t = 9
        core.preempt(a, steps.now, "test")
        assert core.tick(steps.now + 8.9) == []
        assert core.tick(steps.now + 9.0) == [a]
        receipt = core.leave(a, steps.now + 9.0)
        assert (receipt.service_s, receipt.wait_s) == (2.0, 16.0)
        assert receipt.levels == (3, 1, 2, 1)

    def test_a_call_that_got_its_seat_is_promoted_only_if_it_still_qualifies(self) -> None:
        for ran_s, promoted in ((1.0, True), (1.5, False)):
            core = scheduler(beta=1.0)
            a = core.arrive(ticket("a", 7.0, program_service_s=7.0), 0.0)
            steps = Steps(core, 8.0)
            steps.run(a, step_s=ran_s)
            assert (core.tick(steps.now) == [a]) is promoted

    def test_what_a_sibling_took_counts_as_soon_as_it_has_finished(self) -> None:
        core = scheduler(beta=2.0)
        a = core.arrive(ticket("a", 7.0, program="P", program_service_s=7.0), 0.0)
        b = core.arrive(ticket("b", 7.0, program="P", program_service_s=7.0), 0.0)
        steps = Steps(core, 6.0)
        steps.run(b)  # waited 6, took 1
        core.leave(b, steps.now)
        # W + w = 6 + now, T + t = 8: due when now = 10, without the sibling when now = 14
        assert core.tick(9.9) == []
        assert core.tick(10.0) == [a]

    def test_what_a_sibling_took_also_postpones_a_promotion(self) -> None:
        core = scheduler(beta=1.0)
        a = core.arrive(ticket("a", 7.0, program="P", program_service_s=7.0), 0.0)
        b = core.arrive(ticket("b", 7.0, program="P", program_service_s=7.0), 0.0)
        steps = Steps(core)
        steps.run(b, step_s=5.0)
        core.leave(b, steps.now)
        assert core.tick(11.9) == []
        assert core.tick(12.0) == [a]

    def test_a_programs_calls_are_promoted_together(self) -> None:
        core = scheduler(beta=1.0)
        calls = [
            core.arrive(ticket(n, 7.0, program="P", program_service_s=7.0), 0.0) for n in "abc"
        ]
        assert core.tick(7.0) == calls

    def test_mlfq_looks_at_the_call_alone(self) -> None:
        core = scheduler(policy="mlfq", beta=1.0)
        a = core.arrive(ticket("a", program_wait_s=1000.0, program_service_s=1.0), 0.0)
        steps = Steps(core)
        steps.run(a, step_s=2.0)
        core.tick(steps.now)
        core.preempt(a, 2.0, "test")
        assert core.tick(3.9) == []
        assert core.tick(4.0) == [a]

    def test_totals_of_a_program_are_forgotten_with_its_last_live_call(self) -> None:
        core = scheduler(beta=1.0)
        a = core.arrive(ticket("a", 7.0, program="P", program_wait_s=500.0), 0.0)
        core.leave(a, 1.0)
        b = core.arrive(ticket("b", 7.0, program="P", program_service_s=7.0), 1.0)
        assert core.tick(7.9) == []
        assert core.tick(8.0) == [b]


class TestReceipt:
    def test_decisions_say_what_was_done_and_why(self) -> None:
        core = scheduler(beta=1.0)
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core, 1.0)
        steps.run(a, step_s=2.0)
        core.tick(steps.now)
        core.preempt(a, steps.now, "for call x at level 1: seats full")
        steps.now += 4.0
        core.tick(steps.now)
        steps.run(a)
        receipt = core.leave(a, steps.now)
        assert [(d.kind, d.level, d.reason) for d in receipt.decisions] == [
            ("arrival", 1, "attained 0 s"),
            ("dispatch", 1, "waited 1 s"),
            ("demotion", 2, "quantum of 2 s used up"),
            ("preemption", 2, "for call x at level 1: seats full"),
            ("promotion", 1, "program waited 5 s for 2 s of service"),
            ("resume", 1, "waited 4 s"),
            ("leave", 1, "finished"),
        ]
        assert receipt.levels == (1, 2, 1)

    def test_of_many_decisions_both_ends_are_kept(self) -> None:
        core = scheduler(kept_decisions=6)
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        for _ in range(50):
            steps.run(a, step_s=0.01)
            core.preempt(a, steps.now, "test")
            steps.run()
        found = kinds(a, core, steps.now)
        assert len(found) == 6
        assert found[:3] == [("arrival", 1), ("dispatch", 1), ("preemption", 1)]
        assert found[-1] == ("leave", 1)

    def test_a_call_leaves_once(self) -> None:
        core = scheduler()
        a = core.arrive(ticket("a"), 0.0)
        core.leave(a, 1.0)
        with pytest.raises(ValueError, match="has left already"):
            core.leave(a, 2.0)


class TestLevelsFollowTheEngine:
    def test_bounds_are_derived_from_the_measured_step_when_it_is_another_one(self) -> None:
        core = scheduler(first_quantum_s=None, quantum_steps=10, expected_step_s=0.01)
        assert core.levels.bounds[0] == pytest.approx(0.1)
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        for _ in range(16):
            steps.run(a, step_s=0.5)
        core.tick(steps.now)
        assert core.levels.bounds[0] == pytest.approx(5.0)

    def test_small_drifts_leave_the_bounds_alone(self) -> None:
        core = scheduler(first_quantum_s=None, quantum_steps=10, expected_step_s=0.01)
        before = core.levels
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        for _ in range(200):
            steps.run(a, step_s=0.0149)
            core.tick(steps.now)
        assert core.levels is before

    def test_a_given_quantum_stays(self) -> None:
        core = scheduler(first_quantum_s=2.0)
        before = core.levels
        a = core.arrive(ticket("a"), 0.0)
        steps = Steps(core)
        for _ in range(100):
            steps.run(a, step_s=50.0)
            core.tick(steps.now)
        assert core.levels is before
