"""The service that ``aiordma ping`` and ``aiordma perf`` measure against: it sends back what it gets, or
counts it.

A client begins with 16 bytes, :data:`GREETING` and the size of its messages (4 bytes, big-endian, then 4 of
zeros). The server answers with the same 16 bytes, and from then on sends back each message when it has all of
it. If it began with :data:`SINK_GREETING`, the server only counts, and tells the number of bytes at the end.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

import anyio

from ..streams.listener import listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config import Config
    from ..streams.stream import RdmaStream

__all__ = [
    "COUNT",
    "GREETING",
    "MAX_MESSAGE_BYTES",
    "SINK_GREETING",
    "Server",
    "greeting",
    "receive_exactly",
    "serve_diagnostics",
    "sink_greeting",
]

GREETING = b"aioecho1"
SINK_GREETING = b"aiosink1"
#: What the server answers when a client of the second kind has finished sending: bytes that came.
COUNT = struct.Struct(">Q")
MAX_MESSAGE_BYTES = 16 << 20
_HEAD = struct.Struct(">8sI4x")
#: Clients at the same time, and seconds that one may be silent.
_CLIENTS = 64
_IDLE_S = 60.0
_PIECE_BYTES = 1 << 20


def greeting(size: int) -> bytes:
    """What a client begins with."""
    return _HEAD.pack(GREETING, size)


async def receive_exactly(stream: RdmaStream, size: int) -> bytes:
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


def sink_greeting(size: int) -> bytes:
    """The same for a client that only sends, messages of this size."""
    return _HEAD.pack(SINK_GREETING, size)


class _Client:
    """One that is served."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.messages = 0
        #: what that was when the server looked last
        self.seen = -1


class Server:
    """Answers clients."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(_CLIENTS)
        self._clients: set[_Client] = set()

    async def answer(self, stream: RdmaStream) -> None:
        """One client, until it ends, breaks the rules, or is silent for too long."""
        async with stream, self._limiter:
            client = _Client()
            self._clients.add(client)
            try:
                with client.scope, contextlib.suppress(anyio.EndOfStream):
                    await _echo(stream, client)
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


async def _echo(stream: RdmaStream, client: _Client) -> None:
    """:raises anyio.EndOfStream: the client has ended."""
    head = await receive_exactly(stream, _HEAD.size)
    magic, size = _HEAD.unpack(head)
    if magic not in (GREETING, SINK_GREETING) or not 0 < size <= MAX_MESSAGE_BYTES:
        return
    await stream.send(head)
    if magic == SINK_GREETING:
        await _count(stream, client)
        return
    while True:
        await stream.send(await receive_exactly(stream, size))
        client.messages += 1


async def _count(stream: RdmaStream, client: _Client) -> None:
    received = 0
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            received += len(await stream.receive(_PIECE_BYTES))
            client.messages += 1
    await stream.send(COUNT.pack(received))


def _ignore(port: int) -> None:
    """Nobody wants to know."""


async def serve_diagnostics(
    host: str, port: int, config: Config, ready: Callable[[int], None] = _ignore
) -> None:
    """Serve until cancelled.

    :param ready: called with the port when it listens.
    :raises OSError: the address cannot be listened on.
    """
    server = Server()
    async with await listen(host, port, config=config) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(server.watch)
        ready(listener.port)
        await listener.serve(server.answer)
