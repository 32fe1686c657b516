"""Wrong hosts, ports and modes: the error names what was given and what is allowed, at every surface."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma import memory, rpc, valkey
from aiordma.channels import channel as channels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.anyio

HOST = "no-such-host.invalid"
LOCAL = "127.0.0.1"


@contextlib.asynccontextmanager
async def awaited(making: Awaitable[Any]) -> AsyncIterator[Any]:
    async with await making as made:
        yield made


#: Host, port and keywords -> something for ``async with``.
WAYS: dict[str, Callable[..., Any]] = {
    "connect": aiordma.connect,
    "listen": aiordma.listen,
    "connect_datagram": aiordma.connect_datagram,
    "listen_datagram": aiordma.listen_datagram,
    "endpoint": lambda host, port, **more: aiordma.open_datagram_endpoint((host, port), **more),
    "endpoint to": lambda host, port, **more: aiordma.open_datagram_endpoint(remote=(host, port), **more),
    "rpc.connect": rpc.connect,
    "rpc.serve": lambda host, port, **more: rpc.serve([], host, port, **more),
    "channels.connect": lambda host, port, **more: awaited(channels.connect(host, port, **more)),
    "channels.listen": lambda host, port, **more: awaited(channels.listen(host, port, **more)),
    "memory.connect": memory.connect,
    "memory.serve": memory.serve,
}
EVERYWHERE = pytest.mark.parametrize("way", WAYS)


@EVERYWHERE
async def test_a_name_that_is_not_known(way: str) -> None:
    with pytest.raises(OSError, match=rf"cannot look up '{HOST}' \(port 7000\): .*") as caught:
        async with WAYS[way](HOST, 7000, mode="tcp"):
            pytest.fail("opened")
    assert isinstance(caught.value, socket.gaierror) or isinstance(caught.value.__cause__, socket.gaierror)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("way", [aiordma.open_connection, aiordma.start_server], ids=["open", "start"])
async def test_a_name_that_is_not_known_on_the_asyncio_surface(way: Callable[..., Any]) -> None:
    arguments = () if way is aiordma.open_connection else (lambda reader, writer: None,)
    with pytest.raises(socket.gaierror, match=rf"cannot look up '{HOST}' \(port 7000\): "):
        await way(*arguments, HOST, 7000)


@EVERYWHERE
@pytest.mark.parametrize("mode", ["ib", "RDMA"])
async def test_a_mode_that_does_not_exist(way: str, mode: str) -> None:
    with pytest.raises(ValueError, match=f"mode='{mode}': must be one of 'auto', 'rdma', 'tcp'"):
        async with WAYS[way](LOCAL, 1, mode=mode):
            pytest.fail("opened")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("way", ["open_connection", "create_connection", "start_server", "create_server"])
async def test_a_mode_that_does_not_exist_where_tls_needs_none(way: str) -> None:
    """It is refused before it is decided that nothing is negotiated."""
    arguments: tuple[Any, ...] = () if way == "open_connection" else (lambda *_: None,)
    with pytest.raises(ValueError, match="mode='ib': must be one of"):
        await getattr(aiordma, way)(*arguments, LOCAL, 1, mode="ib", ssl=ssl.create_default_context())


async def test_a_mode_of_a_pool_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="mode='ib': must be one of"):
        rpc.connect_pool([(LOCAL, 1)], mode="ib")  # type: ignore[arg-type]


#: Ways that have ports, and no mode.
MORE_WAYS: dict[str, Callable[..., Any]] = {
    "rpc.connect_pool": lambda host, port: rpc.connect_pool([(LOCAL, 1), (host, port)]),
    "valkey.connect": valkey.connect,
}


@pytest.mark.parametrize("way", [*WAYS, *MORE_WAYS])
@pytest.mark.parametrize("port", [-1, 65536, 70000, 1 << 40])
@pytest.mark.parametrize("host", [LOCAL, "localhost"])
async def test_a_port_that_is_none(way: str, host: str, port: int) -> None:
    with pytest.raises(ValueError, match=rf"port={port!r}: must be from 0 to 65535"):
        async with (WAYS | MORE_WAYS)[way](host, port):
            pytest.fail("opened")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("port", [-1, 70000])
async def test_a_port_that_is_none_of_datagram_protocols(port: int) -> None:
    with pytest.raises(ValueError, match=rf"port={port!r}: must be from 0 to 65535"):
        await aiordma.create_datagram_connection(asyncio.DatagramProtocol, LOCAL, port)
    with pytest.raises(OverflowError, match="0-65535"):  # as of asyncio's create_server()
        await aiordma.create_datagram_server(asyncio.DatagramProtocol, LOCAL, port)


async def test_a_port_in_words() -> None:
    async with aiordma.listen(LOCAL, mode="tcp") as listener:
        port: Any = str(listener.port)
        async with aiordma.connect(LOCAL, port, mode="tcp") as client:
            assert client.path == "tcp"
