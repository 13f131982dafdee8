"""What has left a gate leaves nothing behind in its queues."""

from __future__ import annotations

from autellix.scheduler.admission import Gate
from autellix.scheduler.config import SchedulerConfig
from autellix.scheduler.tickets import Ticket


def test_programs_that_come_and_go_where_there_is_room_for_all_leave_no_entries() -> None:
    gate = Gate(SchedulerConfig(policy="plas", admission=True, admission_idle_s=10.0), 100_000)
    for number in range(2000):
        name, now = f"program {number}", float(number)
        gate.call_comes(Ticket(program=name, call=name, prompt_tokens=100), now)
        assert [passed.call for passed in gate.passed()] == [name]
        gate.call_ended(name, now + 0.5, None)
        gate.program_ended(name, now + 0.6)
    queues = gate._queues
    assert len(queues._inside) < 100
    assert len(queues._lapses) < 100
    assert len(queues._rises) < 100
