"""The helping thread at its highest rate, beside loops that block, streams that leave RDMA, and ends of all.

Python changes threads as often as it can, so the thread comes in wherever the loop's thread runs any Python.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.channels import channel as channels
from aiordma.datagrams.connection import connect_datagram, listen_datagram
from aiordma.datapath import _late
from aiordma.errors import Code
from tests.health import ROUNDS, until
from tests.pipes.channel_ends import End
from tests.processes import PATIENCE
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def hurried() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    _late.set_period_ns(1)
    yield
    _late.set_period_ns(0)
    sys.setswitchinterval(before)


class Receiver(asyncio.Protocol):
    """Its callbacks are the loop's."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.got = bytearray()
        self.over = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        assert threading.get_ident() == self.thread
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        assert threading.get_ident() == self.thread
        self.over.set_result(exc)


def block() -> None:
    """Compute until the thread has helped, or long enough."""
    before = _late.counts()[0]
    for _ in range(20_000):
        if _late.counts()[0] != before:
            return


async def _transport(draw: random.Random, server: Any) -> bytes:
    transport, _ = await aiordma.create_connection(
        asyncio.Protocol, *server.sockets[0].getsockname(), mode="rdma"
    )
    pipe, sent = transport._pipe, bytearray()  # type: ignore[attr-defined]
    leaves_at = draw.randrange(60)
    for number in range(40):
        for _ in range(draw.randrange(1, 12)):
            piece = draw.randbytes(draw.choice((1, 50, 3000)))
            transport.write(piece)
            sent += piece
            if draw.random() < 0.02:
                block()
        if number == leaves_at:
            pipe.leave(Code.SWITCHED)
        await asyncio.sleep(0)
    transport.close()
    return bytes(sent)


async def _datagrams(draw: random.Random) -> None:
    async with await listen_datagram(LOCAL) as listener:
        async with await connect_datagram(LOCAL, listener.port, mode="rdma") as one:
            async with await listener.accept() as other:
                for _ in range(20):
                    pieces = [
                        draw.randbytes(draw.choice((1, 50, 3000))) for _ in range(draw.randrange(1, 12))
                    ]
                    for piece in pieces:
                        await one.send(piece)
                    block()
                    assert [await other.receive() for _ in pieces] == pieces


async def _channels(draw: random.Random) -> None:
    """Long messages are copied without Python's lock, and who takes them owes credit; one end blocks."""
    async with await channels.listen(LOCAL) as listener:
        for _ in range(3):
            connecting = asyncio.ensure_future(channels.connect(LOCAL, listener.port, mode="rdma"))
            ends = [await listener.accept(), await connecting]
            users = [End(end.channel, keeps_views=False) for end in ends]
            sent: list[list[bytes]] = []
            for end in ends:
                pieces = [draw.randbytes(draw.choice((1, 300, 5000, 100_000))) for _ in range(12)]
                for piece in pieces:
                    end.send_soon(piece)
                    if draw.random() < 0.3:
                        block()
                sent.append(pieces)
            for user, pieces in zip(users, reversed(sent), strict=True):
                await user.received(len(pieces))
                assert user.messages == pieces
            ends[0].channel.close()
            block()
            assert await users[1].ended() is None
            for end in ends:
                await end.aclose()


async def _run(seed: int) -> None:
    draw = random.Random(seed)
    receivers: list[Receiver] = []

    def accepted() -> Receiver:
        receivers.append(Receiver())
        return receivers[-1]

    server = await aiordma.create_server(accepted, LOCAL, 0)
    async with asyncio.timeout(4 * PATIENCE):
        sent = await asyncio.gather(*(_transport(draw, server) for _ in range(4)))
        await _datagrams(draw)
        await _channels(draw)
        await until(lambda: len(receivers) == len(sent))
        assert [await each.over for each in receivers] == [None] * 4
    assert sorted(bytes(each.got) for each in receivers) == sorted(sent)
    server.close()


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_everything_arrives_once_and_in_order() -> None:
    """Each round is a loop that begins and ends."""
    before = _late.counts()[0]
    for seed in range(3 * ROUNDS):
        asyncio.run(_run(seed))
    assert _late.counts()[0] > before
