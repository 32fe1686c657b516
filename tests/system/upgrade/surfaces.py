"""Each surface as both of its ends use it, by public names only: they run on an older aiordma, too.

A surface is a function that serves and one that comes to it. The server says its port, and then serves until
the test says no more; the client does all that the surface has, checks every byte, and returns its path with
the reason for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import pytest

import aiordma
from aiordma import memory, rpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOCAL = "127.0.0.1"
#: More than the largest ring, and no multiple of anything.
DATA = hashlib.shake_128(b"aiordma").digest(9_000_001)
SIZES = (0, 1, 64, 4096, 65_536, 300_000)
ROUNDS = 6
#: The path, and the code and text of the reason for it.
Seen = tuple[str, int | None, str | None]


class Surface(NamedTuple):
    """Both ends; ``loops``: the event loops that it runs on."""

    serve: Callable[[dict[str, Any]], Any]
    use: Callable[[int, dict[str, Any]], Awaitable[Seen]]
    loops: tuple[str, ...] = ("asyncio", "asyncio+uvloop")


def seen(path: str, reason: aiordma.FallbackReason | None) -> Seen:
    return path, reason.code if reason else None, reason.text if reason else None


def of(connection: Any) -> Seen:
    return seen(connection.path, connection.fallback_reason)


# ---- streams


@asynccontextmanager
async def serve_streams(options: dict[str, Any]) -> AsyncIterator[int]:
    async def echo(stream: aiordma.RdmaStream) -> None:
        async for part in stream:
            await stream.send(part)

    async with aiordma.listen(LOCAL, 0, **options) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        yield listener.port
        tasks.cancel_scope.cancel()


async def _echoed(stream: aiordma.RdmaStream, data: bytes) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, data)
        assert await stream.receive_exactly(len(data)) == data


async def use_streams(port: int, options: dict[str, Any]) -> Seen:
    """The first, those behind it on its link, those on pre-granted rings, and several at a time."""
    async with aiordma.connect(LOCAL, port, **options) as first:
        await _echoed(first, DATA)
        for number in range(ROUNDS):
            async with aiordma.connect(LOCAL, port, **options) as stream:
                await _echoed(stream, DATA[number : 100_000 + number])
                await stream.send_eof()
                assert b"".join([part async for part in stream]) == b""
                assert stream.path == first.path
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            for number in range(ROUNDS):
                stream = await stack.enter_async_context(aiordma.connect(LOCAL, port, **options))
                tasks.start_soon(_echoed, stream, DATA[number : 700_000 + number])
        await _echoed(first, b"last")
        return of(first)


async def use_switched(port: int, options: dict[str, Any]) -> Seen:
    """To TCP and back, while bytes are on their way; and one that stays on TCP."""
    async with aiordma.connect(LOCAL, port, **options) as stream:
        for _ in range(2 if stream.path == "rdma" else 0):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, DATA)
                assert await stream.receive_exactly(1000) == DATA[:1000]
                assert await aiordma.switch_path(stream, "tcp", reason="a test") == 1
                assert await stream.receive_exactly(len(DATA) - 1000) == DATA[1000:]
            assert stream.path == "tcp"
            assert await aiordma.switch_path(stream, "rdma") == 1
        await _echoed(stream, DATA)
        return of(stream)


# ---- asyncio


@asynccontextmanager
async def serve_asyncio(options: dict[str, Any]) -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server: Any = await aiordma.start_server(echo, LOCAL, 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def _of_transport(transport: Any) -> Seen:
    return seen(transport.get_extra_info("aiordma.path"), transport.get_extra_info("aiordma.fallback_reason"))


async def use_writers(port: int, options: dict[str, Any]) -> Seen:
    reader, writer = await aiordma.open_connection(LOCAL, port, **options)

    async def send() -> None:
        for at in range(0, len(DATA), 333_333):
            writer.write(DATA[at : at + 333_333])
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    sending = asyncio.create_task(send())
    assert await reader.readexactly(len(DATA)) == DATA
    await sending
    found = _of_transport(writer)
    writer.close()
    await writer.wait_closed()
    return found


class Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.got = bytearray()
        loop = asyncio.get_running_loop()
        self.full: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[BaseException | None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        self.got += data
        if len(self.got) >= len(DATA) and not self.full.done():
            self.full.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.set_result(exc)


async def use_transports(port: int, options: dict[str, Any]) -> Seen:
    transport, protocol = await aiordma.create_connection(Collector, LOCAL, port, **options)
    assert isinstance(protocol, Collector)
    transport.write(DATA[:1])
    transport.writelines([DATA[1:70], DATA[70:]])
    found = _of_transport(transport)
    # asyncio's streams with a TLS context may close when their peer ends: what they were to send is lost.
    if transport.can_write_eof() and "ssl" not in options:
        transport.write_eof()
        assert await protocol.lost is None
    else:
        await protocol.full
        transport.close()
    assert bytes(protocol.got) == DATA
    return found


# ---- datagrams


@asynccontextmanager
async def serve_datagrams(options: dict[str, Any]) -> AsyncIterator[int]:
    async def echo(connection: aiordma.DatagramConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async with await aiordma.listen_datagram(LOCAL, 0, **options) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            yield listener.port
            tasks.cancel_scope.cancel()


async def use_datagrams(port: int, options: dict[str, Any]) -> Seen:
    async with await aiordma.connect_datagram(LOCAL, port, **options) as connection:
        for size in SIZES * ROUNDS:
            message = DATA[size : size + min(size, connection.max_message_bytes)]
            await connection.send(message)
            assert await connection.receive() == message
        return of(connection)


@asynccontextmanager
async def serve_endpoint(options: dict[str, Any]) -> AsyncIterator[int]:
    async def echo(endpoint: aiordma.DatagramEndpoint) -> None:
        while True:
            await endpoint.send(await endpoint.receive())

    async with aiordma.open_datagram_endpoint((LOCAL, 0)) as endpoint, anyio.create_task_group() as tasks:
        tasks.start_soon(echo, endpoint)
        address: Any = endpoint.local_address
        yield address[1]
        tasks.cancel_scope.cancel()


async def use_endpoint(port: int, options: dict[str, Any]) -> Seen:
    peer = (LOCAL, port)
    async with aiordma.open_datagram_endpoint((LOCAL, 0)) as endpoint:
        await endpoint.resolve(peer)
        for size in (0, 1, 64, 1000) * ROUNDS:
            await endpoint.send((DATA[:size], peer))
            data, sender = await endpoint.receive()
            assert (data, sender) == (DATA[:size], peer)
        return seen(endpoint.path_to(peer) or "unknown", endpoint.reason_for(peer))


# ---- calls


class Blobs:
    """What calls can carry: values, bytes as they are, streams either way, and errors."""

    @rpc.method
    def length(self, data: memoryview) -> int:
        return len(data)

    @rpc.method
    async def back(self, data: bytes) -> bytes:
        return data

    @rpc.method
    def sums(self, numbers: dict[str, list[int]]) -> dict[str, int]:
        return {name: sum(them) for name, them in numbers.items()}

    @rpc.method
    async def parts(self, size: int, count: int) -> AsyncIterator[bytes]:
        for number in range(count):
            yield DATA[number : number + size]

    @rpc.method
    def refuse(self) -> None:
        raise rpc.RpcError(rpc.Code.NOT_FOUND, "as asked")


@asynccontextmanager
async def serve_calls(options: dict[str, Any]) -> AsyncIterator[int]:
    async with rpc.serve(rpc.Service("blobs", Blobs()), LOCAL, 0, **options) as server:
        yield server.port


async def use_calls(port: int, options: dict[str, Any]) -> Seen:
    async with rpc.connect(LOCAL, port, **options) as client:
        assert await client.call("blobs.length", DATA, timeout=60) == len(DATA)
        for size in SIZES:
            assert await client.call("blobs.back", DATA[:size], returns=bytes) == DATA[:size]
        numbers = {"a": list(range(100)), "b": [1 << 40]}
        assert await client.call("blobs.sums", numbers) == {"a": 4950, "b": 1 << 40}
        async with client.stream("blobs.parts", 70_000, 20, returns=bytes) as items:
            assert [item async for item in items] == [DATA[n : n + 70_000] for n in range(20)]
        async with client.stream("blobs.parts", 10, 1000, returns=bytes) as items:
            async for item in items:  # ... and left early
                assert item == DATA[:10]
                break
        with pytest.raises(rpc.RpcError, match="as asked"):
            await client.call("blobs.refuse")
        async with anyio.create_task_group() as tasks:
            for size in range(50):
                tasks.start_soon(client.call, "blobs.length", DATA[:size])
        return of(client)


# ---- memory


@asynccontextmanager
async def serve_memory(options: dict[str, Any]) -> AsyncIterator[int]:
    """Each peer is told the region's descriptor, and gets its notes back."""

    async def answer(peer: memory.Peer) -> None:
        rights = memory.Rights.READ | memory.Rights.WRITE | memory.Rights.ATOMIC
        await peer.notify(region.descriptor(rights))
        async for note in peer.notifications():
            await peer.notify(note)

    async with await memory.alloc(1 << 20) as region:
        async with memory.serve(LOCAL, 0, on_peer=answer, **options) as server:
            yield server.port


async def use_memory(port: int, options: dict[str, Any]) -> Seen:
    async with await memory.connect(LOCAL, port, **options) as peer, await memory.alloc(1 << 20) as ours:
        notes = aiter(peer.notifications())
        remote = await peer.open(await anext(notes))
        await remote.write(DATA[: 1 << 20])
        await remote.read(ours)
        assert bytes(ours[:].view) == DATA[: 1 << 20]
        piece = bytearray(70_001)
        await remote[5:70_006].read(piece)
        assert piece == DATA[5:70_006]
        await remote[:8].write(bytes(8))
        assert await remote.fetch_and_add(41, 0) == 0
        assert await remote.compare_and_swap(41, 7, 0) == 41
        await remote[64:128].write(DATA[:64], notify=b"written")
        assert await anext(notes) == b"written"
        await remote.flush()
        return of(peer)


# ---- TLS


def tls(options: dict[str, Any]) -> dict[str, Any]:
    """``options`` with contexts in the place of the files' names that processes can tell each other."""
    options = dict(options)
    if chain := options.pop("chain", None):
        options["ssl"] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        options["ssl"].load_cert_chain(chain)
    elif authority := options.pop("authority", None):
        options["ssl"] = ssl.create_default_context(cafile=authority)
    return options


EVERY = ("asyncio", "asyncio+uvloop", "trio")
SURFACES = {
    "streams": Surface(serve_streams, use_streams, EVERY),
    "switched": Surface(serve_streams, use_switched, EVERY),
    "writers": Surface(serve_asyncio, use_writers),
    "transports": Surface(serve_asyncio, use_transports),
    "datagrams": Surface(serve_datagrams, use_datagrams, EVERY),
    "endpoint": Surface(serve_endpoint, use_endpoint, EVERY),
    "calls": Surface(serve_calls, use_calls, EVERY),
    "memory": Surface(serve_memory, use_memory, EVERY),
}
#: Those that take ``ssl=``.
WITH_TLS = ("streams", "writers", "transports", "datagrams", "calls", "memory")
