"""A call's course: where it stands as it goes on, said by its ticket.

A ticket may carry ``(from_0, place_0, from_1, place_1, ...)``: once the call has taken part in
``from_i`` engine steps its place is ``place_i``, an amount of work in tokens; smaller is better.
Both ascend, and ``from_0`` is 0. A step makes one token of the call, so the engine's typical step
turns both into seconds of service, in which levels are bounded.
"""

from __future__ import annotations

import math

from .levels import Levels


def course_level(
    course: tuple[float, ...], levels: Levels, step_s: float, service_s: float
) -> tuple[int, float]:
    """The level of a call, from 0, and the service it may take before it stands in a worse one.

    Args:
        course: the ticket's; not empty.
        step_s: the engine's typical step, seconds.
        service_s: what the call has taken so far, seconds.
    """
    level, quantum_s = levels.of(course[1] * step_s), math.inf
    for at in range(2, len(course), 2):
        from_s = course[at] * step_s
        then = levels.of(course[at + 1] * step_s)
        if from_s <= service_s:
            level = then
        elif then > level:
            quantum_s = from_s - service_s
            break
    return level, quantum_s
