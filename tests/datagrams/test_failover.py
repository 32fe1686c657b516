"""Connections that leave RDMA continue over TCP: every message arrives once, whole, in order."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aiordma.config import Config
from aiordma.links import engine as engines
from aiordma.links.failover.leave import switch_back
from tests.health import nothing_left, until
from tests.links.failover.breaking import WAYS, take_off
from tests.processes import PATIENCE
from tests.world import DEVICE

from .pairs import negotiated_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.datagrams.connection import DatagramConnection

pytestmark = pytest.mark.anyio

TINY = Config(device=DEVICE, ring_bytes=16384)


#: Messages of an exchange in each direction. Those after the 250th fill a ring several times.
COUNT = 300


async def exchange(
    connection: DatagramConnection,
    seed: int,
    peer_seed: int,
    goal: int = COUNT,
    harm: Callable[[], None] = lambda: None,
) -> None:
    """Send numbered messages of all sizes, and check the peer's.

    :param harm: called when ``goal`` messages have arrived. Called between two messages and not by a polling
        task, which may find the whole exchange over at its next look.
    """
    got = 0

    def message(seed: int, number: int) -> bytes:
        random = Random(seed * 100_000 + number)
        return number.to_bytes(4) + random.randbytes(random.choice((0, 5, 60, 1000, 2044, 2045, 9000, 16376)))

    async def send() -> None:
        for number in range(COUNT):
            await connection.send(message(seed, number))
        await connection.send_eof()

    async def receive() -> None:
        nonlocal got
        harmed = False
        while True:
            if got >= goal and not harmed:
                harmed = True
                harm()
            try:
                messages = await connection.receive_many(5)
            except anyio.EndOfStream:
                break
            for data in messages:
                assert data == message(peer_seed, got)
                got += 1
        assert got == COUNT

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        tasks.start_soon(receive)


@pytest.mark.parametrize("inline", [None, 64], ids=["inline", "mirror"])
@pytest.mark.parametrize("way", WAYS)
async def test_in_the_middle_of_traffic(
    way: str, inline: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random()
    seed = random.randrange(1 << 20)
    print("seed", seed)
    engine = await engines.current(TINY)
    if inline is not None:
        for group in list(engine.all_groups):
            group.close()
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline)
    for turn in range(3):
        async with nothing_left():
            one, other = await negotiated_pair(config=TINY, mode="rdma")
            harm = partial(take_off, engine, way)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(exchange, one, seed, seed + 1)
                tasks.start_soon(exchange, other, seed + 1, seed, random.randrange(250), harm)
            assert one.path == other.path == "tcp"
            assert one.fallback_reason is not None
            assert other.fallback_reason is not None
            await one.aclose()
            await other.aclose()
        seed += turn + 2


async def test_what_was_accepted_arrives_though_its_sender_closes() -> None:
    """Gathered messages, a full ring, and a large one in parts: all of them follow to TCP."""
    engine = await engines.current(TINY)
    one, other = await negotiated_pair(config=TINY, mode="rdma")
    sent = []
    for number in range(1000):
        message = b"%d" % number * (number % 100)
        try:
            one.send_nowait(message)
        except anyio.WouldBlock:
            break
        sent.append(message)
    take_off(engine, "link")
    await one.aclose()
    assert [message async for message in other] == sent
    await other.aclose()


async def test_borrowing_and_polling_go_on() -> None:
    engine = await engines.current(TINY)
    one, other = await negotiated_pair(config=TINY, mode="rdma")
    await one.send(b"in the ring")
    await anyio.lowlevel.checkpoint()
    take_off(engine, "switch all")
    await until(lambda: one.path == other.path == "tcp")
    await one.send(b"on TCP")
    for expected in (b"in the ring", b"on TCP"):
        with await other.borrow() as view:
            assert bytes(view) == expected
    with pytest.raises(anyio.WouldBlock):
        other.receive_nowait()
    assert one.writable == 16380
    await one.send(bytes(16380))
    assert await other.receive() == bytes(16380)
    await one.aclose()
    with pytest.raises(anyio.EndOfStream):
        await other.receive()
    await other.aclose()


@pytest.mark.parametrize("asks", [0, 1])
async def test_one_that_was_not_read_returns(asks: int) -> None:
    """As soon as its reader has taken what waits, whichever end asks."""
    async with nothing_left() as engine:
        reader, writer = await negotiated_pair(config=TINY, mode="rdma")
        sent = [bytes([number]) * 9000 for number in range(4)]
        await writer.send(sent[0])
        pipes = [member.connection for group in engine.all_groups for member in group.members]
        assert len(pipes) == 2
        take_off(engine, "switch all")
        await until(lambda: writer.path == reader.path == "tcp")
        for each in sent[1:]:
            await writer.send(each)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(switch_back, pipes[asks])
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(PATIENCE):
                assert [await reader.receive() for _ in sent] == sent
        await until(lambda: writer.path == reader.path == "rdma")
        await writer.send(b"more")
        assert await reader.receive() == b"more"
        await writer.aclose()
        await reader.aclose()
