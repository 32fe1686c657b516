"""Plain clients whose first bytes could be those of a Proposal: they wait no longer than silent ones."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.negotiation import first_bytes
from aiordma.negotiation.clc_io import ClcIO
from aiordma.negotiation.options import PathOptions
from tests.virtual import in_virtual_time

from .serving import LOCAL, serving, tcp_pair

if TYPE_CHECKING:
    import socket
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


@asynccontextmanager
async def echoing(surface: str, config: Config) -> AsyncIterator[int]:
    """The port of a server that echoes."""
    if surface == "native":
        async with serving(config=config) as listener:
            yield listener.port
        return
    server: Any = await aiordma.create_server(Echo, LOCAL, 0, config=config)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture(params=["native", "asyncio"])
def surface(request: pytest.FixtureRequest, anyio_backend_name: str) -> str:
    if request.param == "asyncio" and anyio_backend_name == "trio":
        pytest.skip("asyncio's servers do not run on trio")
    name: str = request.param
    return name


async def check_served(port: int, *parts: bytes) -> None:
    async with await anyio.connect_tcp(LOCAL, port) as client:
        for part in parts:
            await client.send(part)
            await anyio.sleep(0.02)  # it is looked at by itself
        data, got = b"".join(parts), b""
        with anyio.fail_after(20):
            while len(got) < len(data):
                got += await client.receive()
        assert got == data


@pytest.mark.parametrize("prefix", PREFIXES, ids=bytes.hex)
async def test_what_is_disproved_is_served_at_once(engine: Engine, surface: str, prefix: bytes) -> None:
    config = Config(server_first_wait_ms=FOREVER, negotiate_timeout_ms=FOREVER)
    async with echoing(surface, config) as port:
        wrong = b"\x00" if len(prefix) == 7 else b"\xff"
        await check_served(port, prefix + wrong)
        await check_served(port, prefix, wrong)


@pytest.mark.parametrize("prefix", PREFIXES, ids=bytes.hex)
@pytest.mark.parametrize("wait_ms", [0, 30])
async def test_a_lone_prefix_waits_no_longer_than_a_silent_client(
    engine: Engine, surface: str, prefix: bytes, wait_ms: int
) -> None:
    """Neither if it comes in time, nor if the client was taken for a silent one before."""
    config = Config(server_first_wait_ms=wait_ms, negotiate_timeout_ms=FOREVER)
    async with echoing(surface, config) as port:
        await check_served(port, prefix)


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
