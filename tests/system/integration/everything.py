"""A server of streams, datagrams and calls in one process, for tests of a device as a whole."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

import aiordma
from aiordma import rpc
from aiordma.datagrams.connection import listen_datagram
from tests.roles import LOCAL, echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

service = rpc.Service("mirror")


@service.method
async def reverse(data: bytes) -> bytes:
    return data[::-1]


@service.method
async def count(to: int) -> Any:
    for number in range(to):
        yield number


async def _mirror(connection: aiordma.DatagramConnection) -> None:
    async with connection:
        async for message in connection:
            await connection.send(message)


@asynccontextmanager
async def serve() -> AsyncIterator[tuple[int, int, int]]:
    """The ports of streams and datagrams, which come back as they are, and of calls."""
    async with (
        await aiordma.listen(LOCAL) as streams,
        await listen_datagram(LOCAL) as datagrams,
        rpc.serve(service, LOCAL) as calls,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(streams.serve, echo)
        tasks.start_soon(datagrams.serve, _mirror)
        yield streams.port, datagrams.port, calls.port
        tasks.cancel_scope.cancel()
