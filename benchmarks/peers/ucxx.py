"""ucxx: UCX for asyncio. Its messages have boundaries, so no reassembly is needed."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Any

import ucxx

from ..conversation import ECHO, KEEP, MEMORY, REPLY, REQUEST, SINK, keep_freed_memory, resident_bytes
from ..offered import offered


async def _receive(endpoint: Any, size: int) -> bytearray:
    buffer = bytearray(size)
    await endpoint.recv(buffer)
    return buffer


async def _serve_one(endpoint: Any) -> None:
    try:
        while True:
            kind, value = REQUEST.unpack(await _receive(endpoint, REQUEST.size))
            if kind == ECHO:
                buffer = bytearray(value)
                while True:
                    await endpoint.recv(buffer)
                    await endpoint.send(buffer)
            elif kind == SINK:
                size = int(REQUEST.unpack(await _receive(endpoint, REQUEST.size))[0])
                buffer = bytearray(size)
                cpu = time.process_time_ns()
                for _ in range(value // size):
                    await endpoint.recv(buffer)
                await endpoint.send(bytearray(REPLY.pack(time.process_time_ns() - cpu, 0)))
            elif kind == MEMORY:
                await endpoint.send(bytearray(REPLY.pack(*resident_bytes())))
            elif kind == KEEP:
                keep_freed_memory()
                await endpoint.send(bytearray(REPLY.pack(0, 0)))
    except (ucxx.exceptions.UCXError, asyncio.CancelledError):
        await endpoint.close()


class UcxxConnection:
    path = None
    fallback_reason = None

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint

    async def start_echo(self, size: int) -> None:
        await self.endpoint.send(bytearray(REQUEST.pack(ECHO, size)))

    async def ping(self, size: int, until: float, seconds: array[float]) -> None:
        endpoint, clock = self.endpoint, time.perf_counter
        message, buffer = bytearray(b"x" * size), bytearray(size)
        before = clock()
        while True:
            await endpoint.send(message)
            await endpoint.recv(buffer)
            now = clock()
            seconds.append(now - before)
            if now >= until:
                return
            before = now

    async def at_rate(self, size: int, per_second: float, seconds: float) -> array[float]:
        async def receive(count: int) -> None:
            await self.endpoint.recv(bytearray(count))

        async def send(message: bytes) -> None:
            await self.endpoint.send(bytearray(message))

        return await offered(send, receive, size, per_second, seconds)

    async def flood(self, size: int, count: int) -> int:
        endpoint, message = self.endpoint, bytearray(b"x" * size)
        await endpoint.send(bytearray(REQUEST.pack(SINK, size * count)))
        await endpoint.send(bytearray(REQUEST.pack(size, 0)))
        for _ in range(count):
            await endpoint.send(message)
        cpu_ns: int = REPLY.unpack(await _receive(endpoint, REPLY.size))[0]
        return cpu_ns

    async def memory(self) -> tuple[int, int]:
        await self.endpoint.send(bytearray(REQUEST.pack(MEMORY, 0)))
        anonymous, shared = REPLY.unpack(await _receive(self.endpoint, REPLY.size))
        return anonymous, shared

    async def keep_freed_memory(self) -> None:
        await self.endpoint.send(bytearray(REQUEST.pack(KEEP, 0)))
        await _receive(self.endpoint, REPLY.size)

    async def close(self) -> None:
        await self.endpoint.close()


class Ucxx:
    async def serve(self, ready: Callable[[str], None]) -> None:
        listener = ucxx.create_listener(_serve_one)
        ready(str(listener.port))
        await asyncio.get_running_loop().create_future()

    async def connect(self, address: str) -> UcxxConnection:
        return UcxxConnection(await ucxx.create_endpoint("127.0.0.1", int(address)))


def ucxx_endpoints() -> Ucxx:
    return Ucxx()
