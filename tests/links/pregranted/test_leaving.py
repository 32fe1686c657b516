"""Programs that send, close and exit without waiting for the server: the data arrives."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

import aiordma
from aiordma.config import Config
from tests.health import until
from tests.loops import LOOPS
from tests.negotiation.serving import serving
from tests.processes import process
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from tests.program import Control

HERE = "tests.links.pregranted.test_leaving:send_and_leave"
pytestmark = pytest.mark.anyio


async def send_and_leave(control: Control, port: int, count: int) -> None:
    for number in range(count):
        stream = await aiordma.connect(LOCAL, port, mode="rdma")
        await stream.send(f"message {number} ".encode() * 1000)
        await stream.aclose()
    control.say(count)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("loop", LOOPS)
async def test_nothing_is_lost(loop: str, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """On a first contact, on an existing link, and on pre-granted rings."""
    got: list[bytes] = []

    async def collect(stream: aiordma.RdmaStream) -> None:
        async with stream:
            got.append(b"".join([part async for part in stream]))

    config = Config(device=DEVICE)
    async with serving(collect, config=config) as listener:
        with process(
            "tests.links.pregranted.test_leaving:send_and_leave", loop=loop, port=listener.port, count=count
        ) as client:
            assert await client.heard() == count
            await anyio.to_thread.run_sync(client.wait)
        await until(lambda: len(got) == count, lambda: [part[:20] for part in got])
    assert sorted(got) == sorted(f"message {number} ".encode() * 1000 for number in range(count))
    # Streams that were closed in order are not reported as lost.
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]
