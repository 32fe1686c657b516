"""Calls and streams that are cancelled at any turn of the loop, on channels with and without room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma.testing.rpc import RpcPair, rpc_pair

from .services import service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiordma import rpc

pytestmark = pytest.mark.anyio


async def unary(client: rpc.Client) -> None:
    assert await client.call("t.echo_late", bytes(300), timeout=60.0) == bytes(300)


async def items(client: rpc.Client) -> None:
    async with client.stream("t.blobs", 20, 100) as stream:
        assert [len(item) async for item in stream] == [100] * 20


async def total(client: rpc.Client) -> None:
    async with client.stream("t.total", 0) as stream:
        for i in range(20):
            await stream.send(i)
        assert await stream.result() == 190


async def both(client: rpc.Client) -> None:
    async with client.stream("t.double", timeout=60.0) as stream:
        for i in range(8):
            await stream.send(i)
            assert await stream.receive() == 2 * i
        await stream.end()
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


async def all_over(pair: RpcPair) -> None:
    client = pair.client
    with anyio.fail_after(20):
        while client.connection.calls or pair.server.statistics().in_flight:
            await checkpoint()
    assert client.in_flight.available == client.in_flight.limit
    assert client.in_flight.waiting == 0
    assert not client.connection._queue


@pytest.mark.parametrize("work", [unary, items, total, both], ids=lambda work: work.__name__)
@pytest.mark.parametrize("room", ["plenty", "little", "spin"])
async def test_at_every_turn(work: Callable[[rpc.Client], Awaitable[None]], room: str) -> None:
    rooms: dict[str, dict[str, Any]] = {
        "plenty": {},
        "little": {"receive_bytes": 600},
        "spin": {"spin": True},
    }
    channel = rooms[room]
    made, seen = service()
    async with rpc_pair(made, calls=2, window=500, client_window=500, channel=channel) as pair:
        finished = 0

        async def attempt() -> None:
            nonlocal finished
            await work(pair.client)
            finished += 1

        turns = 0
        while True:  # until they are faster
            finished = 0
            async with anyio.create_task_group() as tasks:
                for _ in range(3):  # one more than may be in flight
                    tasks.start_soon(attempt)
                for _ in range(turns):
                    await checkpoint()
                tasks.cancel_scope.cancel()
            await all_over(pair)
            assert await pair.client.call("t.echo", b"as ever") == b"as ever"
            if finished == 3:
                break
            turns += 1
            assert turns < 3000
        assert turns > 0
        assert seen.running == 0
