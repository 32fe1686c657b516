"""A kernel's SMC-R that sends anything on its link harms its own connections only."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.links import engine as links_engine
from aiordma.links.smcr.group import KernelGroup
from aiordma.proto import cdc
from tests.health import ROUNDS, until
from tests.kernel_option import options
from tests.kernel_peer import CONFIG, Kernel
from tests.processes import PATIENCE
from tests.proto.test_smcr_link import MESSAGES

if TYPE_CHECKING:
    from aiordma.streams.stream import RdmaStream
    from tests.vm.smc.peer import Member

__all__ = ["options"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("options"),
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]

SEEDS = range(40 * ROUNDS)
#: What the end of a stream may be: one in order, if the peer says so in a message that fits.
ENDS = anyio.EndOfStream, anyio.BrokenResourceError


def cursors(rng: random.Random, token: int, number: int) -> bytes:
    """A message of cursors that may fit and need not."""
    message = cdc.CdcMessage()
    message.seq = rng.choice([number, number, rng.randrange(1 << 16)])
    message.token = rng.choice([token, token, token, rng.randrange(1 << 32)])
    message.prod_wrap, message.cons_wrap = (rng.choice([0, 0, 1, 0xFFFF]) for _ in range(2))
    message.prod_count, message.cons_count = (
        rng.choice([0, 0, 5, 65535, 65536, 1 << 31, rng.randrange(1 << 32)]) for _ in range(2)
    )
    message.prod_flags, message.state_flags = (rng.choice([0, 0, rng.randrange(256)]) for _ in range(2))
    return message.encode()


def anything(rng: random.Random, token: int, number: int) -> bytes:
    kind = rng.random()
    if kind < 0.5:
        return cursors(rng, token, number)
    data = bytearray(rng.choice(MESSAGES) if kind < 0.9 else rng.randbytes(rng.randrange(1, 60)))
    for _ in range(rng.choice([0, 0, 1, 2])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[:60])


async def attack(rng: random.Random, member: Member, token: int) -> None:
    """Until the victim has broken the link off, or all is sent."""
    pair = member.link.pair
    for number in range(1, rng.randrange(2, 60)):
        if pair.failed:
            break
        if rng.random() < 0.1:
            await asyncio.sleep(0)
        pair.queue_llc(anything(rng, token, number))


async def read_to_the_end(stream: RdmaStream) -> BaseException:
    try:
        while True:
            await stream.receive()
    except ENDS as error:
        return error


@pytest.mark.parametrize("seed", SEEDS)
async def test_fuzz_a_link(seed: int) -> None:
    rng = random.Random(seed)
    engine = await links_engine.current(CONFIG)
    honest, hostile = Kernel(engine), Kernel(engine)
    async with aiordma.listen("127.0.0.1", 0, config=CONFIG) as listener:
        bystander, _ = await honest.connect(listener.port)
        unharmed = await listener.accept()
        theirs, member = await hostile.connect(listener.port, "127.0.0.2")
        ours = await listener.accept()
        await theirs.send(b"hello")
        assert await ours.receive_exactly(5) == b"hello"
        reading = asyncio.ensure_future(read_to_the_end(ours))
        (victim,) = [
            each
            for group in engine.all_groups
            if isinstance(group, KernelGroup) and group.key.host == "127.0.0.2"
            for each in group.members
        ]
        await attack(rng, member, victim.pipe.token)
        await hostile.close()
        with anyio.fail_after(PATIENCE):
            await reading
        ours.abort()
        data = rng.randbytes(200_000)
        sending = asyncio.ensure_future(bystander.send(data))
        assert await unharmed.receive_exactly(len(data)) == data
        await sending
        for stream in unharmed, bystander:
            stream.abort()
        await honest.close()
    groups = [group for group in engine.all_groups if isinstance(group, KernelGroup)]
    await until(lambda: not any(group.members for group in groups))
