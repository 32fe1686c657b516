"""The kinds of work that a client does on streams."""

from __future__ import annotations

import ssl
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Literal

import anyio

import aiordma
from aiordma.config import Mode
from tests.soak.ledger import Ledger, rest
from tests.soak.streams import Exchange, Expected, Order, any_size, connected

#: Rounds of one long-lived stream; then it ends properly, and there is a new one.
ROUNDS = 500
#: Seconds in which a stream must have changed its path.
SWITCHING = 20


class Traffic:
    """Work on streams to one server.

    :param pace: pauses are divided by it.
    :param fragile: this process may be killed at any moment.
    :param expected: the path of connections; any, where the server may be killed.
    """

    def __init__(
        self,
        ledger: Ledger,
        port: int,
        random: Random,
        pace: float = 1,
        *,
        fragile: bool = False,
        expected: Expected = "rdma",
    ) -> None:
        self._ledger = ledger
        self._port = port
        self._random = random
        self._pace = pace
        self._fragile = fragile
        self._expected = expected

    def _connected(self) -> AbstractAsyncContextManager[aiordma.RdmaStream]:
        return connected(self._ledger, self._port, expected=self._expected)

    def _order(self, what: bytes, reply: int = 0) -> Order:
        return Order.random(self._random, what, reply, self._fragile)

    async def streams(self) -> None:
        """A long-lived stream: both directions at once, all sizes and ways to receive."""
        async with self._connected() as stream:
            exchange = Exchange(stream, self._order(b"e"), self._random)
            await exchange.begin()
            for _ in range(ROUNDS):
                with self._ledger.piece("streams") as piece:
                    piece.size = any_size(self._random)
                    await exchange.both(piece.size)
                await rest(self._random, 0.05 / self._pace)
            with self._ledger.piece("streams"):
                await exchange.finish()

    async def half_close(self) -> None:
        """The answer comes after the end of the question."""
        size, reply = any_size(self._random), any_size(self._random)
        async with self._connected() as stream:
            with self._ledger.piece("half closes") as piece:
                piece.size = size + reply
                exchange = Exchange(stream, self._order(b"a", reply), self._random)
                await exchange.begin()
                await exchange.send(size)
                await stream.send_eof()
                await exchange.receive(reply)
                await exchange.ended()

    async def short(self) -> None:
        """A connection for one round trip; now and then on TCP."""
        path: Literal["tcp", "rdma"] = "tcp" if self._random.random() < 0.1 else "rdma"
        mode: Mode = "tcp" if path == "tcp" else "auto"
        async with connected(self._ledger, self._port, mode, path) as stream:
            with self._ledger.piece("short") as piece:
                piece.size = any_size(self._random, 4096)
                exchange = Exchange(stream, self._order(b"e"), self._random)
                await exchange.begin()
                await exchange.both(piece.size)
                if self._random.random() < 0.5:
                    await exchange.finish()
                else:
                    await stream.send_eof()  # and close, before the server's end has come

    async def idle(self) -> None:
        """A stream that does nothing for a while, and works afterwards."""
        async with self._connected() as stream:
            exchange = Exchange(stream, self._order(b"e"), self._random)
            await exchange.begin()
            for _ in range(5):
                await anyio.sleep(self._random.uniform(1, 10) / self._pace)
                with self._ledger.piece("idle"):
                    await exchange.both(64)
            with self._ledger.piece("idle"):
                await exchange.finish()

    async def failover(self) -> None:
        """A stream that leaves RDMA and comes back, while bytes flow in both directions."""
        async with self._connected() as stream:
            exchange = Exchange(stream, self._order(b"e"), self._random)
            await exchange.begin()
            for _ in range(20):
                with self._ledger.piece("failovers") as piece:
                    await self._switched(stream, exchange, "tcp")
                    await exchange.both(any_size(self._random))
                    await self._switched(stream, exchange, "rdma")
                    piece.size = any_size(self._random)
                    await exchange.both(piece.size)
                await rest(self._random, 0.5 / self._pace)
            with self._ledger.piece("failovers"):
                await exchange.finish()

    async def tls(self, port: int, authority: str) -> None:
        """TLS: payload inside it on TCP, and then beside it by RDMA."""
        context = ssl.create_default_context(cadata=authority)
        paths: tuple[Expected, ...] = ("tcp", "rdma")
        for path in paths:
            outside = path == "rdma"
            async with connected(
                self._ledger, port, expected=path, ssl=context, rdma_outside_tls=outside
            ) as stream:
                exchange = Exchange(stream, self._order(b"e"), self._random)
                await exchange.begin()
                for _ in range(30):
                    with self._ledger.piece(f"TLS, {path}") as piece:
                        piece.size = any_size(self._random)
                        await exchange.both(piece.size)
                    await rest(self._random, 0.1 / self._pace)
                with self._ledger.piece(f"TLS, {path}"):
                    await exchange.finish()

    async def _switched(
        self, stream: aiordma.RdmaStream, exchange: Exchange, path: Literal["tcp", "rdma"]
    ) -> None:
        """Change the path during an exchange; again, with another one, until it has changed."""
        until = anyio.current_time() + SWITCHING
        while stream.path != path:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(exchange.both, any_size(self._random))
                await anyio.sleep(self._random.uniform(0, 0.003))
                try:
                    await aiordma.switch_path(stream, path, reason="soak")
                except aiordma.NegotiationError:
                    # "Not possible now": a reason for patience, which ends.
                    if anyio.current_time() > until:
                        raise
                    self._ledger.done["switches refused"] += 1
                    await anyio.sleep(0.05)
