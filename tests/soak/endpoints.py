"""Datagram endpoints: what arrives is checked, and so is that something does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio

import aiordma
from tests.soak.datagrams import message, opened
from tests.soak.ledger import Ledger
from tests.soak.pattern import PERIOD, WrongByte
from tests.soak.streams import LOCAL, any_size

#: Fits into a datagram of the software device, with what is in front of the bytes.
LARGEST = 4000
#: Seconds after which a datagram counts as lost.
LOST = 0.2


async def answer(endpoint: aiordma.DatagramEndpoint, ledger: Ledger) -> None:
    """Send everything back to its sender, for ever."""
    async for data, sender in endpoint:
        number = int.from_bytes(data[:4])
        try:
            opened(data, number)
        except Exception as error:
            ledger.fault("endpoints", error)
        await endpoint.send((data, sender))
        ledger.done["endpoints answered"] += 1


def links(endpoint: aiordma.DatagramEndpoint) -> int:
    """Its TCP connections with peers."""
    return sum(len(peer.links) for peer in endpoint._peers.values())


@asynccontextmanager
async def bound(ledger: Ledger) -> AsyncIterator[aiordma.DatagramEndpoint]:
    """An endpoint, opened and closed in time."""
    with ledger.piece("connect"):
        endpoint = await aiordma.open_datagram_endpoint((LOCAL, 0))
    try:
        yield endpoint
    finally:
        with ledger.piece("close"):
            await endpoint.aclose()


class Endpoint:
    """Datagrams to a server and back: some may be lost, none may come changed, twice or unasked."""

    def __init__(
        self, ledger: Ledger, endpoint: aiordma.DatagramEndpoint, port: int, random: Random, fragile: bool
    ) -> None:
        self._ledger = ledger
        self._endpoint = endpoint
        self._peer = (LOCAL, port)
        self._random = random
        self._fragile = fragile
        self._sent = 0
        self._waiting: dict[int, bytes] = {}
        #: Those that are given up may still come.
        self._late: dict[int, bytes] = {}

    async def some(self) -> None:
        """Until one of a few comes back; those that have not by then may be lost."""
        with self._ledger.piece("endpoints") as piece:
            came = 0
            while not came:
                for _ in range(round(any_size(self._random, 30))):
                    await self._send()
                while self._waiting:
                    with anyio.move_on_after(LOST) as scope:
                        piece.size += self._check(*await self._endpoint.receive())
                        came += 1
                    if scope.cancelled_caught:
                        break
            self._ledger.done["datagrams lost"] += len(self._waiting)
            self._late |= self._waiting
            self._waiting.clear()
            for number in list(self._late)[:-1000]:
                del self._late[number]

    async def _send(self) -> None:
        size = any_size(self._random, LARGEST) - 1
        data = message(self._sent, self._random.randrange(PERIOD), size, self._fragile)
        self._waiting[self._sent] = data
        self._sent += 1
        await self._endpoint.send((data, self._peer))

    def _check(self, data: bytes, sender: tuple[str, int]) -> int:
        number = int.from_bytes(data[:4])
        sent = self._waiting.pop(number, None) or self._late.pop(number, None)
        if sender != self._peer or data != sent:
            raise WrongByte(f"{len(data)} bytes from {sender}, not (or no more) due: {data[:32].hex()}")
        return len(data)
