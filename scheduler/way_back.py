"""How a call that has lost its seat gets its KV back, and how long that takes.

1. *Keep*: what the device still has of its context costs nothing.
2. *Swap*: what the host has beyond that is loaded, where loading is no slower than computing.
3. *Recompute*: all else is computed again.

A load runs beside the engine's steps and holds up its own call alone, whereas what is computed
again holds up everybody; so where both take as long, the load it is.

Pure: rates and tokens are told, measured in the engine or modelled in the simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

Way = Literal["keep", "swap", "recompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRates:
    """How fast KV is made and moved.

    Attributes:
        prefill_s: computing a prompt token, seconds of the engine.
        load_s: loading a token's KV from host memory, seconds; infinite where there is no host
            tier, or nothing has been measured yet.
        load_start_s: from the decision to the first byte, and from the last one to the next step,
            seconds.
    """

    prefill_s: float
    load_s: float = math.inf
    load_start_s: float = 0.0


class WayBack(NamedTuple):
    """What a call does to go on.

    Attributes:
        way: what becomes of most of the tokens that the device has lost; "keep" of none.
        seconds: until all of its context is there.
        loaded_tokens, computed_tokens: by a load, and computed again.
    """

    way: Way
    seconds: float
    loaded_tokens: int
    computed_tokens: int


def way_back(
    context_tokens: int,
    device_tokens: int,
    host_tokens: int,
    rates: KvRates,
    *,
    link_wait_s: float = 0.0,
) -> WayBack:
    """Decide for one call.

    Args:
        context_tokens: tokens of it whose KV it needs.
        device_tokens: leading part of them that is still in the device's cache.
        host_tokens: leading part that the device and the host have together.
        link_wait_s: how long loads ahead of it keep the link busy, seconds.
    """
    device = min(device_tokens, context_tokens)
    loaded = max(min(host_tokens, context_tokens) - device, 0)
    load_s = link_wait_s + rates.load_start_s + loaded * rates.load_s if loaded else 0.0
    if load_s > loaded * rates.prefill_s:
        loaded, load_s = 0, 0.0
    computed = context_tokens - device - loaded
    way: Way = "keep"
    if loaded or computed:
        way = "swap" if loaded > computed else "recompute"
    return WayBack(way, load_s + computed * rates.prefill_s, loaded, computed)
