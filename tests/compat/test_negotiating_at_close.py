"""Connections that are being negotiated when their server is closed."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import Any

import pytest

from aiordma.compat import connection
from aiordma.compat import server as server_module
from aiordma.config import Config
from aiordma.negotiation.announcement import arriving
from aiordma.negotiation.server import ServerNegotiation
from aiordma.proto.events import Proposed
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


class HeldUp:
    """Negotiations that have heard the client, and go no further until they may."""

    def __init__(self, patches: pytest.MonkeyPatch) -> None:
        self.number, self.may = 0, asyncio.Event()
        own = ServerNegotiation.on_proposed

        async def on_proposed(negotiation: ServerNegotiation, event: Any) -> None:
            await own(negotiation, event)
            self.number += 1
            await self.may.wait()

        handlers = {**ServerNegotiation.handlers, Proposed: on_proposed}
        patches.setattr(ServerNegotiation, "handlers", handlers)


@pytest.mark.parametrize("before", [False, True], ids=["behind close()", "before it"])
async def test_the_end_is_behind_what_is_negotiated(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that waits for the end of its server, and then for the connections that it has (as gunicorn's
    workers do), serves all that have begun."""
    held = HeldUp(monkeypatch)
    monkeypatch.setattr(server_module, "_HANDED_OVER_S", FULL_PATIENCE)
    config = Config(device=DEVICE, negotiate_timeout_ms=FOREVER, head_start_ms=FOREVER)
    served: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(b"")
        served[0] = await reader.read(1000)
        writer.close()

    server: Any = await connection.start_server(serve, LOCAL, 0, config=config)
    port = server.sockets[0].getsockname()[1]
    connecting = asyncio.create_task(connection.open_connection(LOCAL, port, config=config))
    await until(lambda: held.number == 1)
    closed = asyncio.create_task(server.wait_closed()) if before else None
    await asyncio.sleep(0)
    server.close()
    if closed is None:
        closed = asyncio.create_task(server.wait_closed())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closed.done()
    held.may.set()
    await asyncio.wait_for(closed, FULL_PATIENCE)
    assert served == [b""]
    _reader, writer = await asyncio.wait_for(connecting, FULL_PATIENCE)
    assert writer.get_extra_info("aiordma.path") == "rdma"
    writer.write(b"hello")
    writer.close()
    await until(lambda: served == [b"hello"])


async def test_one_that_says_nothing_yet_is_shown_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have been shown at once without aiordma."""
    monkeypatch.setattr(server_module, "_HANDED_OVER_S", FULL_PATIENCE)
    config = Config(device=DEVICE, server_first_wait_ms=FOREVER)
    shown: list[asyncio.StreamWriter] = []

    def show(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown.append(writer)

    server: Any = await connection.start_server(show, LOCAL, 0, config=config)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    with arriving([(socket.AF_INET, (LOCAL, port))]), socket.create_connection((LOCAL, port)) as client:
        client.setblocking(False)
        await until(lambda: len(server._starting) == 1)
        server.close()
        closed = asyncio.create_task(server.wait_closed())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closed.done()
        await loop.sock_sendall(client, b"hello")
        await asyncio.wait_for(closed, FULL_PATIENCE)
        assert len(shown) == 1
        shown[0].close()
        await shown[0].wait_closed()


async def test_a_silent_client_holds_up_the_end_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends (as uvicorn does) has closed the connections that it knows of by then."""
    monkeypatch.setattr(server_module, "_HANDED_OVER_S", 0.01)
    config = Config(device=DEVICE, server_first_wait_ms=FOREVER)
    server: Any = await connection.start_server(echo, LOCAL, 0, config=config)
    port = server.sockets[0].getsockname()[1]
    with arriving([(socket.AF_INET, (LOCAL, port))]), socket.create_connection((LOCAL, port)):
        await until(lambda: len(server._starting) == 1)
        server.close()
        await asyncio.wait_for(server.wait_closed(), FULL_PATIENCE)
        assert len(server._starting) == 1
        server.close_clients()
        await until(lambda: not server._starting)


async def test_one_that_is_closed_with_nothing_under_way_has_ended() -> None:
    server: Any = await connection.start_server(echo, LOCAL, 0, config=Config(device=DEVICE))
    closed = asyncio.create_task(server.wait_closed())
    await asyncio.sleep(0)
    server.close()
    await asyncio.wait_for(closed, FULL_PATIENCE)
