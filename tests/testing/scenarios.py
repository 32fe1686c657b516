"""What may happen to connections, links and calls at the same time, for tests that draw the order of events.

Each function runs one thing once, and says at its end what must hold. It draws its choices from `random`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

import aiordma
from aiordma import rpc
from aiordma.config import Config
from aiordma.links.failover.leave import switch_back
from tests.health import nothing_left, until
from tests.links.failover.breaking import take_off
from tests.links.failover.traffic import both_ways
from tests.links.test_ring_size import offer
from tests.processes import PATIENCE
from tests.roles import LOCAL, echo
from tests.streams.pairs import negotiated_pair, rdma_pair
from tests.world import DEVICE

if TYPE_CHECKING:
    from random import Random

CONFIG = Config(device=DEVICE, ring_bytes=16384)
ENDED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


async def turns(random: Random) -> None:
    for _ in range(random.randrange(8)):
        await anyio.lowlevel.checkpoint()


async def connect(random: Random) -> None:
    """Clients come at the same time, to a server that does not know them; each gets its own bytes."""
    async with nothing_left(), await aiordma.listen(LOCAL, config=CONFIG) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            async with anyio.create_task_group() as clients:
                for number in range(5):
                    clients.start_soon(client, listener.port, number, random)
            tasks.cancel_scope.cancel()


async def client(port: int, number: int, random: Random) -> None:
    await turns(random)
    async with await aiordma.connect(LOCAL, port, config=CONFIG, mode="rdma") as stream:
        said = bytes([number]) * random.randrange(1, 40_000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send, said)
            assert await stream.receive_exactly(len(said)) == said


async def ticket(random: Random) -> None:
    """As before, but the server has granted rings, and some clients give up while they connect."""
    async with nothing_left(), await aiordma.listen(LOCAL, config=CONFIG) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            await client(listener.port, 9, random)
            async with anyio.create_task_group() as clients:
                for number in range(6):
                    clients.start_soon(client_or_none, listener.port, number, random)
            await client(listener.port, 9, random)
            tasks.cancel_scope.cancel()


async def client_or_none(port: int, number: int, random: Random) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client, port, number, random)
        if number % 2:
            await turns(random)
            tasks.cancel_scope.cancel()


async def close(random: Random) -> None:
    """One end is closed or given up while both send: what arrives is the beginning of what was sent."""
    async with nothing_left():
        one, other = await rdma_pair()
        said = random.randbytes(100_000)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for stream in (one, other):
                    tasks.start_soon(sends, stream, said)
                    tasks.start_soon(arrives, stream, said)
                await turns(random)
                await random.choice((one.aclose, lambda: anyio.aclose_forcefully(one)))()
                await turns(random)
                await other.aclose()


async def sends(stream: aiordma.RdmaStream, said: bytes) -> None:
    try:
        await stream.send(said)
    except ENDED:
        pass


async def arrives(stream: aiordma.RdmaStream, said: bytes) -> None:
    got = bytearray()
    try:
        while True:
            got += await stream.receive()
    except ENDED:
        fits = said.startswith(got)
        assert fits


async def failover(random: Random) -> None:
    """The link fails under traffic, or the streams leave it: not a byte is lost."""
    async with nothing_left() as engine:
        one, other = await rdma_pair()
        async with both_ways(one, other):
            await turns(random)
            take_off(engine, random.choice(("link", "switch all")))
            await until(lambda: one.path == other.path == "tcp")
        await one.aclose()
        await other.aclose()


async def rejoin(random: Random) -> None:
    """Off and back under traffic, asked for by one end, or by both."""
    async with nothing_left() as engine:
        one, other = await rdma_pair()
        async with both_ways(one, other):
            take_off(engine, "switch all")
            await until(lambda: one.path == other.path == "tcp")
            async with anyio.create_task_group() as tasks:
                for stream in random.choice(((one,), (other,), (one, other))):
                    pipe: Any = stream._pipe
                    tasks.start_soon(switch_back, pipe)
                    await turns(random)
            await until(lambda: one.path == other.path == "rdma")
        await one.aclose()
        await other.aclose()


async def resize(random: Random) -> None:
    """Both ends change the size of their rings under traffic."""
    async with nothing_left():
        one, other = await negotiated_pair(config=Config(device=DEVICE), mode="rdma")
        async with both_ways(one, other):
            for owner, writer in ((one, other), (other, one)):
                first = writer.credit.limit
                await turns(random)
                # Under traffic it may change by itself, too, before or behind that.
                offer(owner, random.choice((1 << 20, 2 << 20)))
                await until(functools.partial(has_another_ring, writer, first))
        await one.aclose()
        await other.aclose()


def has_another_ring(writer: aiordma.RdmaStream, first: int) -> bool:
    return writer.credit.limit != first


class Doubling:
    @rpc.method
    async def double(self, x: int) -> int:
        for _ in range(x % 4):
            await anyio.lowlevel.checkpoint()
        return 2 * x


async def call(random: Random) -> None:
    """Calls beside each other, some of which are cancelled: the others get their own answer."""
    service = rpc.Service("t", of=Doubling())
    async with (
        nothing_left(),
        rpc.serve(service, LOCAL, config=CONFIG, drain_timeout=0.0) as answering,
        rpc.connect(LOCAL, answering.port, config=CONFIG, mode="rdma") as caller,
    ):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(one_call, caller, number, random)
            assert await caller.call("t.double", 50) == 100
            await until(lambda: caller.connection.calls == 0)


async def one_call(caller: rpc.Client, number: int, random: Random) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(doubles, caller, number)
        if number % 3 == 0:
            await turns(random)
            tasks.cancel_scope.cancel()


async def doubles(caller: rpc.Client, number: int) -> None:
    assert await caller.call("t.double", number) == 2 * number


SCENARIOS = (connect, ticket, close, failover, rejoin, resize, call)
