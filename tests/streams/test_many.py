"""A thousand streams over the real path, side by side."""

from __future__ import annotations

import anyio
import pytest

from aiordma.config import Config
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from aiordma.streams.stream import RdmaStream
from tests.health import check_echo
from tests.world import DEVICE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SHORT = 1500  # of random tokens, five pairs and more would be alike


async def test_a_thousand_rdma_streams_at_once() -> None:
    # All of them share one loop, and the last one waits for all the others.
    config = Config(device=DEVICE, ring_bytes=16384, negotiate_timeout_ms=60_000)
    message = bytes(range(256)) * 100  # more than a ring
    paths: set[str] = set()
    everyone = anyio.Event()
    open_now = 0

    async def echo(stream: RdmaStream) -> None:
        async with stream:
            async for part in stream:
                await stream.send(part)

    async def one(port: int) -> None:
        nonlocal open_now
        async with await connect("127.0.0.1", port, config=config, mode="rdma") as stream:
            paths.add(stream.path)
            open_now += 1
            if open_now == 1000:
                everyone.set()
            await everyone.wait()
            await check_echo(stream, message)

    async with await listen("127.0.0.1", config=config, mode="rdma") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            async with anyio.create_task_group() as clients:
                for _ in range(1000):
                    clients.start_soon(one, listener.port)
            tasks.cancel_scope.cancel()
        assert listener.statistics().rdma == 1000
    assert paths == {"rdma"}


async def test_a_message_for_a_stream_that_is_gone_meets_nobody() -> None:
    """Its token names no stream that comes after it: messages cross the end of a stream, and its place is
    given away at once. Tokens of 16 random bits met somebody once in 65535 times."""
    config = Config(device=DEVICE, ring_bytes=16384)
    places: set[int] = set()
    tokens: list[int] = []

    async def ends_at_once(stream: RdmaStream) -> None:
        await stream.aclose()

    async with await listen("127.0.0.1", config=config, mode="rdma") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, ends_at_once)
            async with await connect(
                "127.0.0.1", listener.port, config=config, mode="rdma"
            ):  # keeps the link
                for _ in range(SHORT):
                    async with await connect(
                        "127.0.0.1", listener.port, config=config, mode="rdma"
                    ) as stream:
                        token = stream._pipe.ring.token  # type: ignore[attr-defined]
                        tokens.append(token)
                        places.add(token & 0xFFFF)
            tasks.cancel_scope.cancel()
    assert len(places) < SHORT / 10  # they have had the same ones again and again
    assert len(set(tokens)) == SHORT
