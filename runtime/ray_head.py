"""Whether a Ray cluster's head is there: who loses it is told before Ray ends the process for it.

Without fault tolerance of its own, Ray ends everything a minute after its head is lost: machines,
replicas, and the process that placed their calls.
"""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("autellix")

_EVERY_S = 3.0
_ANSWERED_WITHIN_S = 3.0
_MISSES = 3


async def watch_head(address: str, *, every_s: float = _EVERY_S, misses: int = _MISSES) -> None:
    """Say when the head does not answer any more, and when it does again; runs until cancelled.

    Args:
        address: HOST:PORT.
        every_s: time between two looks, seconds.
        misses: looks in a row that find nobody before it counts as lost.
    """
    missed = 0
    while True:
        await asyncio.sleep(every_s)
        if await _answers(address):
            if missed >= misses:
                log.warning("The head of the Ray cluster at %s answers again.", address)
            missed = 0
            continue
        missed += 1
        if missed == misses:
            log.error(
                "The head of the Ray cluster at %s does not answer. Calls go on while the "
                "machines do; does it stay away, Ray ends them and this process a minute after it "
                "was lost. Then start the cluster and this again: sessions go on with the service "
                "that they had, threads from their checkpoints.",
                address,
            )


async def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWERED_WITHIN_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
