"""Buffers that hold Python objects: no surface sends their addresses or lets a peer write into them.

(CPython's own sockets accept such arrays. aiordma is stricter on purpose: a peer's bytes would be taken for
objects.)
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from typing import Any

import pytest

import aiordma
from aiordma import memory, rpc
from aiordma.channels import channel as channels
from aiordma.plain import check_plain
from aiordma.rpc.into import Room
from aiordma.testing.rpc import rpc_pair
from tests.arrays import numpy
from tests.datagrams.pairs import MAKERS as DATAGRAMS
from tests.memory.pairs import PATHS, config_of
from tests.memory.pairs import pair as memory_pair
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL
from tests.streams.pairs import MAKERS as STREAMS

pytestmark = pytest.mark.anyio

REFUSED = pytest.raises(TypeError, match="holds Python objects")


def buffers() -> dict[str, Any]:
    """64 bytes each."""
    mixed = numpy.dtype([("first", "O"), ("when", "M8[s]"), ("Other", "i8", (6,))])
    array: Any = numpy.array([None] * 8, object)
    return {
        "numpy": numpy.array([None] * 8, object),
        "memoryview": memoryview(array),
        "structured": numpy.zeros(4, [("a", "i8"), ("b", "O")]),
        "without a format": numpy.zeros(1, mixed),
        "ctypes": (ctypes.py_object * 8)(),
        "matrix": numpy.full((2, 4), None, object),
        "strided": numpy.full(16, None, object)[::2],
    }


KINDS = list(buffers())


def test_what_is_plain() -> None:
    for data in (
        b"x",
        bytearray(8),
        memoryview(b"x"),
        numpy.zeros(3),
        numpy.zeros(3, "c16"),
        numpy.zeros(3, "M8[s]"),
    ):
        check_plain(data)
    check_plain(numpy.zeros(2, [("Only", "i8"), ("O", "f4"), ("to", [("O2", "u1")])]))
    check_plain("no buffer")
    check_plain((ctypes.c_uint64 * 3)())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maker", STREAMS)
async def test_streams(maker: str, kind: str) -> None:
    one, other = await STREAMS[maker]()
    async with one, other:
        data = buffers()[kind]
        await other.send(b"w" * 64)
        for use in (
            lambda: one.send(data),
            lambda: one.receive_into(data),
            lambda: one.receive_exactly_into(data),
        ):
            with pytest.raises((TypeError, BufferError, ValueError)) as failed:
                await use()
            assert failed.type is TypeError or kind in ("strided", "without a format")
        if maker != "leaving":  # it has no room yet
            with pytest.raises((TypeError, BufferError, ValueError)):
                one.send_nowait(data)
        with pytest.raises((TypeError, BufferError, ValueError)):
            one.send_soon(data)
        with pytest.raises((TypeError, BufferError, ValueError)):
            one.send_soon([b"x", data])
        assert await one.receive_exactly(64) == b"w" * 64
        await one.send(b"end")
        assert await other.receive_exactly(3) == b"end"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maker", DATAGRAMS)
async def test_datagram_connections(maker: str, kind: str) -> None:
    one, other = await DATAGRAMS[maker]()
    data = buffers()[kind]
    with pytest.raises((TypeError, BufferError, ValueError)):
        await one.send(data)
    for now in (one.send_nowait, one.send_soon):
        with pytest.raises((TypeError, BufferError, ValueError)):
            now(data)
    await one.send(b"end")
    assert await other.receive() == b"end"
    await one.aclose()
    await other.aclose()


@pytest.mark.parametrize("kind", ["numpy", "memoryview", "ctypes"])
@pytest.mark.parametrize("mode", ["auto", "tcp"])
async def test_datagram_endpoints(mode: Any, kind: str) -> None:
    one = await aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode)
    other = await aiordma.open_datagram_endpoint((LOCAL, 0), mode=mode)
    async with one, other:
        await one.resolve(other.local_address)
        with REFUSED:
            await one.send((buffers()[kind], other.local_address))
        with REFUSED:
            one.send_nowait((buffers()[kind], other.local_address))


@pytest.mark.parametrize("kind", ["numpy", "memoryview", "structured", "ctypes", "matrix"])
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_channels(mode: Any, kind: str) -> None:
    async with await channels.listen(LOCAL) as listener:
        async with await channels.connect(LOCAL, listener.port, mode=mode) as one, await listener.accept():
            with REFUSED:
                one.channel.try_send(b"head", buffers()[kind])
            with REFUSED:
                one.send_soon(buffers()[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", PATHS)
async def test_memory(path: str, kind: str) -> None:
    data = buffers()[kind]
    async with memory_pair(path) as (client, _), await memory.alloc(64, config=config_of(path)) as region:
        remote = await client.open(region.descriptor())
        await remote.write(b"w" * 64)
        await remote.read(bytearray(64))  # the block for short READs is there now
        for into in (data, [data], [bytearray(0), data]):
            with pytest.raises((TypeError, ValueError)):
                await remote.read(into)
            with pytest.raises((TypeError, ValueError)):
                await remote.write(into)
            with pytest.raises((TypeError, ValueError)):
                await remote.blocks(32, [1, 0]).write(into)
        with pytest.raises((TypeError, ValueError, BufferError)):
            memory.register(data)
        with pytest.raises((TypeError, ValueError)):
            await remote.write(b"w" * 64, notify=data)
        assert region[:].view == b"w" * 64


@pytest.mark.parametrize("kind", KINDS)
def test_memory_for_results(kind: str) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        Room(buffers()[kind])


@pytest.mark.parametrize("kind", KINDS)
async def test_arguments_and_results(kind: str) -> None:
    data = buffers()[kind]
    service = rpc.Service("t")

    @service.method
    def both(one: Any, other: Any = None) -> Any:
        return one if other is not None else data

    async with rpc_pair(service) as pair:
        for arguments in ((data,), (data, 1), (1, data), (bytes(1 << 20), data)):
            with pytest.raises((TypeError, ValueError)):
                await pair.client.call("t.both", *arguments)
        with pytest.raises((TypeError, ValueError)):
            await pair.client.call("t.both", 1, other=data)
        with pytest.raises(rpc.RpcError):
            await pair.client.call("t.both", 1)
        assert await pair.client.call("t.both", 1, 2) == 1


class _Buffered(asyncio.BufferedProtocol):
    def __init__(self, data: Any) -> None:
        self.data, self.lost = data, asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> Any:
        return self.data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_transports(anyio_backend: str) -> None:
    """(On TCP, it is asyncio's own transport that reads into a protocol's buffer.)"""

    async def greet(reader: Any, writer: Any) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            writer.write(b"w" * 64)
            await reader.read()

    serving: Any = await aiordma.start_server(greet, LOCAL, 0)
    async with serving as server:
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        array: Any = numpy.array([None] * 8, object)
        data = memoryview(array)
        made: Any = await aiordma.create_connection(lambda: _Buffered(data), LOCAL, port, mode="rdma")
        protocol: _Buffered = made[1]
        error = await asyncio.wait_for(protocol.lost, FULL_PATIENCE)
        assert isinstance(error, TypeError)
        assert list(array) == [None] * 8
        _, writer = await aiordma.open_connection(LOCAL, port, mode="rdma")
        with pytest.raises((TypeError, ValueError)):
            writer.write(data)
        with pytest.raises((TypeError, ValueError)):
            writer.writelines([b"x", data])
        writer.close()
        await writer.wait_closed()
