"""Plain clients whose first bytes could be those of a Proposal: they wait no longer than silent ones."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.negotiation import first_bytes
from aiordma.negotiation.announcement import arriving
from aiordma.negotiation.clc_io import ClcIO
from aiordma.negotiation.options import PathOptions
from tests.loops import LOOPS
from tests.streams.pairs import tls_contexts
from tests.virtual import in_virtual_time

from .serving import LOCAL, serving, tcp_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .fake import Engine

pytestmark = pytest.mark.anyio

FOREVER = 600_000
"""Milliseconds that the test does not live to see."""
PREFIXES = [
    b"\xe2",
    b"\xe2\xd4",
    b"\xe2\xd4\xc3\xd9",
    b"\xe2\xd4\xc3\xd9\x01",
    b"\xe2\xd4\xc3\xd9\x01\x01\x00",
]


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def _accept(listening: socket.socket, config: Config) -> None:
    """Serve what the program has accepted by itself."""
    loop = asyncio.get_running_loop()
    while True:
        sock, _ = await loop.sock_accept(listening)
        await aiordma.connect_accepted_socket(Echo, sock, config=config)


@asynccontextmanager
async def accepting(config: Config) -> AsyncIterator[int]:
    with socket.create_server((LOCAL, 0)) as listening:
        listening.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_accept, listening, config)
            yield listening.getsockname()[1]
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def trios(config: Config) -> AsyncIterator[int]:
    """trio's own server in a program that knows nothing of aiordma."""
    import trio

    async def serve(stream: Any) -> None:
        async with stream:
            while data := await stream.receive_some():
                await stream.send_all(data)

    waits = {
        "AIORDMA_SERVER_FIRST_WAIT_MS": str(config.server_first_wait_ms),
        "AIORDMA_NEGOTIATE_TIMEOUT_MS": str(config.negotiate_timeout_ms),
    }
    with mock.patch.dict(os.environ, waits):
        aiordma.install(remember=False)
        try:
            async with trio.open_nursery() as nursery:
                listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host=LOCAL))
                yield listeners[0].socket.getsockname()[1]
                nursery.cancel_scope.cancel()
        finally:
            aiordma.uninstall()


@asynccontextmanager
async def echoing(surface: str, config: Config) -> AsyncIterator[int]:
    """The port of a server that echoes."""
    if surface == "native":
        async with serving(config=config) as listener:
            yield listener.port
        return
    if surface == "native TLS":
        async with serving(config=config, ssl=tls_contexts()[1], rdma_outside_tls=True) as listener:
            yield listener.port
        return
    if surface in ("accepted", "trio"):
        async with (accepting if surface == "accepted" else trios)(config) as port:
            yield port
        return
    tls: dict[str, Any] = {"ssl": tls_contexts()[1], "rdma_outside_tls": True} if "TLS" in surface else {}
    server: Any = await aiordma.create_server(Echo, LOCAL, 0, config=config, **tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


#: Each kind of server on the loops that have it.
ON_EACH_SERVER = pytest.mark.parametrize(
    ("surface", "anyio_backend"),
    [
        pytest.param(surface, LOOPS[loop], id=f"{surface}-{loop}")
        for surface in ("native", "native TLS", "asyncio", "asyncio TLS", "accepted", "trio")
        for loop in LOOPS
        if "native" in surface or (surface == "trio") == (loop == "trio")
    ],
)


async def check_served(surface: str, port: int, *parts: bytes) -> None:
    tls: dict[str, Any] = {}
    if "TLS" in surface:
        tls = {"tls": True, "ssl_context": tls_contexts()[0], "tls_hostname": LOCAL}
    async with await anyio.connect_tcp(LOCAL, port, **tls) as client:
        for part in parts:
            await client.send(part)
            await anyio.sleep(0.02)  # it is looked at by itself
        data, got = b"".join(parts), b""
        with anyio.fail_after(20):
            while len(got) < len(data):
                got += await client.receive()
        assert got == data


@ON_EACH_SERVER
@pytest.mark.parametrize("prefix", PREFIXES, ids=bytes.hex)
async def test_what_is_disproved_is_served_at_once(engine: Engine, surface: str, prefix: bytes) -> None:
    config = Config(server_first_wait_ms=FOREVER, negotiate_timeout_ms=FOREVER)
    async with echoing(surface, config) as port:
        wrong = b"\x00" if len(prefix) == 7 else b"\xff"
        with arriving([(socket.AF_INET, (LOCAL, port))]):  # else one of this host soon counts as a plain one
            await check_served(surface, port, prefix + wrong)
            await check_served(surface, port, prefix, wrong)


@ON_EACH_SERVER
@pytest.mark.parametrize("prefix", PREFIXES, ids=bytes.hex)
@pytest.mark.parametrize("wait_ms", [0, 30])
async def test_a_lone_prefix_waits_no_longer_than_a_silent_client(
    engine: Engine, surface: str, prefix: bytes, wait_ms: int
) -> None:
    """Neither if it comes in time, nor if the client was taken for a silent one before."""
    config = Config(server_first_wait_ms=wait_ms, negotiate_timeout_ms=FOREVER)
    async with echoing(surface, config) as port:
        await check_served(surface, port, prefix)


@pytest.mark.parametrize("clients", [1, 500])
@in_virtual_time
async def test_many_silent_clients_are_looked_out_for_less_often(
    clients: int, anyio_backend: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one of this host is on its way, any of them may be that one."""
    looks = 0

    def is_expected(port: int) -> bool:
        nonlocal looks
        looks += 1
        return True

    monkeypatch.setattr(first_bytes, "is_expected", is_expected)
    options = PathOptions(Config(server_first_wait_ms=2_000), "auto")

    async def wait(server: socket.socket) -> None:
        with ClcIO(server) as io:
            assert await first_bytes.FirstBytes(io, options).are_clc() is None

    with ExitStack() as stack:
        servers = [stack.enter_context(tcp_pair())[1] for _ in range(clients)]
        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(wait, server)
    assert 2 * 40 <= looks <= 2 * 2000
