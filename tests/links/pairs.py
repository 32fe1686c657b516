"""Two ends of a stream in one loop, what they stand on, and bytes that are different everywhere."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import anyio

from aiordma import connect
from tests.health import until
from tests.negotiation.serving import serving
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma import RdmaStream
    from aiordma.config import Config
    from aiordma.links.member import Member
    from aiordma.links.ring_size import RingSize


@contextlib.asynccontextmanager
async def a_pair(config: Config) -> AsyncIterator[tuple[RdmaStream, RdmaStream]]:
    """Two ends of a stream in one loop; both are closed at the end."""
    async with contextlib.AsyncExitStack() as stack:
        accepted: list[RdmaStream] = []
        done = anyio.Event()

        async def keep(stream: RdmaStream) -> None:
            accepted.append(stream)
            await done.wait()

        listener = await stack.enter_async_context(serving(keep, config=config))
        stream = await connect(LOCAL, listener.port, mode="rdma", config=config)
        await until(lambda: bool(accepted))
        try:
            yield stream, accepted[0]
        finally:
            await stream.aclose()
            await accepted[0].aclose()
            done.set()


def member_of(stream: RdmaStream) -> Member:
    pipe: Any = stream._pipe
    member: Member = pipe.ring.owner
    return member


def sizing_of(stream: RdmaStream) -> RingSize:
    sizing = member_of(stream).ring_size
    assert sizing is not None
    return sizing


#: A prime number of bytes: no two places of a ring that are a power of two apart have the same content.
NOISE = random.Random(1).randbytes(1_000_003)


def pattern(start: int, count: int) -> bytes:
    """What byte ``start`` of a stream and the next ones are."""
    start %= len(NOISE)
    return (NOISE * (1 + (start + count) // len(NOISE)))[start : start + count]


async def transfer(sender: RdmaStream, receiver: RdmaStream, start: int, count: int) -> None:
    """Send ``count`` bytes of the pattern, and check each."""
    got = bytearray()

    async def receive() -> None:
        while len(got) < count:
            got.extend(await receiver.receive())

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await sender.send(pattern(start, count))
    assert bytes(got) == pattern(start, count)
