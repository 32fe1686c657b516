"""The asyncio surface: StreamReader and StreamWriter.

One program serves asyncio's TCP and Unix streams and `aiordma.open_connection`/`start_server`: only the
functions that open connections differ.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

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

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            kind, value = REQUEST.unpack(await reader.readexactly(REQUEST.size))
            if kind == ECHO:
                while True:
                    writer.write(await reader.readexactly(value))
                    await writer.drain()
            elif kind == SINK:
                cpu = time.process_time_ns()
                while value > 0:
                    data = await reader.read(BULK_BYTES)
                    if not data:
                        return
                    value -= len(data)
                writer.write(REPLY.pack(time.process_time_ns() - cpu, 0))
            elif kind == MEMORY:
                writer.write(REPLY.pack(*resident_bytes()))
            elif kind == KEEP:
                keep_freed_memory()
                writer.write(REPLY.pack(0, 0))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


class StreamsConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def path(self) -> str | None:
        path: str | None = self.writer.get_extra_info("aiordma.path")
        return path

    @property
    def fallback_reason(self) -> object:
        return self.writer.get_extra_info("aiordma.fallback_reason")

    async def start_echo(self, size: int) -> None:
        self.writer.write(REQUEST.pack(ECHO, size))

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        reader, writer, clock, message = self.reader, self.writer, time.perf_counter, b"x" * size
        before = clock()
        while True:
            writer.write(message)
            await writer.drain()
            await reader.readexactly(size)
            now = clock()
            seconds.append(now - before)
            if now >= until:
                return
            before = now

    async def at_rate(self, size: int, per_second: float, seconds: float) -> array[float]:
        async def send(message: bytes) -> None:
            self.writer.write(message)
            await self.writer.drain()

        return await offered(send, self.reader.readexactly, size, per_second, seconds)

    async def flood(self, size: int, count: int) -> int:
        writer, message = self.writer, b"x" * size
        writer.write(REQUEST.pack(SINK, size * count))
        for _ in range(count):
            writer.write(message)
            await writer.drain()
        cpu_ns: int = REPLY.unpack(await self.reader.readexactly(REPLY.size))[0]
        return cpu_ns

    async def memory(self) -> tuple[int, int]:
        self.writer.write(REQUEST.pack(MEMORY, 0))
        anonymous, shared = REPLY.unpack(await self.reader.readexactly(REPLY.size))
        return anonymous, shared

    async def keep_freed_memory(self) -> None:
        self.writer.write(REQUEST.pack(KEEP, 0))
        await self.reader.readexactly(REPLY.size)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class TcpStreams:
    """asyncio's `open_connection` and `start_server`, or functions with the same signature."""

    def __init__(
        self, open_connection: Callable[..., Awaitable[Opened]], start_server: Callable[..., Awaitable[Any]]
    ) -> None:
        self._open = open_connection
        self._start = start_server

    async def serve(self, ready: Callable[[str], None]) -> None:
        server = await self._start(_serve_one, HOST, 0, backlog=1024)
        ready(str(server.sockets[0].getsockname()[1]))
        await server.serve_forever()

    async def connect(self, address: str) -> StreamsConnection:
        return StreamsConnection(*await self._open(HOST, int(address)))


class UnixStreams:
    async def serve(self, ready: Callable[[str], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="aiordma-bench-") as folder:
            path = str(Path(folder) / "socket")
            server = await asyncio.start_unix_server(_serve_one, path, backlog=1024)
            ready(path)
            await server.serve_forever()

    async def connect(self, address: str) -> StreamsConnection:
        return StreamsConnection(*await asyncio.open_unix_connection(address))


def asyncio_tcp() -> TcpStreams:
    return TcpStreams(asyncio.open_connection, asyncio.start_server)


def asyncio_unix() -> UnixStreams:
    return UnixStreams()


def aiordma_streams() -> TcpStreams:
    import aiordma

    return TcpStreams(aiordma.open_connection, aiordma.start_server)
