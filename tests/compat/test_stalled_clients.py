"""Clients of one host that begin negotiations and do not go on: other hosts' clients are served at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.compat import server as servers
from aiordma.config import Config
from aiordma.proto import clc
from tests.health import until
from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

LOCAL, OTHER, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"
#: What the test does not live to see.
CONFIG = Config(device=DEVICE, negotiate_timeout_ms=600_000)
#: An eye catcher and a header, and nothing that would follow.
HEADER = clc.Proposal(engine_id=bytes(16), nonce=bytes(16), host_id=bytes(16)).encode()[:8]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1000):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Any]:
    """A server that negotiates with eight clients at a time."""
    monkeypatch.setattr(servers, "_MAX_STARTING", 8)
    server: Any = await aiordma.start_server(echo, "", 0, family=socket.AF_INET, config=CONFIG, **options)
    try:
        yield server
    finally:
        server.close()
        server.close_clients()
        await until(lambda: not server._starting)


def crowd(stack: ExitStack, server: Any, host: str, count: int) -> list[socket.socket]:
    """Clients of this host that stall."""
    port = server.sockets[0].getsockname()[1]
    clients = []
    for _ in range(count):
        client = stack.enter_context(
            socket.create_connection((LOCAL, port), FULL_PATIENCE, source_address=(host, 0))
        )
        client.sendall(HEADER)
        client.setblocking(False)
        clients.append(client)
    return clients


async def is_served(client: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, b"hello")
    assert await asyncio.wait_for(loop.sock_recv(client, 100), FULL_PATIENCE) == b"hello"


def plain(stack: ExitStack, server: Any, host: str) -> socket.socket:
    """A client of this host that does not negotiate."""
    address = LOCAL, server.sockets[0].getsockname()[1]
    client = stack.enter_context(socket.create_connection(address, FULL_PATIENCE, source_address=(host, 0)))
    client.setblocking(False)
    return client


async def test_other_hosts_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as server:
        with ExitStack() as stack:
            crowd(stack, server, LOCAL, 20)
            await until(lambda: server._accepted == 20)
            await is_served(plain(stack, server, OTHER))
            crowd(stack, server, OTHER, 20)
            await until(lambda: server._accepted == 41)
            await is_served(plain(stack, server, THIRD))


async def test_those_of_the_same_host_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its turn when one before it is through."""
    async with serving(monkeypatch) as server:
        with ExitStack() as stack:
            stalled = crowd(stack, server, LOCAL, 10)
            last = plain(stack, server, LOCAL)
            await until(lambda: server._accepted == 11)
            for client in stalled[:7]:
                client.close()
            await is_served(last)
            await is_served(plain(stack, server, LOCAL))


@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
async def test_those_that_wait_end_with_the_server(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as server:
        with ExitStack() as stack:
            clients = crowd(stack, server, LOCAL, 10)
            await until(lambda: server._accepted == 10)
            server.close()
            getattr(server, how)()
            loop = asyncio.get_running_loop()
            for client in clients:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(loop.sock_recv(client, 100), FULL_PATIENCE) == b""


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one host that has four places, 32 wait. What it has beyond that is closed."""
    async with serving(monkeypatch) as server:
        with ExitStack() as stack:
            clients = crowd(stack, server, LOCAL, 4 + 32 + 5)
            await until(lambda: server._accepted == 41)
            for client in clients[36:]:
                with contextlib.suppress(ConnectionResetError):
                    received = asyncio.get_running_loop().sock_recv(client, 100)
                    assert await asyncio.wait_for(received, FULL_PATIENCE) == b""
            await is_served(plain(stack, server, OTHER))
