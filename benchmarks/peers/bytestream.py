"""The anyio surface: `ByteStream.send` and `receive`.

One program serves anyio's TCP streams and `aiordma.connect`/`listen`.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute

from aiordma.measure.loops import round_trips

from ..conversation import (
    BULK_BYTES,
    ECHO,
    KEEP,
    MEMORY,
    REPLY,
    REQUEST,
    SINK,
    keep_freed_memory,
    resident_bytes,
)
from ..offered import offered
from .base import HOST


async def _receive_exactly(stream: ByteStream, size: int) -> bytes:
    data = await stream.receive(size)
    if len(data) == size:
        return data
    buffer = bytearray(data)
    while len(buffer) < size:
        buffer += await stream.receive(size - len(buffer))
    return bytes(buffer)


async def _serve_one(stream: ByteStream) -> None:
    async with stream:
        try:
            while True:
                kind, value = REQUEST.unpack(await _receive_exactly(stream, REQUEST.size))
                if kind == ECHO:
                    while True:
                        data = await stream.receive(value)
                        if len(data) < value:
                            data += await _receive_exactly(stream, value - len(data))
                        await stream.send(data)
                elif kind == SINK:
                    cpu = time.process_time_ns()
                    while value > 0:
                        value -= len(await stream.receive(BULK_BYTES))
                    await stream.send(REPLY.pack(time.process_time_ns() - cpu, 0))
                elif kind == MEMORY:
                    await stream.send(REPLY.pack(*resident_bytes()))
                elif kind == KEEP:
                    keep_freed_memory()
                    await stream.send(REPLY.pack(0, 0))
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return


class ByteStreamConnection:
    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream

    @property
    def path(self) -> str | None:
        return getattr(self.stream, "path", None)

    @property
    def fallback_reason(self) -> object:
        return getattr(self.stream, "fallback_reason", None)

    async def start_echo(self, size: int) -> None:
        await self.stream.send(REQUEST.pack(ECHO, size))

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        await round_trips(self.stream, b"x" * size, seconds, until)

    async def at_rate(self, size: int, per_second: float, seconds: float) -> array[float]:
        async def receive(count: int) -> bytes:
            return await _receive_exactly(self.stream, count)

        return await offered(self.stream.send, receive, size, per_second, seconds)

    async def flood(self, size: int, count: int) -> int:
        send, message = self.stream.send, b"x" * size
        await send(REQUEST.pack(SINK, size * count))
        for _ in range(count):
            await send(message)
        cpu_ns: int = REPLY.unpack(await _receive_exactly(self.stream, REPLY.size))[0]
        return cpu_ns

    async def memory(self) -> tuple[int, int]:
        await self.stream.send(REQUEST.pack(MEMORY, 0))
        anonymous, shared = REPLY.unpack(await _receive_exactly(self.stream, REPLY.size))
        return anonymous, shared

    async def keep_freed_memory(self) -> None:
        await self.stream.send(REQUEST.pack(KEEP, 0))
        await _receive_exactly(self.stream, REPLY.size)

    async def close(self) -> None:
        await self.stream.aclose()


class ByteStreams:
    def __init__(
        self, connect: Callable[..., Awaitable[ByteStream]], listen: Callable[..., Awaitable[Any]]
    ) -> None:
        self._connect = connect
        self._listen = listen

    async def serve(self, ready: Callable[[str], None]) -> None:
        listener = await self._listen(HOST, 0)
        ready(str(listener.extra(SocketAttribute.local_port)))
        await listener.serve(_serve_one)

    async def connect(self, address: str) -> ByteStreamConnection:
        return ByteStreamConnection(await self._connect(HOST, int(address)))


def anyio_tcp() -> ByteStreams:
    async def listen(host: str, port: int) -> Any:
        return await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=1024)

    return ByteStreams(anyio.connect_tcp, listen)


def aiordma_bytestream() -> ByteStreams:
    import aiordma

    return ByteStreams(aiordma.connect, aiordma.listen)
