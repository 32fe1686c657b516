"""For how long a connection has waited for the program at the other end, as tools see it."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma import wake
from aiordma.admin.answers import _connections
from tests.health import until
from tests.virtual import in_virtual_time
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.admin.messages import Connection

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")
pytestmark = pytest.mark.anyio

CONFIG = aiordma.Config(device=DEVICE, ring_bytes=65536, max_ring_bytes=65536)


def row(side: str) -> Connection:
    """The only connection of that side."""
    parts: list[Any] = list(_connections(wake.current()))
    (found,) = [each for part in parts for each in part.rows if each.side == side]
    return found  # type: ignore[no-any-return]


@contextlib.asynccontextmanager
async def pair(kind: str) -> AsyncIterator[tuple[Any, Any]]:
    """Both ends of a connection by RDMA."""
    listen: Any = aiordma.listen_datagram if kind == "datagrams" else aiordma.listen
    connect: Any = aiordma.connect_datagram if kind == "datagrams" else aiordma.connect
    async with (
        await listen("127.0.0.1", config=CONFIG) as listener,
        await connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as client,
        await listener.accept() as server,
    ):
        yield client, server


@in_virtual_time
@pytest.mark.parametrize("kind", ["streams", "datagrams"])
async def test_who_waits_for_the_other_program(kind: str) -> None:
    async with pair(kind) as (client, server), anyio.create_task_group() as tasks:

        async def send() -> None:
            for _ in range(80):
                await client.send(bytes(1000))

        assert row("client").blocked_s == 0
        tasks.start_soon(send)
        await anyio.sleep(50)
        assert 49 <= row("client").blocked_s <= 51
        assert row("server").blocked_s == 0
        await anyio.sleep(50)
        assert 99 <= row("client").blocked_s <= 101
        read = 0
        while read < 80_000:
            read += len(await server.receive())
        await anyio.sleep(1)
        assert row("client").blocked_s == 0


async def test_on_tcp_the_kernel_tells() -> None:
    """What waits for this end's program, and that the peer's window has been full for a while."""
    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as listener,
        await aiordma.connect("127.0.0.1", listener.port, config=CONFIG, mode="tcp") as client,
        await listener.accept(),
        anyio.create_task_group() as tasks,
    ):
        assert (row("client").blocked_s, row("server").waiting_bytes) == (0, 0)
        tasks.start_soon(client.send, bytes(32 << 20))
        await until(lambda: row("client").blocked_s > 0.05)
        assert row("server").waiting_bytes > 65536
        assert row("server").blocked_s == 0
        tasks.cancel_scope.cancel()
        # Closing need not wait for what was never read.
        for side in ("client", "server"):
            _reset(side)


def _reset(side: str) -> None:
    from aiordma.observe import connections

    for each in connections.of_loop(wake.current()):
        if each.side == side and each.sock is not None:
            each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
