"""Servers for tests: aiordma ones and ones that know nothing of RDMA."""

from __future__ import annotations

import contextlib
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute, SocketStream

from aiordma.negotiation.announcement import arriving
from aiordma.streams.listener import RdmaListener, listen
from tests import health

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from aiordma.streams.stream import RdmaStream

LOCAL = "127.0.0.1"


async def echo(stream: RdmaStream) -> None:
    async with stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            async for part in stream:
                await stream.send(part)


async def echo_plain(stream: SocketStream) -> None:
    async for part in stream:
        await stream.send(part)


@asynccontextmanager
async def serving(
    handler: Callable[[RdmaStream], Awaitable[object]] = echo, **options: object
) -> AsyncIterator[RdmaListener]:
    listener = await listen(LOCAL, **options)  # type: ignore[arg-type]
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handler)
        yield listener
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def plain_server(handler: Callable[[SocketStream], Awaitable[object]]) -> AsyncIterator[int]:
    """A server that knows nothing of RDMA; gives its port."""

    async def handle(stream: SocketStream) -> None:
        async with stream:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                await handler(stream)

    listener = await anyio.create_tcp_listener(local_host=LOCAL)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def expected(listener: RdmaListener) -> AsyncIterator[None]:
    """Silent clients of this host count as ones that are about to negotiate."""
    with arriving([(socket.AF_INET, (LOCAL, listener.port))]):
        yield


@contextlib.contextmanager
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection between two bare sockets: the client's, which blocks, and the server's, which does not."""
    with (
        socket.create_server((LOCAL, 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server, _ = listener.accept()
        with server:
            server.setblocking(False)
            yield client, server


async def check_echo(stream: RdmaStream) -> None:
    """And that it ends."""
    await health.check_echo(stream)
    await health.check_end(stream)
