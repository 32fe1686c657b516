"""The service that ``aiordma ping`` and ``aiordma perf`` measure against: it sends back what it gets, or
counts it.

A client begins with 16 bytes: what it wants, and the size of its messages (4 bytes, big-endian, then 4 of
zeros). The server answers with the same 16 bytes, and goes on as it was asked to:

* :data:`GREETING`: it sends back each message when it has all of it.
* :data:`SINK_GREETING`: it only counts, and tells the number of bytes at the end.
* :data:`SERVICES_GREETING`: it tells where everything else is, as JSON (:class:`Services`) after its length.
* :data:`MEMORY_GREETING`: it allocates memory of that size, and gives its descriptor for as long as the
  stream lasts.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .. import memory
from .limits import busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..datagrams.connection import DatagramConnection

#: Methods of the calls.
ECHO, PING = "diagnostics.echo", "diagnostics.ping"

GREETING = b"aioecho1"
SINK_GREETING = b"aiosink1"
SERVICES_GREETING = b"aiolist1"
MEMORY_GREETING = b"aiomemo1"
#: What the server answers when a client of the second kind has finished sending: bytes that came.
COUNT = struct.Struct(">Q")
MAX_MESSAGE_BYTES = 16 << 20
_HEAD = struct.Struct(">8sI4x")
_LENGTH = struct.Struct(">I")
_MAX_SERVICES_BYTES = 65536
#: Clients at the same time, those of them with memory, and seconds that one may be silent.
_CLIENTS = 64
_REGIONS = 8
_IDLE_S = 60.0
_PIECE_BYTES = 1 << 20
_ANOTHER = "this is not aiordma serve-diagnostics of this version"


class ByteStream(Protocol):
    """A stream of aiordma, or one in its shape (:class:`.plain_streams.PlainStream`)."""

    async def send(self, item: bytes, /) -> None: ...
    async def receive(self, max_bytes: int = ..., /) -> bytes: ...
    async def send_eof(self) -> None: ...
    async def aclose(self) -> None: ...


class Services(Struct):
    """Where a server has what. Ports are 0 for what it does not have."""

    #: of aiordma there
    version: str
    host: str
    #: event loop: asyncio or uvloop
    loop: str
    #: calls (``aiordma.rpc``), ports
    calls: int = 0
    #: one-sided memory (``aiordma.memory``)
    memory: int = 0
    #: connected datagrams
    datagrams: int = 0
    #: streams of asyncio, and of asyncio on uvloop
    tcp: int = 0
    uvloop: int = 0
    #: path of a Unix socket on that host
    unix: str = ""
    #: that its host was busy when it was asked; empty if it was not, or if it is an older one
    busy: str = ""


def greeting(size: int, what: bytes = GREETING) -> bytes:
    """What a client begins with."""
    return _HEAD.pack(what, size)


async def receive_exactly(stream: ByteStream, size: int) -> bytes:
    """:raises anyio.EndOfStream: the peer has ended before, or in the middle."""
    data = await stream.receive(size)
    if len(data) == size:
        return data
    parts, missing = [data], size - len(data)
    while missing:
        part = await stream.receive(missing)
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


# ---- the client's end


async def begin(stream: ByteStream, what: bytes, size: int) -> None:
    """:raises ConnectionError: it is another server."""
    head = greeting(size, what)
    answer = b""
    await stream.send(head)
    with contextlib.suppress(anyio.EndOfStream):
        answer = await receive_exactly(stream, len(head))
    if answer != head:
        raise ConnectionError(_ANOTHER)


async def _answer_of(stream: ByteStream) -> bytes:
    (length,) = _LENGTH.unpack(await receive_exactly(stream, _LENGTH.size))
    if length > _MAX_SERVICES_BYTES:
        raise ConnectionError(_ANOTHER)
    return await receive_exactly(stream, length)


async def services_of(stream: ByteStream) -> Services:
    """Ask for them. :raises ConnectionError: it is another server."""
    await begin(stream, SERVICES_GREETING, 1)
    try:
        return msgspec.json.decode(await _answer_of(stream), type=Services)
    except (msgspec.DecodeError, anyio.EndOfStream):
        raise ConnectionError(_ANOTHER) from None


async def borrow_memory(stream: ByteStream, size: int) -> bytes:
    """A descriptor of memory at the server, which lasts as long as the stream. A client that needs it for
    longer than a minute sends a byte now and then.

    :raises ConnectionError: it is another server, or has no memory for that.
    """
    await begin(stream, MEMORY_GREETING, size)
    try:
        return await _answer_of(stream)
    except anyio.EndOfStream:
        raise ConnectionError("the server has no memory left for one-sided operations") from None


# ---- the server's end


class _Client:
    """One that is served."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.messages = 0
        #: what that was when the server looked last
        self.seen = -1


class DiagnosticsServer:
    """Answers clients. Belongs to the event loop it was made in.

    :param services: what else there is.
    """

    def __init__(self, services: Services | None = None) -> None:
        self._services = services
        self._limiter = anyio.CapacityLimiter(_CLIENTS)
        self._regions = anyio.CapacityLimiter(_REGIONS)
        self._clients: set[_Client] = set()
        self._kinds: dict[bytes, Callable[[ByteStream, _Client, int], Awaitable[None]]] = {
            GREETING: _echo,
            SINK_GREETING: _count,
            SERVICES_GREETING: self._list,
            MEMORY_GREETING: self._lend,
        }

    async def answer(self, stream: ByteStream) -> None:
        """One client, until it ends, breaks the rules, or is silent for too long."""
        async with contextlib.aclosing(stream), self._limiter:
            client = _Client()
            self._clients.add(client)
            try:
                with client.scope, contextlib.suppress(anyio.EndOfStream):
                    head = await receive_exactly(stream, _HEAD.size)
                    what, size = _HEAD.unpack(head)
                    if what in self._kinds and 0 < size <= MAX_MESSAGE_BYTES:
                        await stream.send(head)
                        await self._kinds[what](stream, client, size)
            finally:
                self._clients.discard(client)

    async def answer_datagrams(self, connection: DatagramConnection) -> None:
        """One client that sends messages: the first is its head, and the rest are counted."""
        async with connection, self._limiter:
            client = _Client()
            self._clients.add(client)
            try:
                with client.scope, contextlib.suppress(anyio.EndOfStream):
                    head = await connection.receive()
                    if len(head) != _HEAD.size or _HEAD.unpack(head)[0] != SINK_GREETING:
                        return
                    await connection.send(head)
                    with contextlib.suppress(anyio.EndOfStream):
                        while True:
                            client.messages += len(await connection.receive_many())
                    await connection.send(COUNT.pack(client.messages))
            finally:
                self._clients.discard(client)

    async def watch(self) -> None:
        """End clients that are silent. A timer for each message would show in what they measure."""
        while True:
            await anyio.sleep(_IDLE_S)
            for client in list(self._clients):
                if client.messages == client.seen:
                    client.scope.cancel()
                client.seen = client.messages

    async def _list(self, stream: ByteStream, client: _Client, size: int) -> None:
        if self._services is not None:
            text = msgspec.json.encode(replace(self._services, busy=busy()))
            await stream.send(_LENGTH.pack(len(text)) + text)

    async def _lend(self, stream: ByteStream, client: _Client, size: int) -> None:
        try:
            self._regions.acquire_nowait()
        except anyio.WouldBlock:
            return
        try:
            async with await memory.alloc(size) as region:
                descriptor = region.descriptor()
                await stream.send(_LENGTH.pack(len(descriptor)) + descriptor)
                while True:
                    await stream.receive(64)
                    client.messages += 1
        except MemoryError:
            return
        finally:
            self._regions.release()


async def _echo(stream: ByteStream, client: _Client, size: int) -> None:
    """:raises anyio.EndOfStream: the client has ended."""
    while True:
        await stream.send(await receive_exactly(stream, size))
        client.messages += 1


async def _count(stream: ByteStream, client: _Client, size: int) -> None:
    received = 0
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            received += len(await stream.receive(_PIECE_BYTES))
            client.messages += 1
    await stream.send(COUNT.pack(received))
