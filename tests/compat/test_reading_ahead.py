"""A reader that reads ahead of its program, while another task of the program waits for room to write.

Polling is where it goes wrong: what a reader's own look at the completion queue dispatches may move bytes
from the ring into the reader's buffer, end the reading ahead, and bring more bytes, all before it returns.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.config import Config
from tests.health import settle
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.anyio

RING = 32768
FIRST, SECOND = b"a" * 99 + b"\n", b"b" * 99 + b"\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ways: dict[str, Callable[[asyncio.StreamReader], Awaitable[bytes]]] = {
    "read": lambda reader: reader.read(100),
    "readexactly": lambda reader: reader.readexactly(100),
    "readline": lambda reader: reader.readline(),
}


@pytest.fixture(params=[0, None, 50], ids=["events", "adaptive", "spin"])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Streams, Streams]]:
    """Two ends; the first one's writer is paused as soon as the ring of the other is full."""
    config = Config(device=DEVICE, mode="rdma", ring_bytes=RING, busy_poll_us=request.param)
    far: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()

    async def accepted(*streams: Any) -> None:
        far.set_result(streams)

    server: Any
    async with await aiordma.start_server(accepted, "127.0.0.1", 0, config=config) as server:
        near = await aiordma.open_connection(*server.sockets[0].getsockname(), config=config)
        near[1].transport.set_write_buffer_limits(high=1000)
        yield near, await far
        for _, writer in (near, await far):
            writer.close()


async def until_it_reads_ahead(near: Streams) -> None:
    near[1].write(bytes(RING + 2000))
    await settle()
    assert near[0]._reads_ahead  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ways.values(), ids=list(ways))
async def test_order_where_a_poll_ends_the_reading_ahead(ends: tuple[Streams, Streams], way: Any) -> None:
    near, far = ends
    for _ in range(20):
        await until_it_reads_ahead(near)
        far[1].write(FIRST)  # goes into the reader's buffer when it is dispatched,
        await far[0].readexactly(RING)  # this ends that,
        far[1].write(SECOND)  # and this stays in the ring
        with anyio.fail_after(10):
            got = await way(near[0])
            got += await near[0].readexactly(200 - len(got))
            assert got == FIRST + SECOND
            await far[0].readexactly(2000)


@pytest.mark.parametrize("way", ways.values(), ids=list(ways))
async def test_what_a_poll_has_read_ahead_is_not_waited_for(ends: tuple[Streams, Streams], way: Any) -> None:
    near, far = ends
    for _ in range(20):
        await until_it_reads_ahead(near)
        far[1].write(FIRST)
        with anyio.fail_after(10):
            assert await way(near[0]) == FIRST
            await far[0].readexactly(RING + 2000)
