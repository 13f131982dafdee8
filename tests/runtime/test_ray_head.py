"""A cluster's head that is lost is told of, and that it is back."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from autellix.runtime.ray_head import watch_head


async def told(caplog: pytest.LogCaptureFixture, words: str) -> None:
    while words not in caplog.text:
        await asyncio.sleep(0.001)


async def listen(port: int) -> asyncio.Server:
    return await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)


async def test_a_head_that_is_lost_is_told_of_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    head = await listen(port)
    address = f"127.0.0.1:{port}"
    with caplog.at_level(logging.INFO, logger="autellix"):
        watch = asyncio.create_task(watch_head(address, every_s=0.001, misses=2))
        await asyncio.sleep(0)
        head.close()
        await head.wait_closed()
        await told(caplog, "does not answer")
        assert address in caplog.text
        assert "start the cluster and this again" in caplog.text
        head = await listen(port)
        await told(caplog, "answers again")
    watch.cancel()
    head.close()
    assert caplog.text.count("does not answer") == 1
