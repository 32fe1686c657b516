"""Streams whose bytes are checked in both directions, at both ends."""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import anyio

import aiordma
from aiordma.config import Mode
from tests.soak.ledger import Ledger
from tests.soak.pattern import PERIOD, WrongByte, check, part

LOCAL = "127.0.0.1"
LARGEST = 1 << 20
#: What a connection raises when its peer is gone.
GONE = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError)

#: The path that a new connection must have; any, where the server may be killed meanwhile.
Expected: TypeAlias = Literal["rdma", "tcp", "any"]

_ORDER = struct.Struct("!cIIQ?")


class Order(NamedTuple):
    """The first bytes of a stream: what the server shall do."""

    #: ``b"e"``: as many bytes back as have come; ``b"a"``: ``reply`` bytes after the client's last one
    what: bytes
    #: where in the pattern the client's bytes begin, and the server's
    forth: int
    back: int
    reply: int
    #: the client may be killed
    fragile: bool

    @classmethod
    def random(cls, random: Random, what: bytes, reply: int = 0, fragile: bool = False) -> Order:
        return cls(what, random.randrange(PERIOD), random.randrange(PERIOD), reply, fragile)


def opening(order: Order) -> bytes:
    """As the first bytes of a stream."""
    return _ORDER.pack(*order)


# ---- the server's end


async def _order(stream: aiordma.RdmaStream) -> Order:
    got = b""
    while len(got) < _ORDER.size:
        got += await stream.receive(_ORDER.size - len(got))
    return Order(*_ORDER.unpack(got))


async def answer(stream: aiordma.RdmaStream, ledger: Ledger) -> None:
    """Do what the client wants. Never raises."""
    async with ledger.open(), stream:
        try:
            order = await _order(stream)
        except GONE:
            return  # a client that is killed at once orders nothing
        try:
            await _obey(stream, order)
            ledger.done["streams answered"] += 1
        except Exception as error:
            if not ((order.fragile or ledger.ending) and isinstance(error, GONE)):
                ledger.fault("stream", error)


async def _obey(stream: aiordma.RdmaStream, order: Order) -> None:
    forth, back = order.forth, order.back
    async for data in stream:
        forth = check(forth, data)
        if order.what == b"e":
            await stream.send(part(back, len(data)))
            back += len(data)
    left = order.reply
    while left:
        size = min(left, LARGEST)
        await stream.send(part(back, size))
        back += size
        left -= size
    await stream.send_eof()


# ---- the client's end


class Connection(Protocol):
    """Of any kind."""

    @property
    def path(self) -> str: ...
    @property
    def fallback_reason(self) -> aiordma.FallbackReason | None: ...


def compare(ledger: Ledger, connection: Connection, expected: Expected) -> None:
    """A path that nobody asked for is a fault."""
    if expected not in ("any", connection.path):
        what = type(connection).__name__
        reason = connection.fallback_reason
        ledger.fault("connect", f"{what} on {connection.path} instead of {expected}: {reason}")


@asynccontextmanager
async def connected(
    ledger: Ledger, port: int, mode: Mode = "auto", expected: Expected = "rdma", **tls: Any
) -> AsyncIterator[aiordma.RdmaStream]:
    """A stream, opened and closed in time. Its path must be the expected one."""
    with ledger.piece("connect"):
        stream = await aiordma.connect(LOCAL, port, mode=mode, **tls)
    async with ledger.open():
        try:
            compare(ledger, stream, expected)
            yield stream
        finally:
            with ledger.piece("close"):
                await stream.aclose()


class Exchange:
    """Bytes to a server and back, checked."""

    def __init__(self, stream: aiordma.RdmaStream, order: Order, random: Random) -> None:
        self.stream = stream
        self._random = random
        self._order = order
        self._forth, self._back = order.forth, order.back

    async def begin(self) -> None:
        await self.stream.send(opening(self._order))

    async def send(self, size: int) -> None:
        await self.stream.send(part(self._forth, size))
        self._forth += size

    async def receive(self, size: int) -> None:
        while size:
            data = await take(self.stream, self._random, size)
            self._back = check(self._back, data)
            size -= len(data)

    async def both(self, size: int) -> None:
        """``size`` bytes there and as many back, at the same time."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.send, size)
            await self.receive(size)

    async def finish(self) -> None:
        """Half close; the server does the same, and sends nothing more."""
        await self.stream.send_eof()
        await self.ended()

    async def ended(self) -> None:
        try:
            data = await self.stream.receive()
        except anyio.EndOfStream:
            return
        raise WrongByte(f"{len(data)} bytes where the stream should have ended: {data[:32].hex()}")


async def take(stream: aiordma.RdmaStream, random: Random, most: int) -> bytes | bytearray:
    """Some bytes, at most ``most``, in one of the ways to receive; none if it was cancelled meanwhile."""
    most = min(most, random.choice((1 << 10, 1 << 16, 1 << 18)))
    way = random.random()
    if way < 0.1:
        got = b""
        with anyio.move_on_after(random.uniform(0, 0.002)):
            got = await stream.receive(most)
        return got
    if way < 0.2:
        buffer = bytearray(most)
        return buffer[: await stream.receive_into(buffer)]
    if way < 0.3:
        with await stream.borrow(most) as view:
            return bytes(view)
    if way < 0.4:
        try:
            return stream.receive_nowait(most)
        except anyio.WouldBlock:
            pass
    return await stream.receive(most)


def any_size(random: Random, most: int = LARGEST) -> int:
    """From 1 to ``most`` bytes, each order of magnitude as often as the others."""
    return round(math.exp(random.uniform(0, math.log(most))))
