"""Other processes in tests of memory."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import anyio

from aiordma import memory
from aiordma.config import Config
from aiordma.memory import Rights
from tests.roles import LOCAL

if TYPE_CHECKING:
    from tests.program import Control


async def owner(control: Control, nbytes: int, **settings: Any) -> None:
    """Serves a region. Says its port and descriptor, then the sum of its bytes whenever it hears anything,
    then that everything is closed."""
    config = Config(**settings)
    async with memory.serve(LOCAL, config=config) as server:
        region = await memory.alloc(nbytes, config=config)
        rights = Rights.READ | Rights.WRITE | Rights.ATOMIC
        control.say([server.port, region.descriptor(rights).hex()])
        async for _ in heard(control):
            control.say(sum(region[:].view))
        await region.aclose()
    control.say("closed")


async def visitor(control: Control, **settings: Any) -> None:
    """Hears of an owner's region. Says its path, then whether what it has written is there."""
    port, descriptor = await control.hear()
    config = Config(**settings)
    rng = random.Random(port)
    async with await memory.connect(LOCAL, port, config=config) as peer, await memory.alloc(1 << 20) as ours:
        control.say(peer.path)
        remote = await peer.open(bytes.fromhex(descriptor))
        data = bytearray(1 << 20)
        for _ in range(40):
            size = rng.choice((1, 64, 4096, 65_536, 300_000))
            at = rng.randrange((1 << 20) - size)
            data[at : at + size] = ours[:size].view[:] = rng.randbytes(size)
            await remote[at : at + size].write(ours[:size] if size % 2 else bytes(ours[:size].view))
        await remote.blocks(4096, range(255, -1, -1)).read(ours)
        back = b"".join(ours[at * 4096 : (at + 1) * 4096].view for at in range(255, -1, -1))
        word = await remote.fetch_and_add(1, 64)
        same = back == data and word == int.from_bytes(data[64:72], sys.byteorder)
        control.say("all as written" if same else "other bytes")


async def writer(control: Control) -> None:
    """Hears of a region, says its path, writes all of it again and again, and says what ended that."""
    async for port, descriptor in heard(control):
        async with await memory.connect(LOCAL, port) as peer:
            remote = await peer.open(bytes.fromhex(descriptor))
            async with await memory.alloc(remote.nbytes) as ours:
                ours[:].view[:] = b"w" * remote.nbytes
                control.say(peer.path)
                try:
                    while True:
                        await remote.write(ours)
                except (memory.MemoryAccessError, anyio.BrokenResourceError) as error:
                    control.say(type(error).__name__)


async def heard(control: Control) -> Any:
    """What it is told, until nothing more comes."""
    while True:
        try:
            yield await control.hear()
        except EOFError:
            return
