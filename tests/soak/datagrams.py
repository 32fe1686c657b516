"""Connected datagrams whose order, boundaries and bytes are checked at both ends."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio

import aiordma
from tests.soak.ledger import Ledger
from tests.soak.pattern import PERIOD, WrongByte, check, part
from tests.soak.streams import GONE, LOCAL, Expected, any_size, compare

#: In front of each message: its number, the place of its bytes in the pattern, how many they are, and
#: whether the client may be killed.
_HEAD = struct.Struct("!III?")
LARGEST = 60_000


def message(number: int, at: int, size: int, fragile: bool) -> bytes:
    return _HEAD.pack(number, at, size, fragile) + bytes(part(at, size))


def opened(data: bytes, number: int) -> bool:
    """Check message ``number``; return whether its client may be killed."""
    got, at, size, fragile = _HEAD.unpack_from(data)
    if (got, len(data)) != (number & 0xFFFFFFFF, size + _HEAD.size):
        raise WrongByte(f"message {got} of {len(data)} bytes where {number} was due, of {size + _HEAD.size}")
    check(at, memoryview(data)[_HEAD.size :])
    return bool(fragile)


async def answer(connection: aiordma.DatagramConnection, ledger: Ledger) -> None:
    """Send everything back. Never raises."""
    fragile = True  # until it is known
    number = 0
    async with ledger.open(), connection:
        try:
            async for data in connection:
                fragile = opened(data, number)
                await connection.send(data)
                number += 1
            ledger.done["datagrams answered"] += number
        except Exception as error:
            if not ((fragile or ledger.ending) and isinstance(error, GONE)):
                ledger.fault("datagrams", error)


@asynccontextmanager
async def connected(
    ledger: Ledger, port: int, expected: Expected = "rdma"
) -> AsyncIterator[aiordma.DatagramConnection]:
    with ledger.piece("connect"):
        connection = await aiordma.connect_datagram(LOCAL, port)
    async with ledger.open():
        try:
            compare(ledger, connection, expected)
            yield connection
        finally:
            with ledger.piece("close"):
                await connection.aclose()


class Datagrams:
    """Messages to a server and back."""

    def __init__(
        self, ledger: Ledger, connection: aiordma.DatagramConnection, random: Random, fragile: bool = False
    ) -> None:
        self._ledger = ledger
        self._connection = connection
        self._random = random
        self._fragile = fragile
        self._sent = self._got = 0

    async def some(self) -> None:
        """Messages there and back, one by one or in lists."""
        count = round(any_size(self._random, 60))
        with self._ledger.piece("datagrams") as piece:
            messages = [self._next() for _ in range(count)]
            piece.size = sum(map(len, messages))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, messages)
                while self._got < self._sent:
                    for data in await self._take():
                        opened(data, self._got)
                        self._got += 1

    def _next(self) -> bytes:
        size = any_size(self._random, LARGEST) - 1
        data = message(self._sent & 0xFFFFFFFF, self._random.randrange(PERIOD), size, self._fragile)
        self._sent += 1
        return data

    async def _send(self, messages: list[bytes]) -> None:
        if self._random.random() < 0.5:
            await self._connection.send_many(messages)
        else:
            for data in messages:
                await self._connection.send(data)

    async def _take(self) -> list[bytes]:
        way = self._random.random()
        if way < 0.1:
            with anyio.move_on_after(self._random.uniform(0, 0.002)):
                return [await self._connection.receive()]
            return []
        if way < 0.4:
            return await self._connection.receive_many()
        if way < 0.5:
            with await self._connection.borrow() as view:
                return [bytes(view)]
        return [await self._connection.receive()]
