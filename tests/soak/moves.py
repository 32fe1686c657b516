"""A device fails: everything on it moves to another one."""

from __future__ import annotations

import os
from random import Random

import anyio

from aiordma.links import engine as engines
from aiordma.verbs import softlib
from tests.soak.ledger import Ledger, rest
from tests.soak.streams import Exchange, Order, any_size, connected

NAMES = ("soft0", "soft1")


def use_two_devices() -> None:
    """In this process, before the first connection."""
    os.environ["AIORDMA_DEVICE"] = "soft"
    os.environ["SOFTDEV_DEVICES"] = str(len(NAMES))


async def move(ledger: Ledger, port: int, random: Random, pace: float) -> None:
    """Take one port down after the other, while bytes flow; a stream must be on RDMA again each time."""
    library = softlib.load()
    async with connected(ledger, port, expected="any") as stream:
        exchange = Exchange(stream, Order.random(random, b"e"), random)
        await exchange.begin()
        for _ in range(100):
            for name in NAMES:
                devices = (await engines.current()).devices
                with ledger.piece("moves") as piece:
                    before = devices.moved
                    try:
                        async with anyio.create_task_group() as tasks:
                            tasks.start_soon(exchange.both, any_size(random))
                            await anyio.sleep(random.uniform(0, 0.003))
                            library.port(name, up=False)
                        while stream.path != "rdma" or not devices.health.why_down(NAMES.index(name)):
                            await exchange.both(any_size(random))
                    finally:
                        library.port(name, up=True)
                    piece.size = any_size(random)
                    await exchange.both(piece.size)
                    ledger.done["streams moved"] += devices.moved - before
                await rest(random, 1 / pace)
