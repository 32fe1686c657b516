"""Wrong hosts, ports and modes: the error names what was given and what is allowed, at every surface."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma import rpc

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

HOST = "no-such-host.invalid"
LOCAL = "127.0.0.1"

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


@pytest.mark.parametrize("way", [way for way in WAYS if "endpoint" not in way])
@pytest.mark.parametrize("port", [-1, 65536])
async def test_a_port_that_is_none(way: str, port: int) -> None:
    with pytest.raises(ValueError, match=rf"port={port!r}: must be from 0 to 65535"):
        async with WAYS[way](LOCAL, port):
            pytest.fail("opened")


async def test_a_port_in_words() -> None:
    async with aiordma.listen(LOCAL, mode="tcp") as listener:
        port: Any = str(listener.port)
        async with aiordma.connect(LOCAL, port, mode="tcp") as client:
            assert client.path == "tcp"
