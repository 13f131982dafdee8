"""When KV that lies in host memory is loaded for a program that is away, before its next call.

1. Who is back within ``device_s`` finds its KV on the device; it is about those who stay longer.
2. A load that has ended when they are back saves their call all of its time, one that is still
   under way a part.
3. What is on the device before it is wanted takes the room of others there. That turns over once in
   ``device_s``: KV that lies idle for that long has cost somebody else a load, if that one comes
   back for it, and goes itself. That others come back is taken to be as likely as not.
4. So the load begins when the expected gain is the largest, but only where what it is bound to
   save is more likely gained than not: tools that may take any time are not worth others' room.
5. When the program's tool has ended, its call is a moment away, and the load begins at once.

Pure: the distribution of the absence comes from recorded durations, the rest is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_OTHERS_RETURN = 0.5
# Net gain in parts of a load's time: half of the loads used, and what the other half cost others.
_WORTH = 0.3


def fetch_after_s(absence_s: Sequence[float], load_s: float, device_s: float) -> float:
    """How long after the program has left the load begins, seconds; infinite for never.

    Args:
        absence_s: quantiles of how long the program will be away, at equal distances and in
            ascending order, seconds; empty where nothing is known, and then the answer is never.
        load_s: what the load takes, seconds.
        device_s: how long KV that nobody uses stays on the device, seconds; infinite where nothing
            is overwritten.
    """
    late_s = [back_s for back_s in absence_s if back_s > device_s]
    if not late_s or not 0.0 < load_s < math.inf:
        return math.inf
    # Between two of these the gain has no peak: it bends only where a return or a load is due.
    begins_s = {max(back_s - load_s, device_s) for back_s in late_s}
    # A part as large as any between two quantiles lies beyond the last: nobody knows how far.
    late_s.append(math.inf)
    best_s, most = math.inf, 0.0
    for begin_s in sorted(begins_s):
        away_s = [back_s - begin_s for back_s in late_s if back_s > begin_s]
        gain = _gain(away_s, load_s, device_s)
        if gain >= max(most, _WORTH * len(away_s)):
            best_s, most = begin_s, gain
    return best_s


def _gain(away_s: Sequence[float], load_s: float, device_s: float) -> float:
    """What a load gains that begins so long before each return, in parts of its time."""
    gain = 0.0
    for ahead_s in away_s:
        idle_s = max(ahead_s - load_s, 0.0)
        if idle_s <= device_s:
            gain += min(ahead_s / load_s, 1.0)
        if idle_s:
            gain -= _OTHERS_RETURN * (min(idle_s / device_s, 1.0) if device_s else 1.0)
    return gain
