"""Connected pairs of datagram connections, one maker for each kind of pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from aiordma.config import Config
from aiordma.datagrams.connection import DatagramConnection, connect_datagram, listen_datagram
from aiordma.pipes.tcp_records import TcpDatagrams
from aiordma.testing.memory import MemoryPipe, memory_pipe_pair
from tests.streams.pairs import ONE, OTHER, tls_contexts
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Pair = tuple[DatagramConnection, DatagramConnection]

LOCAL = "127.0.0.1"
#: Larger messages than this do not fit into the smallest ring.
LIMIT = 16380


def over(one: MemoryPipe, other: MemoryPipe) -> Pair:
    return (
        DatagramConnection(TcpDatagrams(one, LIMIT), local_address=ONE, remote_address=OTHER),
        DatagramConnection(TcpDatagrams(other, LIMIT), local_address=OTHER, remote_address=ONE),
    )


async def greet(*connections: DatagramConnection) -> None:
    for connection in connections:
        pipe = connection._pipe
        assert isinstance(pipe, TcpDatagrams)
        while not pipe.greeted():
            await anyio.lowlevel.checkpoint()


async def memory_pair(ring_bytes: int = 999) -> Pair:
    """Smaller than most messages: nearly every one is placed in parts."""
    pair = over(*memory_pipe_pair(ring_bytes))
    await greet(*pair)
    return pair


async def negotiated_pair(**options: Any) -> Pair:
    """Both ends of a connection made with listen_datagram() and connect_datagram() over loopback."""
    client = {key: value for key, value in options.items() if key != "server_ssl"}
    options["ssl"] = options.pop("server_ssl", None)
    async with await listen_datagram(LOCAL, **options) as listener:
        accepted: list[DatagramConnection] = []

        async def accept() -> None:
            accepted.append(await listener.accept())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept)
            one = await connect_datagram(LOCAL, listener.port, **client)
    return one, accepted[0]


async def receive_on(connection: Any, got: list[bytes] | None = None) -> None:
    """Receive until an error ends it."""
    while True:
        message = await connection.receive()
        if got is not None:
            got.append(message)


async def send_on(connection: DatagramConnection, message: bytes = b"x" * 1000) -> None:
    """Send until an error ends it, yielding to other tasks."""
    while True:
        await connection.send(message)
        await anyio.lowlevel.checkpoint()


async def tcp_pair() -> Pair:
    return await negotiated_pair(config=Config(ring_bytes=16384), mode="tcp")


async def rdma_pair() -> Pair:
    """On the software device, with the smallest rings, so that records wrap all the time."""
    return await negotiated_pair(config=Config(device=DEVICE, ring_bytes=16384), mode="rdma")


async def tls_pair() -> Pair:
    client, server = tls_contexts()
    config = Config(ring_bytes=16384, server_first_wait_ms=0)
    return await negotiated_pair(ssl=client, server_ssl=server, config=config)


MAKERS: dict[str, Callable[[], Awaitable[Pair]]] = {
    "memory": memory_pair,
    "tcp": tcp_pair,
    "rdma": rdma_pair,
    "tls": tls_pair,
}
