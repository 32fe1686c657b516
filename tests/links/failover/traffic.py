"""Bytes that flow both ways on a stream while something happens to it."""

from __future__ import annotations

import contextlib
import hashlib
from random import Random
from typing import TYPE_CHECKING

import anyio

from tests.health import until
from tests.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiordma


class Flow:
    """Random bytes one way until :attr:`stop` is set, and their checksums at both ends."""

    def __init__(self, seed: int) -> None:
        self.stop = anyio.Event()
        self.sent, self.received = hashlib.sha256(), hashlib.sha256()
        self.count = 0
        self._random = Random(seed)

    async def send(self, stream: aiordma.RdmaStream) -> None:
        block = self._random.randbytes(1 << 20)
        while not self.stop.is_set():
            size = self._random.choice((1, 64, 500, 5_000, 70_000, 400_000))
            at = self._random.randrange(len(block) - size)
            self.sent.update(block[at : at + size])
            await stream.send(block[at : at + size])
        await stream.send_eof()

    async def receive(self, stream: aiordma.RdmaStream) -> None:
        async for part in stream:
            self.received.update(part)
            self.count += len(part)

    async def moves_on(self, random: Random) -> None:
        """Wait until up to a megabyte more has come."""
        goal = self.count + random.randrange(1, 1_000_000)
        await until(lambda: self.count >= goal)


@contextlib.asynccontextmanager
async def both_ways(one: aiordma.RdmaStream, other: aiordma.RdmaStream) -> AsyncIterator[tuple[Flow, Flow]]:
    """Traffic inside the block. At its end both directions finish, and everything must have arrived."""
    forth, back = Flow(1), Flow(2)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for flow, sender, receiver in ((forth, one, other), (back, other, one)):
                tasks.start_soon(flow.send, sender)
                tasks.start_soon(flow.receive, receiver)
            yield forth, back
            forth.stop.set()
            back.stop.set()
    assert forth.sent.digest() == forth.received.digest()
    assert back.sent.digest() == back.received.digest()
