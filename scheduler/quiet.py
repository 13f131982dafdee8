"""When the policy has nothing to do, so that a simulator need not ask at every step."""

from __future__ import annotations

import math
from typing import NamedTuple


class Quiet(NamedTuple):
    """How long the policy has nothing to do; whichever ends first.

    Attributes:
        service_s: until a call has used up its quantum, seconds charged.
        time_s: until a waiting call is to be looked at for promotion, seconds.
        steps: until the levels may have to follow the engine's typical step.
        contested: at any run of the policy running calls may have to give way to waiting ones that
            stand so much better, or a tenant may come to be ahead of another.
    """

    service_s: float
    time_s: float
    steps: float
    contested: bool


FOR_EVER = Quiet(math.inf, math.inf, math.inf, False)
