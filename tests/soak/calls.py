"""Calls of every kind, with arguments, results and items that are checked."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import anyio
import anyio.lowlevel

from aiordma import rpc
from tests.soak.ledger import Ledger
from tests.soak.pattern import PERIOD, WrongByte, check, part
from tests.soak.streams import LARGEST, LOCAL, Expected, any_size, compare

#: In front of bytes that travel as they are: their place in the pattern; place and size of the answer's.
_PLACE = struct.Struct("!IIQ")
#: Size of one item of a stream of calls, at most.
ITEM = 50_000


@dataclass
class Order:
    """An argument that is packed and checked."""

    number: int
    articles: list[str]
    price: float


class Answers:
    """The handlers. What is wrong with an argument goes to the ledger, and to the caller as an error."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def _check(self, at: int, data: bytes | memoryview) -> int:
        try:
            return check(at, data)
        except WrongByte as error:
            self._ledger.fault("calls", error)
            raise

    @rpc.method
    def mirror(self, data: memoryview) -> bytes:
        """As many bytes of the pattern as the caller wants."""
        forth, back, size = _PLACE.unpack(data[: _PLACE.size])
        self._check(forth, data[_PLACE.size :])
        return bytes(part(back, size))

    @rpc.method
    async def double(self, order: Order) -> Order:
        await anyio.lowlevel.checkpoint()
        return Order(order.number * 2, [article * 2 for article in order.articles], order.price * 2)

    @rpc.method
    async def pieces(self, at: int, sizes: list[int]) -> AsyncIterator[bytes]:
        for size in sizes:
            yield bytes(part(at, size))
            at += size

    @rpc.method
    async def total(self, at: int, items: AsyncIterator[bytes]) -> int:
        end = at
        async for item in items:
            end = self._check(end, item)
        return end - at

    @rpc.method
    async def relay(self, items: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for item in items:
            yield item

    @rpc.method
    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    @rpc.method
    def refuse(self, reason: str) -> None:
        raise rpc.RpcError(rpc.Code.NOT_FOUND, reason)


def service(ledger: Ledger) -> rpc.Service:
    return rpc.Service("soak", Answers(ledger))


@asynccontextmanager
async def caller(ledger: Ledger, port: int, expected: Expected = "rdma") -> AsyncIterator[rpc.Client]:
    """A connection for calls, opened in time."""
    with ledger.piece("connect"):
        context = rpc.connect(LOCAL, port)
        client = await context.__aenter__()
    async with ledger.open():
        try:
            compare(ledger, client, expected)
            yield client
        finally:
            with ledger.piece("close"):
                await context.__aexit__(None, None, None)


class Calls:
    """The kinds of calls that a client makes on one connection."""

    def __init__(self, ledger: Ledger, client: rpc.Client, random: Random) -> None:
        self._ledger = ledger
        self._client = client
        self._random = random

    async def any(self) -> None:
        """One call, or some at a time."""
        kinds = [self.mirror] * 4 + [self.double, self.late, self.refused]
        with self._ledger.piece("calls") as piece:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._random.choice((1, 1, 4))):
                    tasks.start_soon(self._random.choice(kinds), 4096)
            piece.size = 4096

    async def large(self) -> None:
        with self._ledger.piece("large calls") as piece:
            await self.mirror(LARGEST)
            piece.size = LARGEST

    async def stream(self) -> None:
        with self._ledger.piece("call streams"):
            await self._random.choice([self.pieces, self.total, self.relay])()

    async def mirror(self, most: int) -> None:
        forth, back = self._random.randrange(PERIOD), self._random.randrange(PERIOD)
        size, reply = any_size(self._random, most), any_size(self._random, most)
        data = _PLACE.pack(forth, back, reply) + bytes(part(forth, size))
        result = await self._client.call("soak.mirror", data, returns=memoryview)
        if check(back, result) != back + reply:
            raise WrongByte(f"{len(result)} bytes of result instead of {reply}")

    async def double(self, _: int) -> None:
        number = self._random.randrange(1 << 40)
        got = await self._client.call("soak.double", Order(number, ["x", "yz"], 0.5), returns=Order)
        if got != Order(2 * number, ["xx", "yzyz"], 1.0):
            raise WrongByte(f"doubled {number}: {got}")

    async def late(self, _: int) -> None:
        """The caller does not wait so long: by a deadline, or because it was cancelled."""
        if self._random.random() < 0.5:
            with anyio.move_on_after(self._random.uniform(0, 0.01)):
                await self._client.call("soak.sleep", 60.0)
            return
        try:
            await self._client.call("soak.sleep", 60.0, timeout=self._random.uniform(0.001, 0.01))
        except rpc.RpcTimeout:
            return
        raise WrongByte("a call came back before its time")

    async def refused(self, _: int) -> None:
        reason = f"number {self._random.random()}"
        try:
            await self._client.call("soak.refuse", reason)
        except rpc.RpcError as error:
            if error.code == rpc.Code.NOT_FOUND and error.message == reason:
                return
            raise
        raise WrongByte("an error did not arrive")

    async def pieces(self) -> None:
        at = self._random.randrange(PERIOD)
        sizes = [any_size(self._random, ITEM) for _ in range(self._random.randrange(1, 30))]
        leaves = self._random.random() < 0.2
        async with self._client.stream("soak.pieces", at, sizes, returns=bytes) as items:
            got = 0
            async for item in items:
                at = check(at, item)
                if len(item) != sizes[got]:
                    raise WrongByte(f"item {got} has {len(item)} bytes instead of {sizes[got]}")
                got += 1
                if leaves:
                    return
        if got != len(sizes):
            raise WrongByte(f"{got} items instead of {len(sizes)}")

    async def total(self) -> None:
        at = begin = self._random.randrange(PERIOD)
        async with self._client.stream("soak.total", at, returns=int) as stream:
            for _ in range(self._random.randrange(1, 30)):
                size = any_size(self._random, ITEM)
                await stream.send(bytes(part(at, size)))
                at += size
            total = await stream.result()
        if total != at - begin:
            raise WrongByte(f"the server got {total} of {at - begin} bytes")

    async def relay(self) -> None:
        at = self._random.randrange(PERIOD)
        sizes = [any_size(self._random, ITEM) for _ in range(self._random.randrange(1, 30))]

        async with self._client.stream("soak.relay", returns=bytes) as stream:

            async def send() -> None:
                begin = at
                for size in sizes:
                    await stream.send(bytes(part(begin, size)))
                    begin += size
                await stream.end()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                end = at
                for size in sizes:
                    item = await stream.receive()
                    end = check(end, item)
                    if len(item) != size:
                        raise WrongByte(f"an item of {len(item)} bytes instead of {size}")
