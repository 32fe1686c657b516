"""asyncio's surface: protocols on transports, and stream readers and writers; at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast

import aiordma
from tests.soak.ledger import Ledger, rest
from tests.soak.pattern import WrongByte, check, part
from tests.soak.streams import GONE, LOCAL, Order, any_size, opening

#: Rounds of one connection.
ROUNDS = 100
LOST = (*GONE, OSError)


# ---- the server's end


def server(ledger: Ledger) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """What ``aiordma.start_server()`` calls: it sends everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with ledger.open():
            try:
                while data := await reader.read(1 << 16):
                    writer.write(data)
                    await writer.drain()
                writer.write_eof()
                ledger.done["readers answered"] += 1
            except LOST:
                pass  # a client that was killed, or ends
            finally:
                writer.close()

    return echo


# ---- the client's end


class Checker(asyncio.Protocol):
    """Bytes that come back, checked as they come."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._missing = 0
        #: what went wrong between two writes
        self._error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def data_received(self, data: bytes) -> None:
        if self._missing < len(data):
            self._end(WrongByte(f"{len(data)} bytes where {self._missing} were due"))
            return
        try:
            self._at = check(self._at, data)
        except WrongByte as error:
            self._end(error)
            return
        self._missing -= len(data)
        if not self._missing:
            self._end(None)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        self._end(exc or ConnectionResetError("the connection ended"))
        if not self.lost.done():
            self.lost.set_result(None)

    def _end(self, error: Exception | None) -> None:
        if self._waiter is None or self._waiter.done():
            self._error = error
        elif error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)

    async def write(self, transport: asyncio.Transport, data: Any) -> None:
        """Send them, and wait until they are back."""
        if self._error is not None:
            raise self._error
        self._missing = len(data)
        self._waiter = self._loop.create_future()
        await self._room.wait()
        transport.write(data)
        await self._waiter


class Transports:
    """Work on connections of asyncio's kind to one server.

    :param ports: of a server on aiordma's streams, and of one on asyncio's; 0: there is none.
    """

    def __init__(
        self, ledger: Ledger, ports: tuple[int, int], random: Random, pace: float, fragile: bool
    ) -> None:
        self._ledger = ledger
        self._ports = [port for port in ports if port]
        self._plain = ports[0]
        self._random = random
        self._pace = pace
        self._fragile = fragile

    def _begin(self) -> tuple[int, bytes, int, int]:
        """A port, the first bytes, and the places of what is sent and of what comes back."""
        port = self._random.choice(self._ports)
        order = Order.random(self._random, b"e", fragile=self._fragile)
        if port == self._plain:
            return port, opening(order), order.forth, order.back
        return port, b"", order.forth, order.forth

    async def protocol(self) -> None:
        """A protocol on a transport."""
        port, first, forth, back = self._begin()
        with self._ledger.piece("connect"):
            transport, made = await aiordma.create_connection(lambda: Checker(back), LOCAL, port)
        protocol = cast("Checker", made)
        async with self._ledger.open():
            try:
                self._compare(transport)
                transport.write(first)
                for _ in range(ROUNDS):
                    with self._ledger.piece("protocols") as piece:
                        piece.size = any_size(self._random)
                        await protocol.write(transport, part(forth, piece.size))
                        forth += piece.size
                    await rest(self._random, 0.1 / self._pace)
            finally:
                transport.close()
                with self._ledger.piece("close"):
                    await protocol.lost

    async def readers(self) -> None:
        """A stream reader and a stream writer."""
        port, first, forth, back = self._begin()
        with self._ledger.piece("connect"):
            reader, writer = await aiordma.open_connection(LOCAL, port)
        async with self._ledger.open():
            try:
                self._compare(writer)
                writer.write(first)
                for _ in range(ROUNDS):
                    with self._ledger.piece("readers") as piece:
                        piece.size = size = any_size(self._random)
                        writer.write(part(forth, size))
                        forth += size
                        while size:
                            data = await reader.read(size)
                            if not data:
                                raise WrongByte(f"the end where {size} bytes were due")
                            back = check(back, data)
                            size -= len(data)
                        await writer.drain()
                    await rest(self._random, 0.1 / self._pace)
                with self._ledger.piece("readers"):
                    writer.write_eof()
                    if data := await reader.read():
                        raise WrongByte(f"{len(data)} bytes behind the end")
            finally:
                writer.close()
                with self._ledger.piece("close"):
                    await writer.wait_closed()

    def _compare(self, connection: Any) -> None:
        path = connection.get_extra_info("aiordma.path")
        if path != "rdma":
            reason = connection.get_extra_info("aiordma.fallback_reason")
            self._ledger.fault("connect", f"{type(connection).__name__} on {path} instead of rdma: {reason}")
