"""Connections that are being negotiated when their server is closed."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any

import pytest

from aiordma.compat import connection
from aiordma.config import Config
from aiordma.negotiation.announcement import arriving
from tests.health import until
from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

pytestmark = pytest.mark.anyio

LOCAL = "127.0.0.1"
FOREVER = 600_000
"""Milliseconds that the test does not live to see."""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(1000))
    writer.close()


@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "accepted"])
async def test_they_end_with_the_other_clients(how: str, begun: bool) -> None:
    config = Config(device=DEVICE, server_first_wait_ms=FOREVER)
    server: Any = await connection.start_server(echo, LOCAL, 0, config=config)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    with arriving([(socket.AF_INET, (LOCAL, port))]), socket.create_connection((LOCAL, port)) as client:
        client.setblocking(False)
        if begun:
            await until(lambda: len(server._starting) == 1)
        else:
            # Its negotiation has not made its first step when it ends.
            [listening] = server._sockets
            select.select([listening], [], [], FULL_PATIENCE)
            server._acceptor.accept_from(listening)
        assert len(server._starting) == 1
        server.close()
        getattr(server, how)()
        assert await asyncio.wait_for(loop.sock_recv(client, 100), FULL_PATIENCE) == b""
    await asyncio.wait_for(server.wait_closed(), FULL_PATIENCE)


async def test_a_silent_client_does_not_hold_up_the_end() -> None:
    """A program that ends (as uvicorn does) has closed the connections that it knows of by then."""
    config = Config(device=DEVICE, server_first_wait_ms=FOREVER)
    server: Any = await connection.start_server(echo, LOCAL, 0, config=config)
    port = server.sockets[0].getsockname()[1]
    with arriving([(socket.AF_INET, (LOCAL, port))]), socket.create_connection((LOCAL, port)):
        await until(lambda: len(server._starting) == 1)
        server.close()
        await asyncio.wait_for(server.wait_closed(), FULL_PATIENCE)
        server.close_clients()
        await until(lambda: not server._starting)


async def test_one_that_is_closed_with_nothing_under_way_has_ended() -> None:
    server: Any = await connection.start_server(echo, LOCAL, 0, config=Config(device=DEVICE))
    closed = asyncio.create_task(server.wait_closed())
    await asyncio.sleep(0)
    server.close()
    await asyncio.wait_for(closed, FULL_PATIENCE)
