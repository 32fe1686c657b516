"""Protocols that record their callbacks, and helpers that build connections over memory pipes."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio

from aiordma.compat.transport import RingTransport
from aiordma.testing.memory import MemoryPipe, memory_pipe_pair
from tests.health import settle


class Recorder(asyncio.Protocol):
    """Every callback in order; consecutive data is joined."""

    def __init__(self, keep_open: bool = False) -> None:
        self.keep_open = keep_open
        self.events: list[Any] = []
        self.data = bytearray()
        self.transport: Any = None
        self.paused = False
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.events.append("made")

    def _record_data(self, data: bytes) -> None:
        self.data += data
        if not self.events or self.events[-1] != "data":
            self.events.append("data")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        assert data
        self._record_data(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        assert not self.paused
        self.paused = True
        self.events.append("pause")

    def resume_writing(self) -> None:
        assert self.paused
        self.paused = False
        self.events.append("resume")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)  # raises on a second call


class BufferedRecorder(Recorder, asyncio.BufferedProtocol):
    """The same through get_buffer() and buffer_updated()."""

    def __init__(self, keep_open: bool = False, size: int = 7) -> None:
        super().__init__(keep_open)
        self.buffer = bytearray(size)

    def get_buffer(self, sizehint: int) -> bytearray:
        assert sizehint == -1
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert nbytes > 0
        self._record_data(bytes(self.buffer[:nbytes]))


def connect_pipe(pipe: MemoryPipe, protocol: asyncio.BaseProtocol, **kwargs: Any) -> RingTransport:
    return RingTransport(asyncio.get_running_loop(), pipe, protocol, **kwargs)


async def one_transport(
    protocol: Recorder, ring_bytes: int = 64, **kwargs: Any
) -> tuple[RingTransport, MemoryPipe]:
    """A transport, connected, and the bare pipe at the other end."""
    near, far = memory_pipe_pair(ring_bytes, **kwargs)
    transport = connect_pipe(near, protocol)
    await settle(2)
    assert protocol.events == ["made"]
    return transport, far


def drain_far(far: MemoryPipe) -> bytes:
    data = bytearray()
    while chunk := far.try_receive(1 << 20):
        data += chunk
    return bytes(data)


async def collect(far: MemoryPipe, n: int) -> bytes:
    data = bytearray()
    with anyio.fail_after(20):
        while len(data) < n:
            data += far.try_receive(1 << 20) or b""
            await asyncio.sleep(0)
    return bytes(data)
